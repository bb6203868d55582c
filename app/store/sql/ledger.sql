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

-- name: devices_billed
-- How many devices are billed now.
SELECT count(*) FROM devices WHERE billed_until IS NULL

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
    FROM unnest(ARRAY['sample_shapes', 'node_samples', 'device_sample_rows', 'replica_sample_rows', 'rate_samples', 'report_log',
        'ledger', 'device_bills']) AS parent,
        headroom_partitions(parent)
) AS parts

-- name: minutes_since
-- The hour from which on minutes are kept by themselves; NULL where none has been dropped.
WITH kept AS (SELECT date_trunc('hour', min(minute), 'UTC') AS hour FROM ledger)
SELECT CASE WHEN EXISTS (SELECT FROM ledger_hours WHERE hour < coalesce((SELECT hour FROM kept), 'infinity'))
    THEN coalesce(hour, now() + INTERVAL '100 years') END
FROM kept

-- name: cost_report
-- What was spent by service, project, device, node, GPU type, model, value of a label, hour, day or month, by one of the
-- three accountings: whole hours, and the minutes before the first and after the last of them.
WITH spent AS (
    SELECT hour, device_uuid, kind, subject, node_id, gpu_type, project, workload, model, seconds, share_pct_sm_seconds,
        memory_mib_seconds, energy_j, usd_memory, usd_share, usd_whole, usd_energy
    FROM ledger_hourly
    WHERE hour >= :start AND hour < :whole
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC'), device_uuid, kind, subject, node_id, gpu_type, project, workload, model, seconds,
        share_pct_sm_seconds, memory_mib_seconds, energy_j, usd_memory, usd_share, usd_whole, usd_energy
    FROM ledger
    WHERE minute >= :start AND minute < :end
        AND (date_trunc('hour', minute, 'UTC') < :start OR minute >= :whole)
), entries AS (
    SELECT CASE
            WHEN CAST(:by AS text) IN ('service', 'project', 'model', 'label') AND spent.kind IN ('idle', 'unobserved')
                THEN '(' || spent.kind || ')'
            ELSE CASE CAST(:by AS text)
                WHEN 'service' THEN workload
                WHEN 'project' THEN project
                WHEN 'model' THEN coalesce(nullif(model, ''), '(none)')
                WHEN 'label' THEN coalesce(own.value, shared.value, '(none)')
                WHEN 'device' THEN device_uuid
                WHEN 'node' THEN node_id
                WHEN 'gpu_type' THEN gpu_type
                WHEN 'hour' THEN to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"')
                WHEN 'day' THEN to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD')
                WHEN 'month' THEN to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM') END END AS key,
        CASE CAST(:accounting AS text) WHEN 'memory' THEN usd_memory WHEN 'share' THEN usd_share
            WHEN 'whole' THEN usd_whole END AS usd,
        spent.kind, spent.subject, usd_energy, seconds, share_pct_sm_seconds, memory_mib_seconds, energy_j
    FROM spent
    LEFT JOIN workload_labels AS own ON own.subject = spent.workload AND own.key = CAST(:label AS text)
        AND own.kind = CASE spent.kind WHEN 'replica' THEN 'service' ELSE spent.kind END
    LEFT JOIN workload_labels AS shared
        ON shared.kind = 'project' AND shared.subject = spent.project AND shared.key = CAST(:label AS text)
    WHERE CAST(:project AS text) IS NULL OR project = :project
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
ORDER BY CASE WHEN CAST(:by AS text) NOT IN ('hour', 'day', 'month') THEN sum(usd) END DESC, key

-- name: focus
-- The columns and rows of the FOCUS view for a span of hours, of one project or of all, as the database writes CSV; and up to
-- when it is accounted, without which an hour that is not whole yet looks cheap.
SELECT cost_focus.*, (SELECT at FROM accounting_marks WHERE name = 'accounted_until') AS "x_AccountedUntil" FROM cost_focus
WHERE "ChargePeriodStart" >= :start AND "ChargePeriodStart" < :end
    AND (CAST(:project AS text) IS NULL OR "SubAccountId" = :project)
ORDER BY "ChargePeriodStart", "ResourceId", "x_LedgerKind", "ResourceName"

-- name: held_spans
-- Who held these devices, from when to when: minutes, or hours where those are closed and the span is longer than a day,
-- put together where nothing differs.
WITH span AS (
    SELECT CAST(:start AS timestamptz) AS start, CAST(:end AS timestamptz) AS until,
        CASE WHEN CAST(:end AS timestamptz) - :start <= INTERVAL '1 day' THEN CAST(:start AS timestamptz)
            ELSE greatest(:start, (SELECT at FROM accounting_marks WHERE name = 'closed_until')) END AS fine
), held AS (
    SELECT moment AS at, INTERVAL '1 hour' AS lasts, entry.*
    FROM span, generate_series(date_trunc('hour', start), fine - INTERVAL '1 hour', '1 hour') AS moment,
        unnest(CAST(:uuids AS text[])) AS uuid, LATERAL (
            SELECT device_uuid, kind, subject, workload, sum(share_pct_sm_seconds) AS share_pct_sm_seconds,
                sum(seconds) AS seconds
            FROM ledger_hours WHERE hour = moment AND device_uuid = uuid AND subject <> ''
            GROUP BY device_uuid, kind, subject, workload) AS entry
    UNION ALL
    SELECT moment, INTERVAL '1 minute', entry.*
    FROM span, generate_series(date_trunc('minute', fine), until, '1 minute') AS moment,
        unnest(CAST(:uuids AS text[])) AS uuid, LATERAL (
            SELECT device_uuid, kind, subject, workload, share_pct_sm_seconds, seconds FROM ledger
            WHERE minute = moment AND device_uuid = uuid AND subject <> '') AS entry
), sized AS (
    SELECT at, lasts, device_uuid, kind, subject, workload,
        round(share_pct_sm_seconds / nullif(seconds, 0))::integer AS share_pct_sm
    FROM held
), begun AS (
    SELECT *, (lag(at + lasts) OVER mine = at AND lag(share_pct_sm) OVER mine = share_pct_sm) IS NOT TRUE AS begins
    FROM sized WINDOW mine AS (PARTITION BY device_uuid, kind, subject ORDER BY at)
), counted AS (
    SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY device_uuid, kind, subject ORDER BY at) AS run FROM begun
)
SELECT device_uuid, kind, subject, workload, share_pct_sm, min(at) AS start, max(at + lasts) AS until
FROM counted GROUP BY device_uuid, kind, subject, workload, share_pct_sm, run
ORDER BY start, device_uuid, subject
