"""Keep apart, within an hour, what stood on another node, at another kind of price or of another network.

Minutes told them apart, and an hour took one of them for all of its minutes.

Revision ID: 0056
Revises: 0055
"""

from alembic import op

from app.store.migrate import definition

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

WIDE = """
ALTER TABLE device_bill_hours DROP CONSTRAINT device_bill_hours_pkey,
    ADD PRIMARY KEY (hour, device_uuid, node_id, gpu_type, region, price_kind);
ALTER TABLE ledger_hours DROP CONSTRAINT ledger_hours_pkey,
    ADD PRIMARY KEY (hour, device_uuid, kind, subject, node_id, gpu_type, region, price_kind, model);
UPDATE ledger_hours AS entry
SET node_id = bill.node_id, gpu_type = bill.gpu_type, region = bill.region, price_kind = bill.price_kind
FROM device_bill_hours AS bill
WHERE entry.subject = '' AND bill.hour = entry.hour AND bill.device_uuid = entry.device_uuid
    AND (entry.node_id, entry.gpu_type, entry.region, entry.price_kind)
        <> (bill.node_id, bill.gpu_type, bill.region, bill.price_kind);
COMMENT ON VIEW idle_by_device_hour IS
    'The bill of each device and hour, and what of it was held by nobody or seen by nobody; a row for before and one '
    'for after where its node, GPU type, region or price kind changed within the hour.';
COMMENT ON COLUMN cost_focus."ListUnitPrice" IS
    'Price of the device, US dollars per hour; its mean where it changed within the hour.';
"""

NARROW = """
ALTER TABLE device_bill_hours DROP CONSTRAINT device_bill_hours_pkey;
ALTER TABLE ledger_hours DROP CONSTRAINT ledger_hours_pkey;
WITH gone AS (DELETE FROM device_bill_hours RETURNING *)
INSERT INTO device_bill_hours
SELECT hour, device_uuid, min(node_id), min(gpu_type), min(region), min(price_kind), max(list_usd_per_h), max(fraction),
    round(sum(price_usd_per_h * seconds) / sum(seconds), 12), max(memory_mib), sum(seconds), sum(observed_s),
    sum(energy_j), sum(usd), sum(usd_energy), min(policy), round(sum(usd_per_kwh * seconds) / sum(seconds), 15),
    bool_or(time_sliced)
FROM gone GROUP BY hour, device_uuid;
WITH gone AS (DELETE FROM ledger_hours RETURNING *)
INSERT INTO ledger_hours
SELECT hour, device_uuid, kind, subject, min(node_id), min(gpu_type), min(region), min(price_kind),
    max(price_usd_per_h), min(project), min(workload), min(model), sum(seconds), sum(share_pct_sm_seconds),
    sum(memory_mib_seconds), sum(memory_mib_seconds_reserved), sum(energy_j), sum(usd_memory), sum(usd_share),
    sum(usd_whole), sum(usd_energy)
FROM gone GROUP BY hour, device_uuid, kind, subject;
ALTER TABLE device_bill_hours ADD PRIMARY KEY (hour, device_uuid);
ALTER TABLE ledger_hours ADD PRIMARY KEY (hour, device_uuid, kind, subject);
COMMENT ON VIEW idle_by_device_hour IS
    'The bill of each device and hour, and what of it was held by nobody or seen by nobody.';
COMMENT ON COLUMN cost_focus."ListUnitPrice" IS 'Price of the device, US dollars per hour.';
"""

BEFORE = ("0029_close_hours", "0029_hourly_views", "0029_telemetry_views", "0013_cost_views")


def upgrade() -> None:
    """Hours that are closed stay as they are; those that are open are told apart from their first minute on."""
    op.execute(WIDE)
    for name in ("0056_close_hours", "0056_hourly_views"):
        op.execute(definition(name))


def downgrade() -> None:
    """One row again for each device and hour, and for each holder of it."""
    op.execute(NARROW)
    for name in BEFORE:
        op.execute(definition(name))
