"""Keep everybody from a table of telemetry while its rows move to a partition of their own.

Revision ID: 0058
Revises: 0057
"""

from alembic import op

from app.store.migrate import definition

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(definition("0058_ensure_partitions"))


def downgrade() -> None:
    op.execute(definition("0052_ensure_partitions"))
