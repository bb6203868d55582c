"""Create the accounting itself: who held what in each minute, what that costs by three accountings, and the closing of
hours.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

OPEN = "minute >= coalesce((SELECT at FROM accounting_marks WHERE name = 'closed_until'), '-infinity')"

BILLS_BY_HOUR = """
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, min(node_id) AS node_id, min(gpu_type) AS gpu_type,
        min(region) AS region, min(price_kind) AS price_kind,
        max(list_usd_per_h) AS list_usd_per_h, max(fraction) AS fraction,
        round(sum(price_usd_per_h * seconds) / sum(seconds), 12) AS price_usd_per_h, max(memory_mib) AS memory_mib,
        sum(seconds) AS seconds, sum(observed_s) AS observed_s, sum(energy_j) AS energy_j, sum(usd) AS usd,
        sum(usd_energy) AS usd_energy
    FROM device_bills WHERE {condition} GROUP BY 1, device_uuid"""

LEDGER_BY_HOUR = """
    SELECT date_trunc('hour', minute, 'UTC') AS hour, device_uuid, kind, subject, min(node_id) AS node_id,
        min(gpu_type) AS gpu_type, min(region) AS region, min(price_kind) AS price_kind,
        max(price_usd_per_h) AS price_usd_per_h,
        min(project) AS project, min(workload) AS workload, min(model) AS model, sum(seconds) AS seconds,
        sum(share_pct_sm_seconds) AS share_pct_sm_seconds, sum(memory_mib_seconds) AS memory_mib_seconds,
        sum(memory_mib_seconds_reserved) AS memory_mib_seconds_reserved,
        sum(energy_j) AS energy_j, sum(usd_memory) AS usd_memory,
        sum(usd_share) AS usd_share, sum(usd_whole) AS usd_whole, sum(usd_energy) AS usd_energy
    FROM ledger WHERE {condition} GROUP BY 1, device_uuid, kind, subject"""

# Who held what in each minute. A device is observed while its own node reports it; the parts of reports used here never
# overlap, so neither repeats nor restarts can claim a second twice. The whole GPU of each instant is split among those
# who hold any of it, by share. `headroom_readings` answers in seconds and joules only; money comes after.
READINGS = """
CREATE FUNCTION headroom_readings(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (minute timestamptz, device_uuid text, span_no bigint, source text, boot_id text, sequence bigint,
               received_at timestamptz, span_s numeric, seconds numeric, energy_j numeric)
LANGUAGE sql STABLE ROWS 20000 SET timezone = 'UTC' SET enable_nestloop = off SET jit = off AS $body$
    WITH pieces AS MATERIALIZED (
        SELECT s.*, m.minute, extract(epoch FROM s.end_at - s.start_at) AS span_s
        FROM headroom_report_spans(p_from, p_to) s
        CROSS JOIN LATERAL generate_series(date_trunc('minute', greatest(s.free_at, p_from)),
            least(s.end_at, p_to) - INTERVAL '1 microsecond', INTERVAL '1 minute') AS m (minute)
        WHERE s.free_at < s.end_at
    ),
    samples AS MATERIALIZED (
        -- Kept apart, so that pieces meet their own samples before they meet the bills of their minute.
        SELECT DISTINCT ON (p.span_no, p.minute, d.uuid)
            p.*, d.uuid, d.node_id, greatest(0, d.energy_j)::numeric AS joules
        FROM pieces p
        JOIN device_samples d ON d.received_at = p.received_at AND 'node/' || d.node_id = p.source
            AND d.boot_id = p.boot_id AND d.sequence = p.sequence
        WHERE d.received_at >= p_from AND d.received_at < p_to + INTERVAL '75 minutes'
        ORDER BY p.span_no, p.minute, d.uuid, d.energy_j
    )
    SELECT s.minute, s.uuid, s.span_no, s.source, s.boot_id, s.sequence, s.received_at, s.span_s, x.seconds,
        s.joules * x.seconds / s.span_s
    FROM samples s
    JOIN device_bills b ON b.minute = s.minute AND b.device_uuid = s.uuid AND b.node_id = s.node_id
    CROSS JOIN LATERAL (
        SELECT extract(epoch FROM least(s.end_at, b.until_at) - greatest(s.free_at, b.from_at)) AS seconds) AS x
    WHERE b.minute >= p_from AND b.minute < p_to AND x.seconds > 0
$body$;
"""

# Every amount is cut down to twelve decimals, so no accounting can exceed the bill; the rest goes to the idle row where
# something idled, else to the largest holder. `full_*` is what there was to hold, never less than what was claimed,
# which scales claims down to the device.
WRITE_LEDGER = """
CREATE FUNCTION headroom_write_ledger(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET enable_nestloop = off SET jit = off AS $body$
DECLARE
    v_usd_per_j numeric;
    v_rows integer;
BEGIN
    SELECT coalesce((SELECT (spec ->> 'energy_usd_per_kwh')::numeric * (spec ->> 'power_usage_effectiveness')::numeric
                     FROM policies WHERE name = 'default'), 0.12 * 1.3) / 3600000 INTO v_usd_per_j;
    DELETE FROM ledger WHERE minute >= p_from AND minute < p_to;

    WITH readings AS MATERIALIZED (SELECT * FROM headroom_readings(p_from, p_to)),
    claims AS (
        SELECT r.minute, r.device_uuid, r.span_no, r.seconds, s.replica, s.project, s.workload, s.model,
            CASE s.kind WHEN 'job' THEN 'job' WHEN 'task' THEN 'task' ELSE 'replica' END AS kind,
            least(100, greatest(0, s.share_pct_sm)) AS share_pct, greatest(0, s.memory_mib_used)::numeric AS memory_mib,
            greatest(0, s.memory_mib_limit) AS reserved_mib,
            CASE WHEN s.held_s > 0 AND s.held_s > s.interval_s - 0.01 THEN 1
                 ELSE greatest(0, s.held_s)::numeric / s.interval_s::numeric END AS held,
            greatest(0, s.energy_j)::numeric * r.seconds / r.span_s AS energy_j
        FROM readings r
        JOIN replica_samples s ON s.received_at = r.received_at AND 'node/' || s.node_id = r.source
            AND s.boot_id = r.boot_id AND s.sequence = r.sequence AND s.uuid = r.device_uuid
        WHERE s.received_at >= p_from AND s.received_at < p_to + INTERVAL '75 minutes'
    ),
    weighed AS (
        -- A holder without a share (plain time slicing) still weighs a little, so that somebody pays for the GPU.
        SELECT c.*, greatest(share_pct, 0.001) * held AS weight,
            sum(greatest(share_pct, 0.001) * held) OVER instant AS weight_total, max(held) OVER instant AS held_any
        FROM claims c WINDOW instant AS (PARTITION BY minute, device_uuid, span_no)
    ),
    holders AS (
        SELECT minute, device_uuid, kind, replica AS subject, min(project) AS project, min(workload) AS workload,
            min(model) AS model, sum(seconds * held) AS held_s,
            sum(seconds * held * share_pct) AS share_s, sum(seconds * held * memory_mib) AS memory_s,
            sum(seconds * held * reserved_mib) AS reserved_s, sum(energy_j) AS energy_j,
            sum(CASE WHEN weight_total > 0 THEN seconds * held_any * weight / weight_total ELSE 0 END) AS whole_s
        FROM weighed GROUP BY minute, device_uuid, kind, replica
    ),
    held AS (
        SELECT minute, device_uuid, sum(share_s) AS share_s, sum(memory_s) AS memory_s, sum(whole_s) AS whole_s,
            sum(energy_j) AS energy_j, sum(reserved_s) AS reserved_s
        FROM holders GROUP BY minute, device_uuid
    ),
    observed AS (
        SELECT minute, device_uuid, sum(seconds) AS seconds, sum(energy_j) AS energy_j
        FROM readings GROUP BY minute, device_uuid
    ),
    split AS (
        SELECT b.*, coalesce(o.seconds, 0) AS seen_s, coalesce(o.energy_j, 0) AS joules,
            trunc(b.usd * (b.seconds - coalesce(o.seconds, 0)) / b.seconds, 12) AS usd_unseen,
            CASE WHEN b.price_kind = 'owned' THEN round(coalesce(o.energy_j, 0) * v_usd_per_j, 12)
                 ELSE 0 END AS usd_joules
        FROM device_bills b LEFT JOIN observed o USING (minute, device_uuid)
        WHERE b.minute >= p_from AND b.minute < p_to
    ),
    devices AS MATERIALIZED (
        -- full_*: what there was to hold; never less than what was claimed, so claims beyond the device shrink to it.
        SELECT s.*, s.usd - s.usd_unseen AS usd_seen, h.minute IS NOT NULL AS is_held,
            greatest(100 * s.seen_s, coalesce(h.share_s, 0)) AS full_share,
            greatest(s.memory_mib * s.seen_s, coalesce(h.memory_s, 0)) AS full_memory,
            greatest(s.seen_s, coalesce(h.whole_s, 0)) AS full_whole,
            greatest(s.joules, coalesce(h.energy_j, 0)) AS full_energy,
            greatest(0, 100 * s.seen_s - coalesce(h.share_s, 0)) AS idle_share,
            greatest(0, s.memory_mib * s.seen_s - coalesce(h.memory_s, 0)) AS idle_memory,
            greatest(0, s.memory_mib * s.seen_s - coalesce(h.reserved_s, 0)) AS idle_reserved,
            greatest(0, s.seen_s - coalesce(h.whole_s, 0)) AS idle_whole,
            greatest(0, s.joules - coalesce(h.energy_j, 0)) AS idle_energy
        FROM split s LEFT JOIN held h USING (minute, device_uuid)
    ),
    charged AS (
        SELECT h.*, d.full_share, d.full_memory, d.full_energy, d.memory_mib, d.seen_s, d.joules,
            trunc(d.usd_seen * h.share_s / d.full_share, 12) AS usd_share,
            trunc(d.usd_seen * h.memory_s / d.full_memory, 12) AS usd_memory,
            trunc(d.usd_seen * h.whole_s / d.full_whole, 12) AS usd_whole,
            coalesce(trunc(d.usd_joules * h.energy_j / nullif(d.full_energy, 0), 12), 0) AS usd_energy
        FROM holders h JOIN devices d USING (minute, device_uuid)
    ),
    ranked AS (
        SELECT c.*,
            row_number() OVER (PARTITION BY minute, device_uuid ORDER BY usd_share DESC, subject, kind) AS nth_share,
            row_number() OVER (PARTITION BY minute, device_uuid ORDER BY usd_memory DESC, subject, kind) AS nth_memory,
            row_number() OVER (PARTITION BY minute, device_uuid ORDER BY usd_whole DESC, subject, kind) AS nth_whole,
            row_number() OVER (PARTITION BY minute, device_uuid ORDER BY usd_energy DESC, subject, kind) AS nth_energy
        FROM charged c
    ),
    rests AS MATERIALIZED (
        -- What cutting left over, or what nobody held: to the idle row where something idled, else the largest holder.
        SELECT d.*, d.idle_share > 0.000001 OR NOT d.is_held AS idles_share,
            d.idle_memory > 0.000001 OR NOT d.is_held AS idles_memory,
            d.idle_whole > 0.000001 OR NOT d.is_held AS idles_whole,
            d.idle_energy > 0.01 OR NOT d.is_held AS idles_energy,
            d.usd_seen - coalesce(c.usd_share, 0) AS rest_share, d.usd_seen - coalesce(c.usd_memory, 0) AS rest_memory,
            d.usd_seen - coalesce(c.usd_whole, 0) AS rest_whole, d.usd_joules - coalesce(c.usd_energy, 0) AS rest_energy
        FROM devices d LEFT JOIN (
            SELECT minute, device_uuid, sum(usd_share) AS usd_share, sum(usd_memory) AS usd_memory,
                sum(usd_whole) AS usd_whole, sum(usd_energy) AS usd_energy
            FROM charged GROUP BY minute, device_uuid) c USING (minute, device_uuid)
    ),
    entries AS (
        SELECT c.minute, c.device_uuid, c.kind, c.subject, c.project, c.workload, c.model,
            least(c.held_s, c.seen_s) AS seconds,
            c.share_s * 100 * c.seen_s / c.full_share AS share_s,
            c.memory_s * c.memory_mib * c.seen_s / c.full_memory AS memory_s,
            c.reserved_s, coalesce(c.energy_j * c.joules / nullif(c.full_energy, 0), 0) AS energy_j,
            c.usd_memory
                + CASE WHEN c.nth_memory = 1 AND NOT d.idles_memory THEN d.rest_memory ELSE 0 END AS usd_memory,
            c.usd_share + CASE WHEN c.nth_share = 1 AND NOT d.idles_share THEN d.rest_share ELSE 0 END AS usd_share,
            c.usd_whole + CASE WHEN c.nth_whole = 1 AND NOT d.idles_whole THEN d.rest_whole ELSE 0 END AS usd_whole,
            c.usd_energy + CASE WHEN c.nth_energy = 1 AND NOT d.idles_energy THEN d.rest_energy ELSE 0 END AS usd_energy
        FROM ranked c JOIN rests d USING (minute, device_uuid)
        UNION ALL
        SELECT minute, device_uuid, 'idle', '', '', '', '',
            idle_whole, idle_share, idle_memory, idle_reserved, idle_energy,
            CASE WHEN idles_memory THEN rest_memory ELSE 0 END, CASE WHEN idles_share THEN rest_share ELSE 0 END,
            CASE WHEN idles_whole THEN rest_whole ELSE 0 END, CASE WHEN idles_energy THEN rest_energy ELSE 0 END
        FROM rests WHERE seen_s > 0 AND (idles_share OR idles_memory OR idles_whole OR idles_energy)
        UNION ALL
        SELECT minute, device_uuid, 'unobserved', '', '', '', '', seconds - seen_s, 100 * (seconds - seen_s),
            memory_mib * (seconds - seen_s), 0, 0, usd_unseen, usd_unseen, usd_unseen, 0
        FROM rests WHERE seconds > seen_s
    ),
    noted AS (
        UPDATE device_bills b SET observed_s = r.seen_s, energy_j = round(r.joules, 6), usd_energy = r.usd_joules
        FROM rests r
        WHERE b.minute = r.minute AND b.device_uuid = r.device_uuid AND b.minute >= p_from AND b.minute < p_to
    )
    INSERT INTO ledger
    SELECT e.minute, e.device_uuid, e.kind, e.subject, b.node_id, b.gpu_type, b.region, b.price_kind,
        b.price_usd_per_h, e.project, e.workload, e.model,
        round(e.seconds, 6), round(e.share_s, 6), round(e.memory_s, 6), round(e.reserved_s, 6), round(e.energy_j, 6),
        e.usd_memory, e.usd_share, e.usd_whole, e.usd_energy
    FROM entries e JOIN rests b USING (minute, device_uuid);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
"""

# A closed hour is summed once into the hourly tables, which are kept when its minutes are dropped.
CLOSE_HOURS = f"""
CREATE FUNCTION headroom_close_hours(p_from timestamptz, p_to timestamptz) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' SET jit = off AS $body$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM device_bill_hours WHERE hour >= p_from AND hour < p_to;
    DELETE FROM ledger_hours WHERE hour >= p_from AND hour < p_to;
    INSERT INTO device_bill_hours {BILLS_BY_HOUR.format(condition="minute >= p_from AND minute < p_to")};
    INSERT INTO ledger_hours {LEDGER_BY_HOUR.format(condition="minute >= p_from AND minute < p_to")};
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END
$body$;
"""

ACCOUNT_MINUTES = """
CREATE FUNCTION headroom_account_minutes(
    p_from timestamptz, p_to timestamptz, p_force boolean DEFAULT false, p_reprice boolean DEFAULT false
) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $body$
DECLARE
    v_from timestamptz = date_trunc('minute', p_from);
    v_to timestamptz = date_trunc('minute', p_to);
    v_closed timestamptz;
    v_rows integer;
BEGIN
    IF v_from >= v_to THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('headroom_account'));
    IF EXISTS (SELECT FROM accounting_marks WHERE name IN ('raw_kept_from', 'minutes_kept_from') AND at > v_from) THEN
        RAISE EXCEPTION 'the telemetry of % has been dropped; its ledger stays as it is', v_from
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT at INTO v_closed FROM accounting_marks WHERE name = 'closed_until';
    IF v_from < v_closed AND NOT p_force THEN
        RAISE EXCEPTION 'the hour of % is closed; account it again explicitly with p_force => true', v_from
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM headroom_ensure_ledger_partitions(v_from, v_to);
    PERFORM headroom_bill_minutes(v_from, v_to, p_reprice);
    v_rows = headroom_write_ledger(v_from, v_to);
    IF v_from < v_closed THEN
        PERFORM headroom_close_hours(
            date_trunc('hour', v_from), least(v_closed, date_trunc('hour', v_to + INTERVAL '59 minutes')));
    END IF;
    RETURN v_rows;
END
$body$;
"""

# One row per hour whether it is closed (from the hourly tables) or still open (summed from its minutes).
HOURLY_VIEWS = f"""
CREATE VIEW device_bills_hourly AS
    SELECT * FROM device_bill_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL {BILLS_BY_HOUR.format(condition=OPEN)};
CREATE VIEW ledger_hourly AS
    SELECT * FROM ledger_hours WHERE hour < (SELECT at FROM accounting_marks WHERE name = 'closed_until')
    UNION ALL {LEDGER_BY_HOUR.format(condition=OPEN)};
"""

DOWNGRADE = """
DROP VIEW ledger_hourly, device_bills_hourly;
DROP FUNCTION headroom_account_minutes(timestamptz, timestamptz, boolean, boolean),
    headroom_close_hours(timestamptz, timestamptz), headroom_write_ledger(timestamptz, timestamptz),
    headroom_readings(timestamptz, timestamptz);
"""


def upgrade() -> None:
    """Make the functions and the hourly views."""
    for statement in (READINGS, WRITE_LEDGER, CLOSE_HOURS, ACCOUNT_MINUTES, HOURLY_VIEWS):
        op.execute(statement)


def downgrade() -> None:
    """Drop them; the ledger stays."""
    op.execute(DOWNGRADE)
