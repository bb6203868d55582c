"""Keep beside a node's newest read-back what the controllers of its devices ask planners for.

Revision ID: 0026
Revises: 0025
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is asked for until the next receipt."""
    op.execute("ALTER TABLE node_read_backs ADD COLUMN wishes jsonb NOT NULL DEFAULT '[]'")


def downgrade() -> None:
    """Without; wishes are sentences in receipts again."""
    op.execute("ALTER TABLE node_read_backs DROP COLUMN wishes")
