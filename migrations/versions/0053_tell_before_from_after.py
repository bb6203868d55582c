"""Tell before from after: how late what a report says comes, by how far its node's clock is behind.

Revision ID: 0053
Revises: 0052
"""

from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Not known of anybody yet."""
    op.execute("ALTER TABLE report_heads ADD COLUMN behind_s double precision")


def downgrade() -> None:
    """Reports are as they were."""
    op.execute("ALTER TABLE report_heads DROP COLUMN behind_s")
