-- name: offered_load
-- Load of every service seen at any edge: its mean of late, and its busiest bin over the look-back. A gateway's rate
-- inside a bin is what it counted over the time it counted, so that bins need not match its intervals; only they may
-- not be shorter, or a bin would miss the gateways that report less often than it lasts. A sample with a bad interval
-- would divide by zero; the edge refuses those, the filter keeps us safe. Whole bins count: the newest, and those that
-- begin every half bin by the clock, each of two halves; and half bins, less what chance may add. Bins counted back
-- from now alone cut a burst elsewhere at every look, and its rate would fall and rise again while it is remembered.
WITH counted AS (
    SELECT service, gateway, arrived, interval_s, received_at, sequence,
           extract(epoch FROM now() - received_at)::float8 AS age_s,
           greatest(:bin_s, max(interval_s) OVER (PARTITION BY service)) AS bin_s
    FROM rate_samples
    WHERE received_at > now() - make_interval(secs => :lookback_s) AND interval_s > 0
), newest AS (
    SELECT service, sum(mean_rps) AS mean_rps, sum(bin_rps) AS bin_rps,
           sum(half / half_s) - :jump_sigmas * sqrt(sum(half / half_s ^ 2)) AS half_rps
    FROM (
        SELECT service,
               sum(arrived) FILTER (WHERE age_s < :window_s) / sum(interval_s) FILTER (WHERE age_s < :window_s) AS mean_rps,
               sum(arrived) FILTER (WHERE age_s < bin_s) / sum(interval_s) FILTER (WHERE age_s < bin_s) AS bin_rps,
               sum(arrived) FILTER (WHERE age_s < bin_s / 2) AS half,
               sum(interval_s) FILTER (WHERE age_s < bin_s / 2) AS half_s
        FROM counted WHERE age_s < greatest(:window_s, bin_s) GROUP BY service, gateway
    ) AS per_gateway GROUP BY service
), halves AS (
    SELECT service, gateway, half, first, last, sum(arrived) AS arrived, sum(interval_s) AS lasted_s
    FROM (
        SELECT *, floor(2 * extract(epoch FROM received_at)::float8 / bin_s)::bigint AS half,
               floor(2 * extract(epoch FROM now() - make_interval(secs => :lookback_s))::float8 / bin_s)::bigint AS first,
               floor(2 * extract(epoch FROM now())::float8 / bin_s)::bigint AS last
        FROM counted
    ) AS placed
    WHERE half BETWEEN first + 1 AND last - 1
    GROUP BY service, gateway, half, first, last
), pairs AS (
    SELECT *, sum(arrived) OVER pair / sum(lasted_s) OVER pair AS pair_rps, lead(half) OVER later AS next
    FROM halves
    WINDOW later AS (PARTITION BY service, gateway ORDER BY half),
           pair AS (PARTITION BY service, gateway ORDER BY half RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)
), bins AS (
    -- A gateway that counted in the first half of a bin alone has its rate there.
    SELECT service, sum(rps) AS bin_rps, sum(half_rps) - :jump_sigmas * sqrt(sum(half_rps / lasted_s)) AS half_rps
    FROM pairs CROSS JOIN LATERAL (VALUES
        (half, CASE WHEN half > first + 1 THEN pair_rps END, arrived / lasted_s),
        (CASE WHEN half < coalesce(next, last) - 1 THEN half + 1 END, arrived / lasted_s, NULL)
    ) AS place (bin, rps, half_rps)
    WHERE bin IS NOT NULL
    GROUP BY service, bin
), busiest AS (
    SELECT service, greatest(max(bin_rps), max(half_rps)) AS rate_rps FROM bins GROUP BY service
)
SELECT service, mean_rps AS rate_rps_mean, greatest(mean_rps, bin_rps, half_rps, busiest.rate_rps) AS rate_rps_upper,
       least(:lookback_s, seen.window_s)::float8 AS window_s, seen.age_s
FROM newest
LEFT JOIN busiest USING (service)
JOIN (
    SELECT service, max(age_s) AS window_s, min(age_s) AS age_s FROM counted GROUP BY service
) AS seen USING (service)
WHERE mean_rps IS NOT NULL
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
