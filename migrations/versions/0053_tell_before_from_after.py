"""Tell before from after: bill devices that came back or moved for both times, and know how late nodes' clocks are.

Revision ID: 0053
Revises: 0052
"""

from alembic import op

from app.store.migrate import definition

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

BEFORE = {
    "0053_heard": "0050_heard",
    "0053_retire": "0011_retire",
    "0053_device_policies": "0029_device_policies",
    "0053_bill_minutes": "0029_bill_minutes",
}


def upgrade() -> None:
    """What was billed stays as it is; of what was gone before, nothing more is known."""
    op.execute("ALTER TABLE report_heads ADD COLUMN behind_s double precision")
    for name in BEFORE:
        op.execute(definition(name))


def downgrade() -> None:
    """The functions as they were."""
    op.execute("DROP TRIGGER devices_change ON devices")
    for name in BEFORE.values():
        op.execute(definition(name))
    op.execute("ALTER TABLE report_heads DROP COLUMN behind_s")
