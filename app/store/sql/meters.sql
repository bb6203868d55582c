-- name: metered_plan
-- What the standing plan puts where: a row for each replica of each workload on each device.
SELECT item ->> 'kind' AS kind, item ->> 'workload' AS workload, item ->> 'device' AS device,
       (item ->> 'share_pct_sm')::integer AS share_pct_sm
FROM cluster_state AS state JOIN plans AS plan ON plan.id = state.plan_id
CROSS JOIN LATERAL jsonb_array_elements(plan.document -> 'assignments') AS item
WHERE state.cluster = :cluster

-- name: metered_unplaced
-- What the target leaves short of what is still declared, as far as is known now, and whether approval is all it lacks.
WITH waiting AS (
    SELECT document FROM plans WHERE state = 'awaiting_approval' AND (expires_at IS NULL OR expires_at > now())
), placed AS (
    SELECT item ->> 'kind' AS kind, item ->> 'workload' AS workload
    FROM waiting CROSS JOIN LATERAL jsonb_array_elements(document -> 'assignments') AS item
    EXCEPT
    SELECT item ->> 'kind', item ->> 'workload'
    FROM waiting CROSS JOIN LATERAL jsonb_array_elements(document -> 'unplaced') AS item
)
SELECT item ->> 'kind' AS kind, item ->> 'workload' AS workload, sum((item ->> 'rate_rps_short')::float8) AS rate_rps_short,
       (item ->> 'kind', item ->> 'workload') IN (SELECT kind, workload FROM placed) AS approval_places
FROM cluster_state AS state JOIN plans AS plan ON plan.id = state.plan_id
CROSS JOIN LATERAL jsonb_array_elements(coalesce(state.short, plan.document -> 'unplaced')) AS item
JOIN (
    SELECT 'service' AS kind, project, name FROM services
    UNION ALL SELECT 'job', project, name FROM jobs
    UNION ALL SELECT 'task', project, name FROM tasks
) AS declared ON declared.kind = item ->> 'kind' AND declared.project || '/' || declared.name = item ->> 'workload'
WHERE state.cluster = :cluster
GROUP BY 1, 2

-- name: metered_work
-- Jobs and tasks of every project, by how far they are: the words are those of `tasks`. `done` is the part of all that
-- was asked of those that are not at their end.
WITH standing AS (
    SELECT DISTINCT item ->> 'kind' AS kind, item ->> 'workload' AS workload
    FROM cluster_state AS state JOIN plans AS plan ON plan.id = state.plan_id
    CROSS JOIN LATERAL jsonb_array_elements(plan.document -> 'assignments') AS item
    WHERE state.cluster = :cluster AND item ->> 'kind' IN ('job', 'task')
), asked AS (
    SELECT 'job' AS kind, project, name, (spec ->> 'iterations_total')::float8 AS total, NULL::timestamptz AS deadline_at
    FROM jobs
    UNION ALL
    SELECT 'task', project, name, (spec ->> 'inputs_total')::float8,
        created_at + make_interval(secs => (spec -> 'slo' ->> 'deadline_s')::float8)
    FROM tasks
)
SELECT asked.kind, asked.project,
    CASE WHEN progress.done >= asked.total THEN 'done' WHEN now() > asked.deadline_at THEN 'late'
        WHEN standing.workload IS NOT NULL THEN 'running' ELSE 'waiting' END AS state,
    count(*) AS works, sum(least(coalesce(progress.done, 0), asked.total) / asked.total) AS done
FROM asked
LEFT JOIN job_progress AS progress USING (kind, project, name)
LEFT JOIN standing ON standing.kind = asked.kind AND standing.workload = asked.project || '/' || asked.name
GROUP BY 1, 2, 3

-- name: metered_limits
-- The power limits that the standing plan sets.
SELECT item ->> 'device' AS uuid, (item ->> 'power_limit_w')::float8 AS power_limit_w
FROM cluster_state AS state JOIN plans AS plan ON plan.id = state.plan_id
CROSS JOIN LATERAL jsonb_array_elements(plan.document -> 'settings') AS item
WHERE state.cluster = :cluster AND item ->> 'power_limit_w' IS NOT NULL

-- name: metered_services
-- How services were served over the last window, and what was added since the last look (`fresh`). Percentiles of
-- intervals cannot be added up: p50 is their mean weighted by completions, p99 the worst interval's.
WITH served AS (
    SELECT workload AS service, sum(completed) AS completed, sum(violated) AS violated, sum(dropped) AS dropped,
           sum(latency_ms_p50 * completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weighted,
           sum(completed) FILTER (WHERE latency_ms_p50 IS NOT NULL) AS p50_weight,
           max(latency_ms_p99) AS latency_ms_p99,
           sum(completed) FILTER (WHERE fresh) AS completed_new, sum(violated) FILTER (WHERE fresh) AS violated_new,
           sum(dropped) FILTER (WHERE fresh) AS dropped_new, sum(energy_j) FILTER (WHERE fresh) AS energy_j_new
    FROM (
        SELECT *, received_at > :since AS fresh FROM service_samples
        WHERE received_at <= :until
          AND received_at > least(CAST(:since AS timestamptz), :until - make_interval(secs => :window_s))
    ) AS sample GROUP BY workload
), per_gateway AS (
    SELECT service, gateway, sum(arrived) / sum(interval_s) AS rate_rps, sum(unrouted) AS unrouted,
           sum(arrived) FILTER (WHERE received_at > :since) AS arrived_new,
           sum(unrouted) FILTER (WHERE received_at > :since) AS unrouted_new
    FROM rate_samples
    WHERE interval_s > 0 AND received_at <= :until
      AND received_at > least(CAST(:since AS timestamptz), :until - make_interval(secs => :window_s))
    GROUP BY service, gateway
), offered AS (
    SELECT service, sum(rate_rps) AS rate_rps, sum(unrouted) AS unrouted, sum(arrived_new) AS arrived_new,
           sum(unrouted_new) AS unrouted_new
    FROM per_gateway GROUP BY service
)
SELECT service, rate_rps, coalesce(completed, 0) AS completed, coalesce(violated, 0) AS violated,
       coalesce(dropped, 0) + coalesce(unrouted, 0) AS unserved,
       p50_weighted / nullif(p50_weight, 0) AS latency_ms_p50, latency_ms_p99,
       coalesce(arrived_new, 0) AS arrived_new, coalesce(completed_new, 0) AS completed_new,
       coalesce(violated_new, 0) AS violated_new, coalesce(dropped_new, 0) + coalesce(unrouted_new, 0) AS unserved_new,
       coalesce(energy_j_new, 0) AS energy_j_new
FROM served FULL JOIN offered USING (service)

-- name: metered_ready
-- Replicas by workload that the newest report of a node calls ready.
WITH newest AS (
    SELECT substr(source, 6) AS node_id, boot_id, sequence, received_at
    FROM report_heads
    WHERE source LIKE 'node/%' AND received_at > now() - make_interval(secs => :silent_s)
)
SELECT workload, count(*) AS replicas
FROM newest JOIN replica_samples AS sample USING (node_id, boot_id, sequence, received_at)
WHERE sample.received_at > now() - make_interval(secs => :silent_s) AND state = 'ready'
    AND sample.received_at = ANY (ARRAY(SELECT received_at FROM newest))
GROUP BY workload

-- name: metered_energy
-- Energy of every device that was reported between two looks.
SELECT uuid, sum(energy_j) AS energy_j FROM device_samples
WHERE received_at > :since AND received_at <= :until GROUP BY uuid

-- name: metered_cycles
-- What became of the cycles that ended between two looks, by lane, decision and attempts.
SELECT lane, CASE WHEN state = 'aborted' THEN 'aborted' WHEN generation IS NOT NULL THEN 'promoted'
                  WHEN plan_digest IS NULL THEN 'no_plan' ELSE 'held' END AS outcome,
       attempts, count(*) AS cycles, coalesce(sum(elapsed_ms), 0) AS elapsed_ms
FROM cycles WHERE state <> 'running' AND ended_at > :since AND ended_at <= :until
  AND started_at > CAST(:since AS timestamptz) - INTERVAL '1 day'
GROUP BY 1, 2, 3

-- name: metered_events
-- Audit events between two looks, by name.
SELECT name, count(*) AS events FROM events WHERE at > :since AND at <= :until GROUP BY name

-- name: metered_nodes
-- Nodes, how long they have been silent, and when the certificate ends that they have.
SELECT id AS node, rack, (spec ->> 'schedulable')::boolean AS schedulable,
       extract(epoch FROM now() - last_report_at)::float8 AS age_s,
       (SELECT extract(epoch FROM max(expires_at))::float8 FROM node_keys AS key
        WHERE key.node_id = nodes.id AND key.revoked_at IS NULL) AS certificate_ends_s
FROM (SELECT *, spec ->> 'rack' AS rack FROM nodes) AS nodes LEFT JOIN node_states AS state ON state.node_id = nodes.id
ORDER BY id

-- name: metered_whole
-- What waits, for how long, and how far ahead telemetry has partitions without a gap; one row. A plan whose time is over waits no more.
WITH waiting AS (
    SELECT created_at FROM plans WHERE state = 'awaiting_approval' AND (expires_at IS NULL OR expires_at > now())
)
SELECT now() - make_interval(secs => :settle_s) AS until,
       (SELECT count(*) FROM waiting) AS plans_awaiting,
       (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 FROM waiting) AS plans_awaiting_s,
       (SELECT extract(epoch FROM now() - seen_until)::float8 FROM learning_marks WHERE name = 'outcomes') AS outcomes_age_s,
       (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 FROM webhook_deliveries
        WHERE state = 'waiting') AS webhooks_age_s,
       (SELECT extract(epoch FROM now() - max(received_at))::float8 FROM report_heads) AS report_age_s,
       (SELECT extract(epoch FROM min(covered) - now())::float8 FROM (
            SELECT coalesce((SELECT upper(span) FROM unnest(range_agg(tstzrange(start_at, end_at))) AS span
                             WHERE span @> now()), now()) AS covered
            FROM unnest(ARRAY['sample_shapes', 'node_samples', 'rate_samples', 'report_log']) AS parent
                LEFT JOIN LATERAL headroom_partitions(parent) ON true
            GROUP BY parent) AS each) AS partitions_ahead_s
