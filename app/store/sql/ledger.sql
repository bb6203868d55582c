-- name: lock_accounting
-- One accounts at a time, until its transaction ends.
SELECT pg_advisory_xact_lock(hashtext('headroom_account'))

-- name: marks
-- How far accounting has come.
SELECT name, at FROM accounting_marks

-- name: first_moment
-- Where accounting begins: the first report or bill.
SELECT least(
    (SELECT min(received_at) - INTERVAL '1 minute' FROM report_log), (SELECT min(billed_from) FROM billable_devices), :now)

-- name: save_mark
-- Remembers how far accounting has come.
INSERT INTO accounting_marks VALUES (:name, :at) ON CONFLICT (name) DO UPDATE SET at = excluded.at

-- name: late_minutes
-- Accounted minutes of open hours that reports which came since then cover.
SELECT DISTINCT m.minute
FROM headroom_heard(:seen, :now) h
CROSS JOIN LATERAL generate_series(date_trunc('minute', greatest(h.start_at, :closed)),
    least(h.end_at, :accounted) - INTERVAL '1 microsecond', INTERVAL '1 minute') AS m (minute)
ORDER BY 1

-- name: roll_minutes
-- Makes minutes again from telemetry; answers the number of rows.
SELECT headroom_roll_minutes(:start, :end)

-- name: roll_hours
-- Makes hours again from their minutes; answers the number of rows.
SELECT headroom_roll_hours(:start, :end)

-- name: account_minutes
-- Bills minutes and splits the bills; answers the number of ledger rows.
SELECT headroom_account_minutes(:start, :end)

-- name: close_hours
-- Sums hours into the tables that are kept.
SELECT headroom_close_hours(:start, :end)

-- name: drop_raw
-- Drops accounted telemetry that is old; answers the number of partitions.
SELECT headroom_drop_raw(:now, :days, :hours, :bytes)

-- name: drop_minutes
-- Drops accounted minutes that are old; answers the number of partitions.
SELECT headroom_drop_minutes(:now, :days, :bytes)

-- name: kept_bytes
-- What raw telemetry and the minutes of ledger and bills take on disk.
SELECT coalesce(sum(size) FILTER (WHERE is_raw), 0)::bigint AS raw,
       coalesce(sum(size) FILTER (WHERE NOT is_raw), 0)::bigint AS minutes
FROM (
    SELECT parent NOT IN ('ledger', 'device_bills') AS is_raw, pg_total_relation_size(part) AS size
    FROM unnest(ARRAY['device_samples', 'replica_samples', 'rate_samples', 'report_log', 'ledger', 'device_bills']) AS parent,
        headroom_partitions(parent)
) AS parts

-- name: cost_report
-- What was spent by service, project, device, node, GPU type, hour or day, by one of the three accountings.
WITH entries AS (
    SELECT CASE CAST(:by AS text)
            WHEN 'service' THEN CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE workload END
            WHEN 'project' THEN CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE project END
            WHEN 'device' THEN device_uuid
            WHEN 'node' THEN node_id
            WHEN 'gpu_type' THEN gpu_type
            WHEN 'hour' THEN to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"')
            WHEN 'day' THEN to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD') END AS key,
        CASE CAST(:accounting AS text) WHEN 'memory' THEN usd_memory WHEN 'share' THEN usd_share
            WHEN 'whole' THEN usd_whole END AS usd,
        kind, subject, usd_energy, seconds, share_pct_sm_seconds, memory_mib_seconds, energy_j
    FROM ledger_hourly
    WHERE hour >= :start AND hour < :end AND (CAST(:project AS text) IS NULL OR project = :project)
)
SELECT key, sum(usd) AS usd,
    coalesce(sum(usd) FILTER (WHERE kind = 'idle'), 0) AS usd_idle,
    coalesce(sum(usd) FILTER (WHERE kind = 'unobserved'), 0) AS usd_unobserved,
    sum(usd_energy) AS usd_energy,
    coalesce(sum(seconds) FILTER (WHERE subject <> ''), 0) / 3600 AS held_h,
    coalesce(sum(share_pct_sm_seconds) FILTER (WHERE subject <> ''), 0) / 360000 AS share_gpu_h,
    coalesce(sum(memory_mib_seconds) FILTER (WHERE subject <> ''), 0) / 3686400 AS memory_gib_h,
    sum(energy_j) / 3600000 AS energy_kwh
FROM entries
GROUP BY key
ORDER BY CASE WHEN CAST(:by AS text) NOT IN ('hour', 'day') THEN sum(usd) END DESC, key
