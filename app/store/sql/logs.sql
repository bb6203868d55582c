-- name: ask_for_logs
-- Asks the nodes that hold replicas of a workload for what they write, or of one replica those that held it within a day.
-- What nobody reads any more is forgotten, and who reads again after a pause asks anew. Rings for nodes that have not
-- looked since they were asked.
WITH forgotten AS (DELETE FROM log_requests WHERE expires_at < now() AND reader <> :reader),
held AS (
    SELECT DISTINCT node_id, replica FROM told_replicas
    WHERE workload = :workload AND (replica = :replica OR (told_until IS NULL AND CAST(:replica AS text) IS NULL))
    ORDER BY node_id, replica LIMIT :count
), asked AS (
    INSERT INTO log_requests (reader, node_id, replica, lines, expires_at)
    SELECT :reader, node_id, replica, :lines, now() + make_interval(secs => :ttl_s) FROM held
    ON CONFLICT (reader, node_id, replica) DO UPDATE SET id = DEFAULT, lines = EXCLUDED.lines, pieces = '[]',
        asked_at = NULL, answered_at = NULL, made_at = now(), expires_at = EXCLUDED.expires_at
        WHERE log_requests.expires_at < now() RETURNING node_id
)
SELECT pg_notify(:channel, node_id) FROM (
    SELECT node_id FROM asked UNION SELECT node_id FROM log_requests WHERE reader = :reader AND asked_at IS NULL
) AS each

-- name: replicas_with_logs
-- Replicas of a workload that nodes hold, or held within a day.
SELECT replica, bool_or(told_until IS NULL) AS stands FROM told_replicas WHERE workload = :workload
GROUP BY replica ORDER BY replica LIMIT 200

-- name: take_log_pieces
-- What nodes handed over for a reader since it looked last; it goes on reading.
WITH held AS (SELECT * FROM log_requests WHERE reader = :reader ORDER BY id FOR UPDATE),
taken AS (
    UPDATE log_requests AS kept SET pieces = '[]', expires_at = now() + make_interval(secs => :ttl_s)
    FROM held WHERE kept.id = held.id
)
SELECT node_id, replica, pieces, asked_at IS NOT NULL AS asked,
    answered_at IS NULL AND made_at < now() - make_interval(secs => :patience_s) AS late
FROM held ORDER BY node_id, replica

-- name: end_log_reading
-- Nobody reads this any more.
DELETE FROM log_requests WHERE reader = :reader

-- name: log_requests_of_node
-- What is wanted of a node; it has asked now.
WITH asked AS (UPDATE log_requests SET asked_at = now() WHERE node_id = :node AND asked_at IS NULL)
SELECT id AS request, replica, lines FROM log_requests
WHERE node_id = :node AND expires_at > now() ORDER BY id LIMIT :count

-- name: keep_log_piece
-- Keeps what a node hands over, where it was asked and its reader keeps up.
UPDATE log_requests SET pieces = pieces || CAST(:piece AS jsonb), answered_at = coalesce(answered_at, now())
WHERE id = :request AND node_id = :node AND expires_at > now() AND jsonb_array_length(pieces) < :count RETURNING id

-- name: asked_of_node
-- Of which node something is wanted.
SELECT node_id FROM log_requests WHERE id = :request
