-- name: device_series
-- A device's readings in the steps of a window; steps without a report are left out. Steps that begin before what is
-- kept of samples are made of minutes.
WITH kept AS (
    SELECT greatest(CAST(:since AS timestamptz), :since
        + ceil(extract(epoch FROM max(at) - :since) / :step_s) * make_interval(secs => :step_s)) AS since
    FROM accounting_marks WHERE name = 'raw_kept_from'
), readings AS (
    SELECT received_at AS at, interval_s, power_w, energy_j, utilisation_pct, memory_mib_used,
           clock_mhz_sm::float8 AS clock_mhz_sm, share_pct_sm_total::float8 AS share_pct_sm_total, temperature_c, healthy
    FROM device_samples
    WHERE uuid = :uuid AND received_at >= (SELECT since FROM kept) AND received_at < :until
        AND node_id = ANY (ARRAY(SELECT node_id FROM sample_shapes WHERE device_uuid @> ARRAY[CAST(:uuid AS text)]
            UNION SELECT node_id FROM device_sample_rows WHERE uuid = :uuid))
    UNION ALL
    SELECT minute, observed_s, power_w_mean, energy_j, utilisation_pct_mean, memory_mib_used_mean, clock_mhz_sm_mean,
           share_pct_sm_mean, temperature_c_max, unhealthy_s = 0
    FROM device_minutes
    WHERE device_uuid = :uuid AND minute >= :since AND minute < least(:until, (SELECT since FROM kept))
)
SELECT date_bin(make_interval(secs => :step_s), at, :since) AS at,
       coalesce(sum(energy_j) / nullif(sum(interval_s), 0), avg(power_w)) AS power_w, sum(energy_j) AS energy_j,
       avg(utilisation_pct) AS utilisation_pct, avg(memory_mib_used) AS memory_mib_used,
       avg(clock_mhz_sm) AS clock_mhz_sm, avg(share_pct_sm_total) AS share_pct_sm_total,
       max(temperature_c) AS temperature_c, bool_and(healthy) AS healthy
FROM readings GROUP BY 1 ORDER BY 1

-- name: service_series
-- A workload's offered and served load in the steps of a window. Replica rates are summed over replicas: what each
-- counted, over the step's share that it reported on. Of a service, steps that begin before what is kept of samples
-- are made of minutes. Dollars are the ledger's: of minutes in a window of two hours, else of hours.
WITH kept AS (
    SELECT greatest(CAST(:since AS timestamptz), :since
        + ceil(extract(epoch FROM max(at) - :since) / :step_s) * make_interval(secs => :step_s)) AS since
    FROM accounting_marks WHERE name = 'raw_kept_from'
), samples AS (
    SELECT s.received_at, s.interval_s, unnest(h.replica_name) AS replica, unnest(h.replica_workload) AS workload,
           unnest(h.replica_share_pct_sm) AS share_pct_sm, unnest(s.replica_arrived) AS arrived,
           unnest(s.replica_completed) AS completed, unnest(s.replica_dropped) AS dropped,
           unnest(s.replica_violated) AS violated, unnest(s.replica_queue_length) AS queue_length,
           unnest(s.replica_energy_j) AS energy_j, unnest(s.replica_latency_ms_p50) AS latency_ms_p50,
           unnest(s.replica_latency_ms_p99) AS latency_ms_p99
    FROM sample_shapes h
    JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape AND s.node_id = h.node_id
    WHERE h.replica_workload @> ARRAY[CAST(:service AS text)] AND s.received_at >= (SELECT since FROM kept)
        AND s.received_at < :until AND s.interval_s > 0
    UNION ALL
    SELECT received_at, interval_s, replica, workload, share_pct_sm, arrived, completed, dropped, violated, queue_length,
           energy_j, latency_ms_p50, latency_ms_p99
    FROM replica_sample_rows
    WHERE workload = :service AND received_at >= (SELECT since FROM kept) AND received_at < :until AND interval_s > 0
), per_replica AS (
    SELECT date_bin(make_interval(secs => :step_s), received_at, :since) AS at, replica,
           sum(interval_s) AS covered_s, sum(arrived) AS arrived, sum(completed) AS completed, sum(dropped) AS dropped,
           sum(violated) AS violated, avg(queue_length) AS queue_length, avg(share_pct_sm) AS share_pct_sm,
           sum(energy_j) AS energy_j, max(latency_ms_p99) AS latency_ms_p99,
           sum(latency_ms_p50 * completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weighted,
           sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weight
    FROM samples WHERE workload = :service
    GROUP BY 1, 2
), paid AS (
    SELECT minute AS at, INTERVAL '1 minute' AS lasts, 60 * sum(usd_share) AS usd_per_h FROM ledger
    WHERE workload = :service AND kind = 'replica' AND minute >= date_trunc('minute', CAST(:since AS timestamptz))
        AND minute < :until AND CAST(:until AS timestamptz) - :since <= INTERVAL '2 hours'
    GROUP BY minute
    UNION ALL
    SELECT hour, INTERVAL '1 hour', sum(usd_share) / least(1, extract(epoch FROM accounted.at - hour) / 3600)
    FROM ledger_hourly CROSS JOIN (SELECT at FROM accounting_marks WHERE name = 'accounted_until') AS accounted
    WHERE workload = :service AND kind = 'replica' AND hour >= date_trunc('hour', CAST(:since AS timestamptz))
        AND hour < :until AND CAST(:until AS timestamptz) - :since > INTERVAL '2 hours' AND accounted.at > hour
    GROUP BY hour, accounted.at
), served AS (
    SELECT at, sum(arrived / covered_s) AS arrived_rps, sum(completed / covered_s) AS completed_rps,
           sum(dropped / covered_s) AS dropped_rps, sum(violated) / nullif(sum(completed), 0) AS violation_fraction,
           sum(p50_weighted) / nullif(sum(p50_weight), 0) AS latency_ms_p50, max(latency_ms_p99) AS latency_ms_p99,
           sum(queue_length) AS queue_length, count(*) AS replicas, sum(share_pct_sm)::float8 AS share_pct_sm,
           sum(energy_j) AS energy_j, sum(completed) AS completed, sum(completed - violated) AS kept,
           sum(dropped) AS dropped
    FROM per_replica GROUP BY at
), per_gateway AS (
    SELECT date_bin(make_interval(secs => :step_s), received_at, :since) AS at, gateway,
           sum(arrived) / sum(interval_s) AS offered_rps, sum(unrouted) / sum(interval_s) AS unrouted_rps,
           sum(unrouted) AS unrouted
    FROM rate_samples
    WHERE service = :service AND received_at >= (SELECT since FROM kept) AND received_at < :until AND interval_s > 0
    GROUP BY 1, 2
), offered AS (
    SELECT at, sum(offered_rps) AS offered_rps, sum(unrouted_rps) AS unrouted_rps, sum(unrouted) AS unrouted
    FROM per_gateway GROUP BY at
), steps AS (
    SELECT at, offered_rps, unrouted_rps, arrived_rps, completed_rps, dropped_rps, violation_fraction, latency_ms_p50,
           latency_ms_p99, queue_length, coalesce(replicas, 0) AS replicas, share_pct_sm, energy_j,
           kept, coalesce(completed, 0) + coalesce(dropped, 0) + coalesce(unrouted, 0) AS asked, completed
    FROM served FULL JOIN offered USING (at)
    UNION ALL
    SELECT date_bin(make_interval(secs => :step_s), minute, :since), avg(offered) / 60,
           CASE WHEN count(offered) > 0 THEN avg(unrouted) / 60 END, avg(arrived) / 60, avg(completed) / 60,
           avg(dropped) / 60, sum(violated) / nullif(sum(completed), 0),
           sum(latency_ms_p50 * completed) / nullif(sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL), 0),
           max(latency_ms_p99_max), avg(queue_length_mean), round(avg(replicas_mean))::bigint, avg(share_pct_sm_mean),
           sum(energy_j), sum(completed - violated),
           sum(coalesce(completed, 0) + coalesce(dropped, 0) + coalesce(unrouted, 0)), sum(completed)
    FROM service_minutes
    WHERE service = :service AND minute >= :since AND minute < least(:until, (SELECT since FROM kept))
    GROUP BY 1
)
SELECT at, offered_rps, unrouted_rps, arrived_rps, completed_rps, dropped_rps, violation_fraction,
       CASE WHEN asked > 0 THEN greatest(0, least(1, coalesce(kept, 0) / asked)) END AS slo_attainment, latency_ms_p50, latency_ms_p99,
       queue_length, replicas, share_pct_sm, energy_j, energy_j / nullif(completed, 0) AS energy_j_per_request,
       CAST((SELECT avg(usd_per_h) FROM paid
           WHERE paid.at > steps.at - paid.lasts AND paid.at < steps.at + make_interval(secs => :step_s)) AS float8) AS usd_per_h
FROM steps ORDER BY at

-- name: ensure_partitions
-- Makes the missing partitions of a table of telemetry; answers how many.
SELECT headroom_ensure_partitions(:days, :parent)
