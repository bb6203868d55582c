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

-- name: told_governors
-- Which governor each workload has on each device.
SELECT DISTINCT replica->>'workload' AS workload, device->>'uuid' AS device,
    coalesce(device->>'governor', document->>'governor', 'morak') AS governor
FROM node_targets, jsonb_array_elements(document->'devices') AS device,
    jsonb_array_elements(device->'replicas') AS replica
WHERE replica->>'retire_after_s' IS NULL ORDER BY 1, 2
