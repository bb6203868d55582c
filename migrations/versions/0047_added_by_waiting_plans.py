"""Note what a plan that waits for approval would add to the bill.

Revision ID: 0047
Revises: 0046
"""

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The planner notes it when it looks next."""
    op.execute("ALTER TABLE plans ADD COLUMN added_usd_per_h double precision")


def downgrade() -> None:
    """It is told by the difference alone."""
    op.execute("ALTER TABLE plans DROP COLUMN added_usd_per_h")
