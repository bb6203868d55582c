"""Create the tables of the ledger and the bill of every device and minute that it must sum to.

Revision ID: 0011
Revises: 0010
"""

from alembic import op

from app.store.migrate import definition

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# Money is numeric with twelve decimals: every amount is cut to that grid and the rest goes to one named row, so sums
# are exact.
BILL_COLUMNS = """
    device_uuid text NOT NULL,
    node_id text NOT NULL,
    gpu_type text NOT NULL,
    region text NOT NULL,
    price_kind text NOT NULL,
    list_usd_per_h numeric,
    fraction numeric NOT NULL,
    price_usd_per_h numeric NOT NULL,
    memory_mib numeric NOT NULL,
    seconds numeric NOT NULL CHECK (seconds >= 0),
    observed_s numeric NOT NULL DEFAULT 0,
    energy_j numeric NOT NULL DEFAULT 0,
    usd numeric NOT NULL CHECK (usd >= 0),
    usd_energy numeric NOT NULL DEFAULT 0"""

LEDGER_COLUMNS = """
    device_uuid text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('replica', 'job', 'task', 'idle', 'unobserved')),
    subject text NOT NULL,
    node_id text NOT NULL,
    gpu_type text NOT NULL,
    region text NOT NULL,
    price_kind text NOT NULL,
    price_usd_per_h numeric NOT NULL,
    project text NOT NULL,
    workload text NOT NULL,
    model text NOT NULL,
    seconds numeric NOT NULL,
    share_pct_sm_seconds numeric NOT NULL,
    memory_mib_seconds numeric NOT NULL,
    memory_mib_seconds_reserved numeric NOT NULL,
    energy_j numeric NOT NULL,
    usd_memory numeric NOT NULL CHECK (usd_memory >= 0),
    usd_share numeric NOT NULL CHECK (usd_share >= 0),
    usd_whole numeric NOT NULL CHECK (usd_whole >= 0),
    usd_energy numeric NOT NULL CHECK (usd_energy >= 0)"""

TABLES = f"""
CREATE TABLE device_bills (
    minute timestamptz NOT NULL, from_at timestamptz NOT NULL, until_at timestamptz NOT NULL, {BILL_COLUMNS},
    PRIMARY KEY (minute, device_uuid)
) PARTITION BY RANGE (minute);
CREATE TABLE ledger (minute timestamptz NOT NULL, {LEDGER_COLUMNS}, PRIMARY KEY (minute, device_uuid, kind, subject))
    PARTITION BY RANGE (minute);
CREATE TABLE device_bill_hours (hour timestamptz NOT NULL, {BILL_COLUMNS}, PRIMARY KEY (hour, device_uuid));
CREATE TABLE ledger_hours (hour timestamptz NOT NULL, {LEDGER_COLUMNS}, PRIMARY KEY (hour, device_uuid, kind, subject));
CREATE INDEX ledger_hours_workload ON ledger_hours (workload, hour);
CREATE INDEX ledger_hours_project ON ledger_hours (project, hour);

CREATE TABLE retired_devices (
    uuid text NOT NULL, node_id text NOT NULL, gpu_type text NOT NULL, spec jsonb NOT NULL, node_spec jsonb NOT NULL,
    type_spec jsonb NOT NULL, billed_from timestamptz NOT NULL, billed_until timestamptz NOT NULL,
    PRIMARY KEY (uuid, billed_from)
);
"""

DOWNGRADE = """
DROP FUNCTION headroom_bill_minutes(timestamptz, timestamptz, boolean),
    headroom_ensure_ledger_partitions(timestamptz, timestamptz);
DROP VIEW billable_devices;
DROP TRIGGER nodes_retire ON nodes;
DROP TRIGGER devices_retire ON devices;
DROP FUNCTION headroom_retire();
DROP TABLE retired_devices, ledger_hours, device_bill_hours, ledger, device_bills;
"""


def upgrade() -> None:
    """Make the tables, the watch over deleted devices and the bill."""
    op.execute(TABLES)
    for name in ("0011_retire", "0011_ensure_ledger_partitions", "0011_bill_minutes"):
        op.execute(definition(name))


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DOWNGRADE)
