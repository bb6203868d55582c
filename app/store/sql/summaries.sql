-- name: fleet_counts
-- The fleet and its plan in numbers, one row. Up to 64 measurements are learned before the next answer.
WITH standing AS (
    SELECT state.generation, coalesce(state.seen_usd_per_h, plan.cost_usd_per_h) AS cost_usd_per_h,
           coalesce(state.seen_bound_usd_per_h, plan.bound_usd_per_h) AS bound_usd_per_h,
           jsonb_array_length(plan.document -> 'assignments') AS planned
    FROM cluster_state AS state LEFT JOIN plans AS plan ON plan.id = state.plan_id WHERE state.cluster = :cluster
), newest AS (
    SELECT substr(source, 6) AS node_id, boot_id, sequence, received_at
    FROM report_heads
    WHERE source LIKE 'node/%' AND received_at > now() - make_interval(secs => :silent_s)
), learned AS (
    SELECT as_of, measurements FROM belief_fits WHERE state IS NOT NULL ORDER BY as_of DESC, id DESC LIMIT 1
), stored AS (
    SELECT count(*) AS measurements, count(*) FILTER (WHERE imported_at > (SELECT as_of FROM learned)) AS newer FROM (
        SELECT imported_at, origin FROM profile_points WHERE neighbours = '{}'
        UNION ALL SELECT imported_at, origin FROM pair_points
    ) AS measured WHERE origin IN ('measured', 'public', 'simulated')
)
SELECT coalesce((SELECT generation FROM standing), 0) AS generation,
       (SELECT count(*) FROM nodes) AS nodes_known,
       (SELECT count(*) FROM node_states WHERE last_report_at > now() - make_interval(secs => :silent_s)) AS nodes_up,
       (SELECT count(*) FROM devices WHERE billed_until IS NULL) AS devices,
       (SELECT count(*) FROM newest JOIN replica_samples AS sample USING (node_id, boot_id, sequence, received_at)
        WHERE sample.received_at > now() - make_interval(secs => :silent_s) AND sample.state = 'ready'
            AND sample.received_at = ANY (ARRAY(SELECT received_at FROM newest))) AS replicas_ready,
       coalesce((SELECT planned FROM standing), 0) AS replicas_planned,
       coalesce((SELECT cost_usd_per_h FROM standing), 0) AS plan_cost_usd_per_h,
       (SELECT bound_usd_per_h FROM standing) AS plan_bound_usd_per_h,
       (SELECT extract(epoch FROM now() - max(started_at))::float8 FROM cycles WHERE plan_digest IS NOT NULL) AS plan_age_s,
       (SELECT count(*) FROM cycles WHERE started_at > now() - interval '1 hour') AS cycles_last_hour,
       (SELECT count(*) FROM cycles WHERE started_at > now() - interval '1 hour' AND answered IS NOT NULL
        AND (answered -> 'failures' <> '[]' OR answered ->> 'planner' IS DISTINCT FROM answered ->> 'asked')
       ) AS cycles_stood_in_last_hour,
       (SELECT extract(epoch FROM now() - max(minute))::float8 FROM ledger) AS ledger_age_s,
       (SELECT coalesce(sum(pg_total_relation_size(part)), 0)::bigint
        FROM unnest(ARRAY['sample_shapes', 'node_samples', 'device_sample_rows', 'replica_sample_rows', 'rate_samples', 'report_log']) AS parent,
            headroom_partitions(parent)) AS raw_bytes,
       (SELECT coalesce(sum(pg_total_relation_size(part)), 0)::bigint
        FROM unnest(ARRAY['ledger', 'device_bills']) AS parent, headroom_partitions(parent)) AS minute_bytes,
       coalesce((SELECT admitted FROM learning_marks WHERE name = 'outcomes'), 0) AS outcomes_admitted,
       coalesce((SELECT rejected FROM learning_marks WHERE name = 'outcomes'), 0) AS outcomes_rejected,
       coalesce((SELECT rebuilt FROM learning_marks WHERE name = 'outcomes'), 0) AS beliefs_rebuilt,
       (SELECT as_of FROM learned) AS beliefs_as_of,
       (SELECT CASE WHEN stored.measurements > 64
                    THEN greatest(newer, abs(stored.measurements - coalesce(learned.measurements, 0))) ELSE 0 END
        FROM stored LEFT JOIN learned ON true) AS measurements_unlearned,
       coalesce((SELECT state IS NULL FROM belief_fits ORDER BY as_of DESC, id DESC LIMIT 1), false) AS beliefs_failed

-- name: served
-- How every service was served of late. p99 is the worst interval's: percentiles of intervals cannot be added up.
WITH served AS (
    SELECT workload AS service, sum(completed) AS completed, sum(violated) AS violated, sum(dropped) AS dropped,
           max(latency_ms_p99) AS latency_ms_p99
    FROM service_samples
    WHERE received_at > now() - make_interval(secs => :window_s)
    GROUP BY workload
), offered AS (
    SELECT service, sum(unrouted) AS unrouted, sum(rate) AS rate_rps FROM (
        SELECT service, gateway, sum(unrouted) AS unrouted, sum(arrived) / sum(interval_s) AS rate
        FROM rate_samples WHERE received_at > now() - make_interval(secs => :window_s) AND interval_s > 0
        GROUP BY service, gateway
    ) AS per_gateway GROUP BY service
)
SELECT service, coalesce(completed, 0) AS completed, coalesce(violated, 0) AS violated,
       coalesce(dropped, 0) + coalesce(unrouted, 0) AS unserved, latency_ms_p99, coalesce(rate_rps, 0) AS rate_rps
FROM served FULL JOIN offered USING (service) ORDER BY service

-- name: migrated
-- The name of the table of revisions where it is there, else NULL.
SELECT to_regclass('schema_version')

-- name: schema_revision
-- The revision of the connected database.
SELECT version_num FROM schema_version
