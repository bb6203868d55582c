-- name: counted_loads
-- What every gateway counted of every service, received since: instants, requests and seconds, one after the other as
-- eight bytes each, for a million rows cost more to take apart than to add up. A sample with a bad interval would divide
-- by zero; the edge refuses those, the filter keeps us safe.
SELECT service, extract(epoch FROM now())::float8 AS now_s,
       string_agg(float8send(extract(epoch FROM received_at)::float8) || float8send(arrived) || float8send(interval_s), '') AS counted
FROM rate_samples
WHERE received_at > now() - make_interval(secs => :lookback_s) AND interval_s > 0
GROUP BY service, gateway
ORDER BY service

-- name: counted_last
-- What is sure of what every gateway counted last of every service, in the last seconds: cheap enough to ask for often.
SELECT service, sum(arrived / lasted_s) - :jump_sigmas * sqrt(sum(arrived / lasted_s ^ 2)) AS rate_rps
FROM (
    SELECT DISTINCT ON (service, gateway) service, arrived, greatest(interval_s, :count_s) AS lasted_s
    FROM rate_samples WHERE received_at > now() - make_interval(secs => :since_s) AND interval_s > 0
    ORDER BY service, gateway, received_at DESC, sequence DESC
) AS per_gateway GROUP BY service

-- name: newest_of_devices
-- The newest reading of each device. Every report carries its node's devices, so the newest report of a node is the
-- newest one with device rows. Samples are bounded by themselves, too, or those of all hours would be read, and by when
-- the newest came, or those of half a minute would be unpacked.
WITH newest AS (
    SELECT DISTINCT ON (node_id) node_id, boot_id, sequence, received_at
    FROM device_samples
    WHERE received_at > now() - make_interval(secs => :silent_s)
    ORDER BY node_id, received_at DESC, sequence DESC
)

SELECT uuid, power_w, utilisation_pct, memory_mib_used, clock_mhz_sm, temperature_c, healthy,
       coalesce(slow.factor, 1) AS slow_factor,
       extract(epoch FROM now() - sample.received_at)::float8 AS age_s
FROM newest JOIN device_samples AS sample USING (node_id, boot_id, sequence, received_at)
LEFT JOIN slow_devices AS slow USING (uuid)
WHERE sample.received_at > now() - make_interval(secs => :silent_s)
    AND sample.received_at = ANY (ARRAY(SELECT received_at FROM newest))
ORDER BY uuid

-- name: newest_of_replicas
-- What the same reports say of replicas. A process that ended within the interval appears in one more report, without
-- memory; it holds nothing any more.
WITH newest AS (
    SELECT DISTINCT ON (node_id) node_id, boot_id, sequence, received_at
    FROM device_samples
    WHERE received_at > now() - make_interval(secs => :silent_s)
    ORDER BY node_id, received_at DESC, sequence DESC
)

SELECT replica, kind, workload, model, uuid, state, share_pct_sm, memory_mib_limit, batch, interval_s, arrived,
       completed, violated, dropped, queue_length, batch_mean, latency_ms_p50, latency_ms_p99,
       extract(epoch FROM now() - sample.received_at)::float8 AS age_s
FROM newest JOIN replica_samples AS sample USING (node_id, boot_id, sequence, received_at)
WHERE sample.received_at > now() - make_interval(secs => :silent_s)
    AND sample.received_at = ANY (ARRAY(SELECT received_at FROM newest))
    AND NOT (state = 'draining' AND memory_mib_used = 0)
ORDER BY replica, uuid

-- name: progress
-- How far every job and task is.
SELECT kind, project, name, done, evictions FROM job_progress ORDER BY kind, project, name

-- name: live_nodes
-- Nodes that reported of late.
SELECT node_id FROM node_states WHERE last_report_at > now() - make_interval(secs => :silent_s) ORDER BY node_id

-- name: hearing
-- How many nodes ever reported, and for how long none of them has.
SELECT count(*) AS nodes, coalesce(extract(epoch FROM now() - max(last_report_at)), 0)::float8 AS unheard_s
FROM node_states WHERE last_report_at IS NOT NULL AND revoked_at IS NULL
