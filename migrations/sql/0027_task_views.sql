-- What became of offline tasks. A task's place is the one in the plan that stood when it ended, or stands now. Of work
-- that older software counted, the last change is the nearest that is known to its end. The deadline counts from the
-- moment the document was made.
CREATE OR REPLACE VIEW task_outcomes AS
    SELECT t.project, t.name, t.spec ->> 'model' AS model, held.gpu_type, held.device_uuid, held.planner,
        held.task_group,
        CASE WHEN ended.at IS NOT NULL THEN 'done' WHEN now() > asked.deadline_at THEN 'late'
            WHEN held.replicas > 0 THEN 'running' ELSE 'waiting' END AS state,
        t.created_at AS submitted_at, p.begun_at, ended.at AS finished_at, asked.deadline_at,
        CASE WHEN asked.deadline_at IS NULL THEN NULL WHEN ended.at IS NOT NULL THEN ended.at <= asked.deadline_at
            WHEN now() > asked.deadline_at THEN false END AS deadline_kept,
        extract(epoch FROM p.begun_at - t.created_at)::float8 AS waited_s,
        extract(epoch FROM ended.at - t.created_at)::float8 AS took_s,
        asked.inputs AS inputs_total, coalesce(p.done, 0) AS inputs_done, coalesce(p.evictions, 0) AS evictions,
        held.replicas, held.batch, held.share_pct_sm, held.rate_rps AS rate_rps_predicted,
        held.latency_ms AS latency_ms_predicted, ran.latency_ms AS latency_ms_measured,
        100 * (held.latency_ms - ran.latency_ms) / nullif(ran.latency_ms, 0) AS error_pct
    FROM tasks t
    LEFT JOIN job_progress p ON p.kind = 'task' AND p.project = t.project AND p.name = t.name
    CROSS JOIN LATERAL (
        SELECT (t.spec ->> 'inputs_total')::float8 AS inputs,
            t.created_at + make_interval(secs => (t.spec -> 'slo' ->> 'deadline_s')::float8) AS deadline_at) asked
    CROSS JOIN LATERAL (
        SELECT CASE WHEN p.done >= asked.inputs THEN coalesce(p.finished_at, p.updated_at) END AS at) ended
    CROSS JOIN LATERAL (SELECT p.executed_ms / nullif(p.executions, 0) AS latency_ms) ran
    LEFT JOIN LATERAL (
        SELECT plans.planner, count(*) AS replicas, sum((a ->> 'capacity_rps')::float8) AS rate_rps,
            min(a ->> 'device') AS device_uuid, min(d.gpu_type) AS gpu_type, min((a ->> 'batch')::integer) AS batch,
            min((a ->> 'share_pct_sm')::integer) AS share_pct_sm,
            avg(1000 * (a ->> 'batch')::float8 / nullif((a ->> 'capacity_rps')::float8, 0)) AS latency_ms,
            (SELECT array_agg(DISTINCT other ->> 'workload' ORDER BY other ->> 'workload')
                FROM jsonb_array_elements(plans.document -> 'assignments') AS other
                WHERE other ->> 'device' = min(a ->> 'device') AND other ->> 'kind' = 'task') AS task_group
        FROM (SELECT plan_id FROM target_history WHERE promoted_at <= coalesce(ended.at, now())
            ORDER BY generation DESC LIMIT 1) AS stood
        JOIN plans ON plans.id = stood.plan_id
        CROSS JOIN LATERAL jsonb_array_elements(plans.document -> 'assignments') AS a
        LEFT JOIN devices d ON d.uuid = a ->> 'device'
        WHERE a ->> 'kind' = 'task' AND a ->> 'workload' = t.project || '/' || t.name
        GROUP BY plans.id) held ON true;

CREATE OR REPLACE VIEW task_error_by_model AS
    SELECT model, gpu_type, count(*) AS tasks, count(*) FILTER (WHERE finished_at IS NOT NULL) AS finished,
        count(*) FILTER (WHERE deadline_kept) AS deadlines_kept,
        count(*) FILTER (WHERE NOT deadline_kept) AS deadlines_missed,
        count(error_pct) AS measured, avg(abs(error_pct)) AS error_pct_mean, avg(error_pct) AS bias_pct,
        max(abs(error_pct)) AS error_pct_max
    FROM task_outcomes WHERE gpu_type IS NOT NULL GROUP BY model, gpu_type;
