"""Keep beside each cycle who made its plan, and how that came about, so that nobody has to unpack its record.

Revision ID: 0031
Revises: 0030
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Older cycles do not say."""
    op.execute("ALTER TABLE cycles ADD COLUMN answered jsonb")


def downgrade() -> None:
    """The records still say."""
    op.execute("ALTER TABLE cycles DROP COLUMN answered")
