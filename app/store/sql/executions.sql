-- name: replica_minutes
-- Every process of every replica by the minute in which its reports arrived.
WITH samples AS (
    SELECT s.received_at, unnest(h.replica_uuid) AS uuid, unnest(h.replica_name) AS replica,
           unnest(h.replica_kind) AS kind, unnest(h.replica_model) AS model,
           unnest(h.replica_share_pct_sm) AS share_pct_sm, unnest(h.replica_sm_count) AS sm_count,
           unnest(h.replica_batch) AS batch, unnest(s.replica_state) AS state, unnest(s.replica_held_s) AS held_s,
           unnest(s.replica_completed) AS completed, unnest(s.replica_dropped) AS dropped,
           unnest(s.replica_executions) AS executions, unnest(s.replica_execution_ms_mean) AS execution_ms_mean,
           unnest(s.replica_batch_mean) AS batch_mean
    FROM sample_shapes h JOIN node_samples s ON s.shaped_at = h.received_at AND s.shape = h.shape
    WHERE s.received_at >= :start AND s.received_at < :end
    UNION ALL
    SELECT received_at, uuid, replica, kind, model, share_pct_sm, sm_count, batch, state, held_s, completed, dropped,
           executions, execution_ms_mean, batch_mean
    FROM replica_sample_rows WHERE received_at >= :start AND received_at < :end
)
SELECT date_trunc('minute', received_at, 'UTC') AS minute, uuid, replica, kind, model, share_pct_sm, sm_count, batch,
       bool_and(coalesce(state, 'ready') = 'ready') AS ready, coalesce(bool_or(state = 'failed'), false) AS failed,
       sum(held_s) AS held_s,
       sum(completed) AS completed, sum(dropped) AS dropped,
       coalesce(sum(executions) FILTER (WHERE execution_ms_mean IS NOT NULL), 0) AS executions,
       coalesce(sum(executions * execution_ms_mean), 0) AS executed_ms,
       coalesce(sum(executions * batch_mean) FILTER (WHERE execution_ms_mean IS NOT NULL)
           / nullif(sum(executions) FILTER (WHERE execution_ms_mean IS NOT NULL), 0), 0) AS batch_mean
FROM samples
GROUP BY 1, uuid, replica, kind, model, share_pct_sm, sm_count, batch
ORDER BY 1, uuid, replica, share_pct_sm, batch

-- name: device_minutes
-- Every device by the minute in which its reports arrived.
SELECT date_trunc('minute', received_at, 'UTC') AS minute, uuid, sum(interval_s) AS seconds,
       min(clock_mhz_sm) AS clock_mhz_sm_min, max(clock_mhz_sm) AS clock_mhz_sm_max,
       bool_or(throttle <> '') AS throttled, bool_and(healthy) AS healthy
FROM device_samples
WHERE received_at >= :start AND received_at < :end
GROUP BY 1, uuid
ORDER BY 1, uuid

-- name: clocks_asked
-- The SM clock that devices are told to hold; those left to their driver are missing.
SELECT device ->> 'uuid' AS uuid, (device ->> 'clock_mhz_sm')::integer AS clock_mhz_sm
FROM node_targets CROSS JOIN LATERAL jsonb_array_elements(document -> 'devices') AS device
WHERE device ->> 'clock_mhz_sm' IS NOT NULL
