"""Bill by the prices that planning reckons with: of the device's own policy, of the hour, and of the carbon.

The ledger took the flat energy price of the policy `default` for everybody, and only for owned GPUs; the planner took
the price of the hour and of the carbon by the device's policy, for all. What was billed before stays as it is.

Revision ID: 0029
Revises: 0028
"""

from alembic import op

from app.store.migrate import definition

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

COLUMNS = """
COMMENT ON COLUMN cost_by_service_hour.usd_memory IS
    'Cost by memory used, and of the whole device for a whole share outside time slices, US dollars.';
COMMENT ON COLUMN cost_by_project_day.usd_memory IS
    'Cost by memory used, and of the whole device for a whole share outside time slices, US dollars.';
ALTER TABLE device_bills
    ADD COLUMN policy text, ADD COLUMN usd_per_kwh numeric CHECK (usd_per_kwh >= 0), ADD COLUMN time_sliced boolean;
ALTER TABLE device_bill_hours
    ADD COLUMN policy text, ADD COLUMN usd_per_kwh numeric CHECK (usd_per_kwh >= 0), ADD COLUMN time_sliced boolean;
"""

DEFINITIONS = (
    "0029_device_policies", "0029_bill_minutes", "0029_write_ledger", "0029_close_hours", "0029_hourly_views",
    "0029_telemetry_views",
)  # fmt: skip

# A view loses columns only by being dropped, and what reads it with it; grants go with them.
DROP_VIEWS = "DROP VIEW energy_by_device_hour, idle_by_device_hour, ledger_check, device_bills_hourly"
BEFORE = (
    "0011_bill_minutes", "0012_write_ledger", "0012_close_hours", "0012_hourly_views", "0013_cost_views",
    "0013_telemetry_views", "0028_comments",
)  # fmt: skip
DROP_COLUMNS = """
COMMENT ON COLUMN cost_by_service_hour.usd_memory IS
    'Cost by memory used, and of the whole device for a whole share outside time slices, US dollars.';
COMMENT ON COLUMN cost_by_project_day.usd_memory IS
    'Cost by memory used, and of the whole device for a whole share outside time slices, US dollars.';
DROP VIEW device_policies;
ALTER TABLE device_bill_hours DROP COLUMN time_sliced, DROP COLUMN usd_per_kwh, DROP COLUMN policy;
ALTER TABLE device_bills DROP COLUMN time_sliced, DROP COLUMN usd_per_kwh, DROP COLUMN policy;
"""
GRANT = """
DO $body$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'headroom_reader') THEN
        GRANT SELECT ON energy_by_device_hour, idle_by_device_hour, ledger_check TO headroom_reader;
    END IF;
END
$body$;
"""


def upgrade() -> None:
    """Make room for what a bill notes of energy, and replace what bills."""
    op.execute(COLUMNS)
    for name in DEFINITIONS:
        op.execute(definition(name))


def downgrade() -> None:
    """Bill as before; what was billed meanwhile stays."""
    op.execute(DROP_VIEWS)
    op.execute(DROP_COLUMNS)
    for name in BEFORE:
        op.execute(definition(name))
    op.execute(GRANT)
