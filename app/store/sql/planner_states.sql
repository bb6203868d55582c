-- name: trim_states
-- The oldest states of a planner go where all together take too much room; the newest stays.
DELETE FROM planner_states WHERE planner = :planner AND version = :version AND digest IN (
    SELECT digest FROM (
        SELECT digest, sum(length(state)) OVER newest_first AS size, row_number() OVER newest_first AS place
        FROM planner_states WHERE planner = :planner AND version = :version WINDOW newest_first AS (ORDER BY updated_at DESC)
    ) AS kept
    WHERE size > :bytes_max AND place > 1
)

-- name: forget_states
-- States that were followed by another of their planner so long ago go; the newest stays, whatever its version.
DELETE FROM planner_states USING (
    SELECT planner, version, digest, lead(updated_at) OVER (PARTITION BY planner ORDER BY updated_at) AS followed_at
    FROM planner_states
) AS line
WHERE (planner_states.planner, planner_states.version, planner_states.digest) = (line.planner, line.version, line.digest)
    AND line.followed_at < now() - make_interval(days => :days)
RETURNING line.digest
