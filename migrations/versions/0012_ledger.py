"""Create the accounting itself: who held what in each minute, what that costs by three accountings, and the closing of
hours.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

from app.store.migrate import definition

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

DEFINITIONS = ("0012_readings", "0012_write_ledger", "0012_close_hours", "0012_account_minutes", "0012_hourly_views")

DOWNGRADE = """
DROP VIEW ledger_hourly, device_bills_hourly;
DROP FUNCTION headroom_account_minutes(timestamptz, timestamptz, boolean, boolean),
    headroom_close_hours(timestamptz, timestamptz), headroom_write_ledger(timestamptz, timestamptz),
    headroom_readings(timestamptz, timestamptz);
"""


def upgrade() -> None:
    """Make the functions and the hourly views."""
    for name in DEFINITIONS:
        op.execute(definition(name))


def downgrade() -> None:
    """Drop them; the ledger stays."""
    op.execute(DOWNGRADE)
