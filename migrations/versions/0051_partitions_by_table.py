"""Make the partitions of one table at a time, so that nobody waits for two.

Revision ID: 0051
Revises: 0050
"""

from alembic import op

from app.store.migrate import definition

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

OF_ONE = "headroom_ensure_partitions(integer, text)"


def upgrade() -> None:
    """A function for one table, and the one for all by it."""
    op.execute(definition("0051_ensure_partitions"))
    op.execute(f"REVOKE EXECUTE ON FUNCTION {OF_ONE} FROM PUBLIC")


def downgrade() -> None:
    """All at once again."""
    op.execute(definition("0050_ensure_partitions"))
    op.execute(f"DROP FUNCTION {OF_ONE}")
