"""Bill a GPU whole for the part of a minute in which it was not in slices, before it was cut or after it was put back.

Revision ID: 0059
Revises: 0058
"""

from alembic import op

from app.store.migrate import definition

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What was billed stays as it is."""
    op.execute(definition("0059_bill_minutes"))


def downgrade() -> None:
    op.execute(definition("0053_bill_minutes"))
