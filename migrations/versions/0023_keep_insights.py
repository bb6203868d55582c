"""Keep beside a plan what its planner found out: prices, candidates, what would have to give.

Revision ID: 0023
Revises: 0022
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that plans of before leave empty."""
    op.execute("ALTER TABLE plans ADD COLUMN insight BYTEA")


def downgrade() -> None:
    """Without; cycle records still have it."""
    op.execute("ALTER TABLE plans DROP COLUMN insight")
