-- name: boots_of_nodes
-- The boots of each of these nodes that joined, the newest first.
SELECT node_id, boots FROM node_states WHERE node_id = ANY(:nodes)

-- name: new_heads
-- Heads that stand before everything, for sources that have none.
INSERT INTO report_heads (source, boot_id, sequence, observed_at)
SELECT source, '', -1, to_timestamp(0) FROM unnest(CAST(:sources AS text[])) AS source ORDER BY source
ON CONFLICT DO NOTHING

-- name: locked_heads
-- The newest report of each source, how long ago it came and whether that is silence, the time, and how far that is ahead
-- of the source's; locked in one order by everybody.
SELECT source, boot_id, sequence, CAST(extract(epoch FROM observed_at) AS float8),
    received_at < now() - make_interval(secs => :alive_s), CAST(extract(epoch FROM now() - received_at) AS float8),
    CAST(extract(epoch FROM now()) AS float8), behind_s
FROM report_heads WHERE source = ANY(:sources) ORDER BY source FOR UPDATE

-- name: logged_reports
-- Which of these very reports the log knows.
SELECT source, boot_id, sequence FROM report_log
WHERE (source, boot_id, sequence) IN (
    SELECT * FROM unnest(CAST(:sources AS text[]), CAST(:boots AS text[]), CAST(:sequences AS int8[])))

-- name: shapes_known
-- Which of these shapes the hours that last now know.
SELECT shape FROM sample_shapes
WHERE received_at = date_bin(INTERVAL '3 hours', now(), TIMESTAMPTZ '2000-01-01 00:00:00+00') AND shape = ANY(:shapes)

-- name: move_heads
-- The newest reports of these sources, received now; of those that are nodes, who speaks for them and what they applied:
-- under one boot that only rises.
WITH new AS (
    SELECT * FROM unnest(CAST(:sources AS text[]), CAST(:boots AS text[]), CAST(:sequences AS int8[]),
        CAST(:times AS timestamptz[]), CAST(:nodes AS text[]), CAST(:generations AS int8[]),
        CAST(:behind_s AS float8[]))
        AS new (source, boot_id, sequence, observed_at, node_id, generation, behind_s)
), spoken AS (
    UPDATE node_states AS state
    SET last_report_at = now(), boot_id = new.boot_id,
        generation_applied = CASE WHEN state.boot_id = new.boot_id
            THEN greatest(state.generation_applied, new.generation) ELSE new.generation END
    FROM new WHERE state.node_id = new.node_id
)
UPDATE report_heads AS head
SET boot_id = new.boot_id, sequence = new.sequence, observed_at = new.observed_at, received_at = now(),
    behind_s = new.behind_s
FROM new WHERE head.source = new.source

-- name: drop_empty_heads
-- Heads that no report took.
DELETE FROM report_heads WHERE source = ANY(:sources) AND boot_id = ''

-- name: add_progress
-- What was done of jobs and tasks, added to those that exist. What was done before one was declared is its predecessor's
-- of the same name, however late that is told.
INSERT INTO job_progress AS progress (kind, project, name, done, executions, executed_ms, begun_at)
SELECT kind, project, name, sum(done), sum(executions), sum(executed_ms), least(now(), min(at))
FROM unnest(CAST(:kinds AS text[]), CAST(:projects AS text[]), CAST(:names AS text[]), CAST(:times AS timestamptz[]),
    CAST(:done AS float8[]), CAST(:executions AS float8[]), CAST(:executed_ms AS float8[]))
    AS new (kind, project, name, at, done, executions, executed_ms)
WHERE new.at > CASE kind
    WHEN 'job' THEN (SELECT created_at FROM jobs WHERE (jobs.project, jobs.name) = (new.project, new.name))
    WHEN 'task' THEN (SELECT created_at FROM tasks WHERE (tasks.project, tasks.name) = (new.project, new.name)) END
GROUP BY kind, project, name
ORDER BY kind, project, name
ON CONFLICT (kind, project, name) DO UPDATE
SET done = progress.done + excluded.done, updated_at = now(), executions = progress.executions + excluded.executions,
    executed_ms = progress.executed_ms + excluded.executed_ms,
    begun_at = least(progress.begun_at, excluded.begun_at)

-- name: end_progress
-- When these jobs and tasks ended; what their last batches did beyond that is none of it. More may be asked of work that
-- had ended; it has not, then.
UPDATE job_progress AS progress
SET done = least(progress.done, asked.total),
    finished_at = CASE WHEN progress.done >= asked.total THEN coalesce(progress.finished_at, least(now(), new.at)) END
FROM (
    SELECT kind, project, name, max(at) AS at
    FROM unnest(CAST(:kinds AS text[]), CAST(:projects AS text[]), CAST(:names AS text[]),
        CAST(:times AS timestamptz[])) AS said (kind, project, name, at)
    GROUP BY kind, project, name) AS new
CROSS JOIN LATERAL (
    SELECT CAST(spec ->> 'iterations_total' AS float8) AS total
    FROM jobs WHERE new.kind = 'job' AND (jobs.project, jobs.name) = (new.project, new.name)
    UNION ALL
    SELECT CAST(spec ->> 'inputs_total' AS float8)
    FROM tasks WHERE new.kind = 'task' AND (tasks.project, tasks.name) = (new.project, new.name)) AS asked
WHERE (progress.kind, progress.project, progress.name) = (new.kind, new.project, new.name)
