-- name: newest_fit
-- A number that changes whenever something was learned, or could not be; 0 before the first time.
SELECT coalesce(max(id), 0) FROM belief_fits

-- name: fits_since
-- What was learned of more than was known at a moment, the newest first.
SELECT evidence, as_of, state FROM belief_fits WHERE as_of > :known ORDER BY as_of DESC, id DESC

-- name: put_fit
-- One more, which without a state could not be learned. Two older ones that were learned stay beside it.
WITH added AS (
    INSERT INTO belief_fits (evidence, as_of, measurements, state)
    VALUES (:evidence, :as_of, :measurements, nullif(CAST(:state AS jsonb), 'null'))
)
DELETE FROM belief_fits WHERE id NOT IN
    (SELECT id FROM belief_fits WHERE state IS NOT NULL ORDER BY as_of DESC, id DESC LIMIT 2)

-- name: confirm_fit
-- What was learned is still all there is.
UPDATE belief_fits SET as_of = greatest(as_of, :as_of) WHERE evidence = :evidence

-- name: leaderless
-- Whether nobody ever held a lease, or for some seconds nobody did, since a moment.
SELECT NOT EXISTS (SELECT FROM leases WHERE name = :name
                   AND greatest(expires_at, :since) > now() - make_interval(secs => :seconds))
