"""Note when the planner held a plan that waits for approval against the fleet last.

Revision ID: 0048
Revises: 0047
"""

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The planner notes it when it looks next."""
    op.execute("ALTER TABLE plans ADD COLUMN looked_at timestamptz")


def downgrade() -> None:
    """What was seen stays, without since when."""
    op.execute("ALTER TABLE plans DROP COLUMN looked_at")
