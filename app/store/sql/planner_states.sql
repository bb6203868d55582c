-- name: trim_states
-- The oldest states of a planner go where all together take too much room; the newest stays.
DELETE FROM planner_states WHERE planner = :planner AND version = :version AND digest IN (
    SELECT digest FROM (
        SELECT digest, sum(length(state)) OVER newest_first AS size, row_number() OVER newest_first AS place
        FROM planner_states WHERE planner = :planner AND version = :version WINDOW newest_first AS (ORDER BY updated_at DESC)
    ) AS kept
    WHERE size > :bytes_max AND place > 1
)
