"""Keep what a plan for approval would tell processes of their documents, as digests.

Revision ID: 0054
Revises: 0053
"""

from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of plans that wait already nothing is known; they can be approved as before."""
    op.execute("ALTER TABLE plans ADD COLUMN terms jsonb")


def downgrade() -> None:
    """Documents that changed since a plan was made hinder nobody any more."""
    op.execute("ALTER TABLE plans DROP COLUMN terms")
