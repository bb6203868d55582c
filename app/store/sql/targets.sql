-- name: nodes_with_retiring
-- Documents of nodes that hold replicas which are to retire.
SELECT document FROM node_targets
WHERE jsonb_path_exists(document, '$.devices[*].replicas[*] ? (@.retire_after_s > 0)') ORDER BY node_id

-- name: told_workloads
-- What nodes are told of each workload that stays.
SELECT DISTINCT replica->>'workload' AS workload, replica->'worker' AS worker,
    replica->'latency_ms_limit' AS latency_ms_limit,
    coalesce((replica->>'latency_execution_only')::boolean, false) AS execution_only
FROM node_targets, jsonb_array_elements(document->'devices') AS device,
    jsonb_array_elements(device->'replicas') AS replica
WHERE replica->>'retire_after_s' IS NULL ORDER BY 1

-- name: told_terms
-- A replica of each workload and model as nodes are told of it, of these workloads.
SELECT DISTINCT ON (replica->>'workload', replica->>'model') replica
FROM node_targets, jsonb_array_elements(document->'devices') AS device,
    jsonb_array_elements(device->'replicas') AS replica
WHERE replica->>'retire_after_s' IS NULL AND replica->>'workload' = ANY(:workloads)
ORDER BY replica->>'workload', replica->>'model', replica->>'replica'

-- name: told_governors
-- Which governor each workload has on each device.
SELECT DISTINCT replica->>'workload' AS workload, device->>'uuid' AS device,
    coalesce(device->>'governor', document->>'governor', 'morak') AS governor
FROM node_targets, jsonb_array_elements(document->'devices') AS device,
    jsonb_array_elements(device->'replicas') AS replica
WHERE replica->>'retire_after_s' IS NULL ORDER BY 1, 2

-- name: remember_told
-- What node targets name is remembered as told, and when what they do not name any more was told last.
WITH told AS (
    SELECT DISTINCT node_id, device->>'uuid' AS uuid, item->>'replica' AS replica, item->>'kind' AS kind,
        item->>'workload' AS workload, item->>'model' AS model, (item->>'share_pct_sm')::integer AS share_pct_sm,
        (item->>'memory_mib_limit')::integer AS memory_mib_limit
    FROM node_targets, jsonb_array_elements(document->'devices') AS device,
        jsonb_array_elements(device->'replicas') AS item
), ended AS (
    UPDATE told_replicas AS kept SET told_until = now()
    WHERE told_until IS NULL AND NOT EXISTS (
        SELECT FROM told WHERE told = (kept.node_id, kept.uuid, kept.replica, kept.kind, kept.workload, kept.model,
            kept.share_pct_sm, kept.memory_mib_limit))
)
INSERT INTO told_replicas
SELECT told.*, NULL FROM told
ON CONFLICT ON CONSTRAINT told_replicas_pkey
DO UPDATE SET told_until = NULL WHERE told_replicas.told_until IS NOT NULL

-- name: told_to_nodes
-- Replicas that nodes were told of late. What a profile run starts is none: measuring is no traffic.
SELECT node_id, uuid, replica, kind, workload, model, share_pct_sm, memory_mib_limit FROM told_replicas
WHERE node_id = ANY(:nodes)

-- name: busy_processes
-- Who plans or serves with this database now: whoever holds the planner's lease, and API processes by what they listen with.
SELECT 'planner ' || holder || ' holds the lease until ' || to_char(expires_at, 'HH24:MI:SS TZ') FROM leases
WHERE name = :lease AND holder IS NOT NULL AND expires_at > clock_timestamp()
UNION
SELECT 'an API process is connected' FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('headroom api', 'headroom listener')

-- name: begin_epoch
-- What stands goes on under another epoch. Copies of one database must not begin the same, so it is the moment in seconds.
-- What nodes read back and applied before is forgotten: they may hold what came after this copy was made. Whoever led after
-- it was made may be frozen with a token that this copy has yet to give: leases end, and their tokens go beyond all of before.
WITH forgotten AS (DELETE FROM node_read_backs), unapplied AS (UPDATE node_states SET generation_applied = 0), fenced AS (
    INSERT INTO leases AS held (name, token, expires_at)
    SELECT name, extract(epoch FROM clock_timestamp())::bigint, clock_timestamp()
    FROM (SELECT name FROM leases UNION SELECT :lease) AS known (name)
    ON CONFLICT (name) DO UPDATE
    SET holder = NULL, expires_at = excluded.expires_at, token = greatest(held.token + 1, excluded.token)
)
UPDATE cluster_state SET epoch = greatest(epoch + 1, extract(epoch FROM clock_timestamp())::bigint)
WHERE cluster = :cluster RETURNING generation, cluster_id::text, epoch

-- name: renumber_versions
-- Versions of documents go beyond all that were told since this copy was made: who holds one of those changes nothing.
SELECT setval('document_versions', greatest(nextval('document_versions'), 1000 * extract(epoch FROM now())::bigint))

-- name: acquire_lease
-- Take or renew a lease, and who has it then. The row's lock orders rivals, and the clock is read once it is granted; the
-- token stays while a holder renews in time, and rises at every other change. One that lasts longer than a rival asks for is
-- of a clock that was set back since: it ends after so long as was asked for, unless its holder lives and renews it.
INSERT INTO leases AS held (name, holder, token, expires_at)
VALUES (:name, :holder, 1, clock_timestamp() + make_interval(secs => :ttl_s))
ON CONFLICT (name) DO UPDATE SET expires_at = clock_timestamp() + make_interval(secs => :ttl_s),
    (holder, token, acquired_at) = (
        SELECT CASE WHEN lapsed THEN excluded.holder ELSE held.holder END, held.token + lapsed::int,
            CASE WHEN lapsed THEN clock_timestamp() ELSE held.acquired_at END
        FROM (SELECT held.holder IS NULL OR held.expires_at <= clock_timestamp() AS lapsed) AS judged
    )
WHERE held.holder IS NULL OR held.holder = excluded.holder OR held.expires_at <= clock_timestamp()
    OR held.expires_at > clock_timestamp() + make_interval(secs => :ttl_s)
RETURNING holder
