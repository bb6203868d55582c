"""Keep beside each cycle how every planner that was asked came to its end, so that monitoring can count them.

Revision ID: 0039
Revises: 0038
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Older cycles do not say."""
    op.execute("ALTER TABLE cycles ADD COLUMN attempts jsonb")
    op.execute("CREATE INDEX cycles_ended_at ON cycles (ended_at) WHERE state <> 'running'")


def downgrade() -> None:
    """The records still say."""
    op.execute("DROP INDEX cycles_ended_at")
    op.execute("ALTER TABLE cycles DROP COLUMN attempts")
