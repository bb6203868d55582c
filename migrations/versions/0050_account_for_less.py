"""Account minutes for less: the log is summed up before it is sorted, and nothing is read that came later.

Revision ID: 0050
Revises: 0049
"""

from alembic import op

from app.store.migrate import definition

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

BEFORE = {
    "heard": "0010", "roll_device_minutes": "0010", "roll_service_minutes": "0010", "readings": "0012",
    "write_ledger": "0049",
}  # fmt: skip


def upgrade() -> None:
    """The same rows for less."""
    for name in BEFORE:
        op.execute(definition(f"0050_{name}"))


def downgrade() -> None:
    """The functions as they were."""
    for name, number in BEFORE.items():
        op.execute(definition(f"{number}_{name}"))
