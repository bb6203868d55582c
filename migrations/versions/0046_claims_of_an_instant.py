"""Shrink what is claimed of a device at each instant, not over the minute, for hand-overs overlap.

Revision ID: 0046
Revises: 0045
"""

from alembic import op

from app.store.migrate import definition

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Minutes that are accounted from here on; grants stay."""
    op.execute(definition("0046_write_ledger"))


def downgrade() -> None:
    """Claims shrink over the whole minute again."""
    op.execute(definition("0029_write_ledger"))
