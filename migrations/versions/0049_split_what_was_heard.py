"""Split bills by the samples that were heard of their minutes, not by all that came since.

Revision ID: 0049
Revises: 0048
"""

from alembic import op

from app.store.migrate import definition

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The same rows for less."""
    op.execute(definition("0049_write_ledger"))


def downgrade() -> None:
    """All samples of an hour and a quarter are read again."""
    op.execute(definition("0046_write_ledger"))
