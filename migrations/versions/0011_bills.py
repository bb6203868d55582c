"""Create the tables of the ledger and the bill of every device and minute that it must sum to.

Revision ID: 0011
Revises: 0010
"""

from alembic import op

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

# A device deleted a moment ago still owes its last minutes, at the prices it had. Deleting a node cascades to its
# devices after the node's row is gone, so both tables are watched.
RETIRE = """
CREATE FUNCTION headroom_retire() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO retired_devices
    SELECT d.uuid, d.node_id, d.gpu_type, d.spec, n.spec, t.spec,
        d.billed_from, least(coalesce(d.billed_until, now()), now())
    FROM devices d JOIN nodes n ON n.id = d.node_id JOIN gpu_types t ON t.name = d.gpu_type
    WHERE d.billed_from < now()
        AND CASE TG_TABLE_NAME WHEN 'nodes' THEN to_jsonb(OLD) ->> 'id' = d.node_id
            ELSE to_jsonb(OLD) ->> 'uuid' = d.uuid END
    ON CONFLICT DO NOTHING;
    RETURN OLD;
END
$body$;
CREATE TRIGGER devices_retire BEFORE DELETE ON devices FOR EACH ROW EXECUTE FUNCTION headroom_retire();
CREATE TRIGGER nodes_retire BEFORE DELETE ON nodes FOR EACH ROW EXECUTE FUNCTION headroom_retire();

CREATE VIEW billable_devices AS
    SELECT d.uuid, d.node_id, d.gpu_type, d.spec, n.spec AS node_spec, t.spec AS type_spec, d.billed_from,
        d.billed_until, true AS live
    FROM devices d JOIN nodes n ON n.id = d.node_id JOIN gpu_types t ON t.name = d.gpu_type
    UNION ALL
    SELECT uuid, node_id, gpu_type, spec, node_spec, type_spec, billed_from, billed_until, false FROM retired_devices;
"""

# Attaching takes a lock that readers do not notice, unlike CREATE TABLE … PARTITION OF.
PARTITIONS = """
CREATE FUNCTION headroom_ensure_ledger_partitions(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_parent text;
    v_day timestamptz;
    v_part text;
    v_made integer = 0;
BEGIN
    FOREACH v_parent IN ARRAY ARRAY['ledger', 'device_bills'] LOOP
        FOR v_day IN
            SELECT generate_series(date_trunc('day', p_from), p_to - INTERVAL '1 microsecond', INTERVAL '1 day')
        LOOP
            v_part = v_parent || '_p' || to_char(v_day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass(v_part) IS NOT NULL;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', v_part, v_parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', v_parent, v_part, v_day,
                           v_day + INTERVAL '1 day');
            v_made = v_made + 1;
        END LOOP;
    END LOOP;
    RETURN v_made;
END
$body$;
"""

# The bill: seconds billed in the minute times the price. A MIG slice costs its share of the type's memory; its parent,
# when it is listed too, costs what no slice covers, so a cut GPU costs no more than a whole one. No price row: the bill
# is 0 and list_usd_per_h stays NULL to say so. A minute billed before keeps its price unless told otherwise.
BILL_MINUTES = """
CREATE FUNCTION headroom_bill_minutes(p_from timestamptz, p_to timestamptz, p_reprice boolean) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    WITH known AS MATERIALIZED (
        SELECT uuid, node_id, gpu_type, live, billed_from, coalesce(billed_until, 'infinity') AS billed_until,
            coalesce(node_spec ->> 'region', 'default') AS region,
            coalesce(node_spec ->> 'price_kind', 'on_demand') AS price_kind,
            coalesce(type_spec -> 'prices', '[]') AS prices, (spec ->> 'memory_mib')::numeric AS memory_mib,
            spec #>> '{mig,parent}' AS parent,
            CASE WHEN spec #>> '{mig,parent}' IS NULL THEN 1
                 ELSE least(1, (spec ->> 'memory_mib')::numeric / (type_spec ->> 'memory_mib')::numeric) END AS fraction
        FROM billable_devices
        WHERE billed_from < p_to AND coalesce(billed_until, 'infinity') > greatest(p_from, billed_from)
    ),
    listed AS MATERIALIZED (
        SELECT k.*, (
            SELECT (price ->> 'usd_per_h')::numeric FROM jsonb_array_elements(k.prices) AS price
            WHERE price ->> 'kind' = k.price_kind AND coalesce(price ->> 'region', 'default') IN (k.region, 'default')
            ORDER BY coalesce(price ->> 'region', 'default') = k.region DESC LIMIT 1) AS list_usd_per_h
        FROM known k
    ),
    billed AS MATERIALIZED (
        SELECT DISTINCT ON (m.minute, l.uuid) m.minute, l.*, greatest(l.billed_from, m.minute) AS from_at,
            least(l.billed_until, m.minute + INTERVAL '1 minute') AS until_at,
            extract(epoch FROM least(l.billed_until, m.minute + INTERVAL '1 minute')
                - greatest(l.billed_from, m.minute)) AS seconds
        FROM generate_series(p_from, p_to - INTERVAL '1 minute', INTERVAL '1 minute') AS m (minute)
        JOIN listed l ON l.billed_from < m.minute + INTERVAL '1 minute' AND l.billed_until > m.minute
        ORDER BY m.minute, l.uuid, l.live DESC, l.billed_from DESC
    ),
    sliced AS (
        SELECT minute, parent, sum(fraction * seconds) AS seconds
        FROM billed WHERE parent IS NOT NULL GROUP BY minute, parent
    ),
    rated AS (
        SELECT b.minute, b.from_at, b.until_at, b.uuid, b.node_id, b.gpu_type, b.memory_mib, b.seconds,
            CASE WHEN s.seconds IS NULL THEN b.fraction
                 ELSE greatest(0, b.seconds - s.seconds) / b.seconds END AS fraction,
            CASE WHEN kept THEN old.region ELSE b.region END AS region,
            CASE WHEN kept THEN old.price_kind ELSE b.price_kind END AS price_kind,
            CASE WHEN kept THEN old.list_usd_per_h ELSE b.list_usd_per_h END AS list_usd_per_h
        FROM billed b
        LEFT JOIN sliced s ON s.minute = b.minute AND s.parent = b.uuid
        LEFT JOIN device_bills old ON old.minute = b.minute AND old.device_uuid = b.uuid
        CROSS JOIN LATERAL (SELECT old.minute IS NOT NULL AND NOT p_reprice AS kept) AS choice
    )
    INSERT INTO device_bills AS bill (minute, from_at, until_at, device_uuid, node_id, gpu_type, region, price_kind,
        list_usd_per_h, fraction, price_usd_per_h, memory_mib, seconds, usd)
    SELECT minute, from_at, until_at, uuid, node_id, gpu_type, region, price_kind, list_usd_per_h, round(fraction, 12),
        round(coalesce(list_usd_per_h, 0) * fraction, 12), memory_mib, seconds,
        round(round(coalesce(list_usd_per_h, 0) * fraction, 12) * seconds / 3600, 12)
    FROM rated
    ON CONFLICT (minute, device_uuid) DO UPDATE SET from_at = excluded.from_at, until_at = excluded.until_at,
        node_id = excluded.node_id, gpu_type = excluded.gpu_type, region = excluded.region,
        price_kind = excluded.price_kind, list_usd_per_h = excluded.list_usd_per_h,
        fraction = excluded.fraction, price_usd_per_h = excluded.price_usd_per_h,
        memory_mib = excluded.memory_mib, seconds = excluded.seconds, usd = excluded.usd;
    GET DIAGNOSTICS v_rows = ROW_COUNT;

    DELETE FROM device_bills b USING billable_devices d
    WHERE b.minute >= p_from AND b.minute < p_to AND d.uuid = b.device_uuid AND NOT EXISTS (
        SELECT FROM billable_devices w WHERE w.uuid = b.device_uuid AND w.billed_from < b.minute + INTERVAL '1 minute'
            AND coalesce(w.billed_until, 'infinity') > greatest(b.minute, w.billed_from));
    RETURN v_rows;
END
$body$;
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
    for statement in (TABLES, RETIRE, PARTITIONS, BILL_MINUTES):
        op.execute(statement)


def downgrade() -> None:
    """Drop them with all they hold."""
    op.execute(DOWNGRADE)
