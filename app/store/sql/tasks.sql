-- name: tasks
-- Tasks by project and name, after a key, with their state and their rank among those that wait.
WITH standing AS (
    SELECT DISTINCT item ->> 'workload' AS task
    FROM cluster_state JOIN plans ON plans.id = cluster_state.plan_id
    CROSS JOIN LATERAL jsonb_array_elements(plans.document -> 'assignments') AS item
    WHERE cluster_state.cluster = :cluster AND item ->> 'kind' = 'task'
), told AS (
    SELECT t.project, t.name, t.spec, t.created_at AS submitted_at, p.begun_at, ended.at AS finished_at,
        asked.deadline_at, least(coalesce(p.done, 0), asked.inputs) AS inputs_done, coalesce(p.evictions, 0) AS evictions,
        p.executed_ms / nullif(p.executions, 0) AS latency_ms_measured,
        ended.at IS NULL AND standing.task IS NULL AND t.spec ->> 'mode' NOT IN ('off', 'shadow') AS in_line,
        now() AS read_at,
        CASE WHEN ended.at IS NOT NULL THEN 'done' WHEN now() > asked.deadline_at THEN 'late'
            WHEN standing.task IS NOT NULL THEN 'running' ELSE 'waiting' END AS state
    FROM tasks t
    LEFT JOIN job_progress p ON p.kind = 'task' AND p.project = t.project AND p.name = t.name
    LEFT JOIN standing ON standing.task = t.project || '/' || t.name
    CROSS JOIN LATERAL (
        SELECT (t.spec ->> 'inputs_total')::float8 AS inputs,
            t.created_at + make_interval(secs => (t.spec -> 'slo' ->> 'deadline_s')::float8) AS deadline_at) asked
    CROSS JOIN LATERAL (
        SELECT CASE WHEN p.done >= asked.inputs THEN coalesce(p.finished_at, p.updated_at) END AS at) ended
), ranked AS (
    SELECT told.*, CASE WHEN in_line THEN row_number() OVER (
        PARTITION BY in_line ORDER BY (spec ->> 'priority')::integer DESC, project, name) END AS rank
    FROM told
)
SELECT project, name, spec, state, submitted_at, begun_at, finished_at, deadline_at, inputs_done, evictions,
    latency_ms_measured, rank, read_at
FROM ranked
WHERE (CAST(:project AS text) IS NULL OR project = :project) AND (CAST(:name AS text) IS NULL OR name = :name)
    AND (CAST(:state AS text) IS NULL OR state = :state) AND (project, name) > (:after_project, :after_name)
ORDER BY project, name LIMIT :most

-- name: standing_plan
-- The plan that stands.
SELECT plan_id FROM cluster_state WHERE cluster = :cluster

-- name: count_eviction
-- One more time a job or task lost its place.
INSERT INTO job_progress AS progress (kind, project, name, evictions) VALUES (:kind, :project, :name, 1)
ON CONFLICT (kind, project, name) DO UPDATE SET evictions = progress.evictions + 1, updated_at = now()
RETURNING evictions
