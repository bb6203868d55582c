-- name: report_heads
-- The newest report of every node.
SELECT state.node_id, head.boot_id, extract(epoch FROM head.observed_at)::float8 AS observed_at_s
FROM node_states AS state JOIN report_heads AS head ON head.source = 'node/' || state.node_id

-- name: keep_read_back
-- What a receipt read back, unless it is of another boot than the node's or not newer; whoever serves routes is told.
WITH kept AS (
    INSERT INTO node_read_backs AS held (node_id, boot_id, generation, observed_at, replicas, wishes)
    SELECT node_id, boot_id, :generation, :observed_at, CAST(:replicas AS jsonb), CAST(:wishes AS jsonb)
    FROM node_states WHERE node_id = :node AND boot_id = :boot_id
    ON CONFLICT (node_id) DO UPDATE SET boot_id = excluded.boot_id, generation = excluded.generation,
        observed_at = excluded.observed_at, replicas = excluded.replicas, wishes = excluded.wishes, received_at = now()
    WHERE held.boot_id <> excluded.boot_id OR held.observed_at <= excluded.observed_at
    RETURNING node_id
)
SELECT pg_notify(:channel, node_id) FROM kept

-- name: read_backs
-- The newest read-back of every node that ever sent one.
SELECT node_id, boot_id, generation, extract(epoch FROM observed_at)::float8 AS observed_at_s,
    extract(epoch FROM now() - received_at)::float8 AS age_s, replicas
FROM node_read_backs ORDER BY node_id

-- name: problems_told
-- What stands in the way on each node, as its newest receipt of a generation says.
SELECT node_id, problems FROM (
    SELECT DISTINCT ON (node_id) node_id, problems FROM receipts WHERE generation = :generation ORDER BY node_id, id DESC
) AS newest WHERE problems <> '{}' ORDER BY node_id

-- name: clocks_ahead
-- Nodes of which nothing was taken since their clock was found to be ahead, lately, and by how much.
SELECT DISTINCT ON (node.node_id) node.node_id, (event.facts ->> 'ahead_s')::float8 AS ahead_s
FROM events AS event JOIN node_states AS node ON event.subject = 'nodes/' || node.node_id
WHERE event.name = 'node.clock_ahead' AND event.at > now() - make_interval(secs => :within_s)
    AND event.at > coalesce(node.last_report_at, '-infinity')
ORDER BY node.node_id, event.id DESC

-- name: join_node
-- An agent started on a node: its boot is the newest of those that are told apart, and has applied nothing yet.
INSERT INTO node_states AS state (node_id, boot_id, boots, endpoint, worker_host, agent_version)
VALUES (:node, :boot_id, ARRAY[CAST(:boot_id AS text)], :endpoint, :worker_host, :agent_version)
ON CONFLICT (node_id) DO UPDATE SET boot_id = excluded.boot_id, endpoint = excluded.endpoint,
    worker_host = excluded.worker_host, agent_version = excluded.agent_version, joined_at = now(), revoked_at = NULL,
    boots = array_prepend(excluded.boot_id, (array_remove(state.boots, excluded.boot_id))[1:CAST(:earlier AS integer)]),
    generation_applied = CASE WHEN state.boot_id = excluded.boot_id THEN state.generation_applied ELSE 0 END

-- name: note_device
-- What an agent found about a device; one that came back is billed again, from now: the table sees to that.
UPDATE devices SET driver_version = :driver_version, capabilities = CAST(:capabilities AS jsonb), billed_until = NULL
WHERE uuid = :uuid

-- name: node_state
-- A node that joined, and how long ago it reported and joined.
SELECT *, extract(epoch FROM now() - last_report_at)::float8 AS age_s, extract(epoch FROM now() - joined_at)::float8 AS joined_s
FROM node_states WHERE node_id = :node

-- name: node_states
-- The same of every node.
SELECT *, extract(epoch FROM now() - last_report_at)::float8 AS age_s, extract(epoch FROM now() - joined_at)::float8 AS joined_s
FROM node_states ORDER BY node_id

-- name: end_other_keys
-- The keys of a node end but one; what ended long ago is forgotten.
WITH forgotten AS (
    DELETE FROM node_keys WHERE node_id = :node AND key <> :key AND expires_at < now() - interval '90 days'
)
UPDATE node_keys SET revoked_at = now() WHERE node_id = :node AND key <> :key AND revoked_at IS NULL

-- name: bind_key
-- A key of a node until it expires, unless that key was revoked.
INSERT INTO node_keys AS held (node_id, key, authority, expires_at) VALUES (:node, :key, :authority, :expires_at)
ON CONFLICT (node_id, key) DO UPDATE SET authority = excluded.authority, expires_at = excluded.expires_at, issued_at = now()
WHERE held.revoked_at IS NULL
RETURNING key

-- name: keys_of
-- The keys of nodes, and whether each is good.
SELECT node_id, key, revoked_at IS NULL AND expires_at > now() AS is_good FROM node_keys WHERE node_id = ANY(:nodes)
ORDER BY key

-- name: devices_of_nodes
-- The devices of nodes.
SELECT node_id, uuid FROM devices WHERE node_id = ANY(:nodes)

-- name: end_keys
-- A node is turned out.
WITH ended AS (UPDATE node_keys SET revoked_at = now() WHERE node_id = :node AND revoked_at IS NULL)
UPDATE node_states SET revoked_at = now() WHERE node_id = :node

-- name: fleet_parts
-- The devices of the fleet, of a node, of a rack or one alone, by GPU type: how many GPUs they are (slices count by their
-- memory), what they draw idle, and the most memory that one of them has.
WITH parts AS (
    SELECT d.gpu_type, (d.spec ->> 'memory_mib')::float8 AS memory_mib, (g.spec ->> 'idle_w')::float8 AS idle_w,
        CASE WHEN jsonb_typeof(d.spec -> 'mig') = 'object'
            THEN least(1, (d.spec ->> 'memory_mib')::float8 / (g.spec ->> 'memory_mib')::float8) ELSE 1 END AS part
    FROM devices AS d JOIN gpu_types AS g ON g.name = d.gpu_type JOIN nodes AS n ON n.id = d.node_id
    WHERE d.billed_until IS NULL AND (CAST(:device AS text) IS NULL OR d.uuid = :device)
        AND (CAST(:node AS text) IS NULL OR n.id = :node)
        AND (CAST(:rack AS text) IS NULL OR n.spec ->> 'rack' = :rack)
)
SELECT gpu_type, sum(part) AS gpus, sum(part * idle_w) AS idle_w, max(memory_mib) AS memory_mib_max
FROM parts GROUP BY gpu_type ORDER BY gpu_type
