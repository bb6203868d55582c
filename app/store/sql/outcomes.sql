-- name: belief_mark
-- A text that changes when outcomes have something new to teach: a belief was due to be built anew, a configuration
-- became known, or outcomes have doubled.
SELECT coalesce((SELECT rebuilt FROM learning_marks WHERE name = :mark), 0)
    || '/' || count(*) FILTER (WHERE values_kept >= :taught)
    || '/' || floor(log(2, greatest(1, coalesce(sum(outcomes), 0))))
FROM outcome_points

-- name: trim_points
-- Deletes all but the newest points of each of these models on its GPU type.
DELETE FROM outcome_points WHERE ctid IN (
    SELECT ctid FROM (
        SELECT ctid, row_number() OVER (PARTITION BY model, gpu_type ORDER BY seen_at DESC) AS place
        FROM outcome_points
        WHERE (model, gpu_type) IN (SELECT * FROM unnest(CAST(:models AS text[]), CAST(:types AS text[])))
    ) AS ranked WHERE place > :kept)
RETURNING 1
