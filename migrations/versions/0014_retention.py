"""Create retention: raw telemetry goes by partition once it is accounted, minutes go later, hours stay.

Revision ID: 0014
Revises: 0013
"""

from alembic import op

from app.store.migrate import definition

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

DOWNGRADE = """
DROP FUNCTION headroom_drop_minutes(timestamptz, integer), headroom_drop_raw(timestamptz, integer),
    headroom_note_kept(text, timestamptz), headroom_retention_cut(timestamptz, integer),
    headroom_drop_partitions(text, timestamptz);
"""


def upgrade() -> None:
    """Make the functions."""
    op.execute(definition("0014_retention"))


def downgrade() -> None:
    """Drop them."""
    op.execute(DOWNGRADE)
