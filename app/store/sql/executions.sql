-- name: replica_minutes
-- Every process of every replica by the minute in which its reports arrived. Summed by its place in its shape before it
-- is named: names are longer than numbers, and stand in every report.
WITH read AS (
    SELECT date_trunc('minute', received_at, 'UTC') AS minute, shaped_at, shape,
           generate_subscripts(replica_held_s, 1) AS place, unnest(replica_state) AS state,
           unnest(replica_held_s) AS held_s, unnest(replica_completed) AS completed, unnest(replica_dropped) AS dropped,
           unnest(replica_executions) AS executions, unnest(replica_execution_ms_mean) AS execution_ms_mean,
           unnest(replica_batch_mean) AS batch_mean
    FROM node_samples WHERE received_at >= :start AND received_at < :end
), summed AS (
    SELECT minute, shaped_at, shape, place, bool_and(coalesce(state, 'ready') = 'ready') AS ready,
           coalesce(bool_or(state = 'failed'), false) AS failed, sum(held_s) AS held_s, sum(completed) AS completed,
           sum(dropped) AS dropped,
           coalesce(sum(executions) FILTER (WHERE execution_ms_mean IS NOT NULL), 0) AS executions,
           coalesce(sum(executions * execution_ms_mean), 0) AS executed_ms,
           coalesce(sum(executions * batch_mean) FILTER (WHERE execution_ms_mean IS NOT NULL), 0) AS batched
    FROM read GROUP BY minute, shaped_at, shape, place
), called AS (
    SELECT minute, replica_uuid[place] AS uuid, replica_name[place] AS replica, replica_kind[place] AS kind,
           replica_model[place] AS model, replica_share_pct_sm[place] AS share_pct_sm,
           replica_sm_count[place] AS sm_count, replica_batch[place] AS batch, ready, failed, held_s, completed, dropped,
           executions, executed_ms, batched
    FROM summed JOIN sample_shapes AS named ON named.received_at = shaped_at AND named.shape = summed.shape
    UNION ALL
    SELECT date_trunc('minute', received_at, 'UTC'), uuid, replica, kind, model, share_pct_sm, sm_count, batch,
           state = 'ready', state = 'failed', held_s, completed, dropped,
           CASE WHEN execution_ms_mean IS NULL THEN 0 ELSE executions END, coalesce(executions * execution_ms_mean, 0),
           CASE WHEN execution_ms_mean IS NULL THEN 0 ELSE executions * batch_mean END
    FROM replica_sample_rows WHERE received_at >= :start AND received_at < :end
)
SELECT minute, uuid, replica, kind, model, share_pct_sm, sm_count, batch, bool_and(ready) AS ready,
       bool_or(failed) AS failed, sum(held_s) AS held_s, sum(completed) AS completed, sum(dropped) AS dropped,
       sum(executions) AS executions, sum(executed_ms) AS executed_ms,
       coalesce(sum(batched) / nullif(sum(executions), 0), 0) AS batch_mean
FROM called
GROUP BY minute, uuid, replica, kind, model, share_pct_sm, sm_count, batch
ORDER BY minute, uuid, replica, share_pct_sm, batch

-- name: device_minutes
-- Every device by the minute in which its reports arrived.
WITH samples AS (
    SELECT s.received_at, s.interval_s, unnest(h.device_uuid) AS uuid, unnest(s.device_clock_mhz_sm) AS clock_mhz_sm,
           unnest(s.device_throttle) AS throttle, unnest(s.device_healthy) AS healthy
    FROM sample_shapes h JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape
    WHERE s.received_at >= :start AND s.received_at < :end
    UNION ALL
    SELECT received_at, interval_s, uuid, clock_mhz_sm, throttle, healthy
    FROM device_sample_rows WHERE received_at >= :start AND received_at < :end
)
SELECT date_trunc('minute', received_at, 'UTC') AS minute, uuid, sum(interval_s) AS seconds,
       min(clock_mhz_sm) AS clock_mhz_sm_min, max(clock_mhz_sm) AS clock_mhz_sm_max,
       avg(clock_mhz_sm)::float8 AS clock_mhz_sm_mean,
       bool_or(coalesce(throttle, '') <> '') AS throttled,
       bool_or(coalesce(throttle, '') ~ 'thermal|hw_slowdown|power_brake|reliability') AS hindered, bool_and(coalesce(healthy, true)) AS healthy
FROM samples
GROUP BY 1, uuid
ORDER BY 1, uuid

-- name: clocks_asked
-- The SM clock that devices are told to hold; those left to their driver are missing.
SELECT device ->> 'uuid' AS uuid, (device ->> 'clock_mhz_sm')::integer AS clock_mhz_sm
FROM node_targets CROSS JOIN LATERAL jsonb_array_elements(document -> 'devices') AS device
WHERE device ->> 'clock_mhz_sm' IS NOT NULL
