-- name: report_heads
-- The newest report of every node.
SELECT state.node_id, head.boot_id, extract(epoch FROM head.observed_at)::float8 AS observed_at_s
FROM node_states AS state JOIN report_heads AS head ON head.source = 'node/' || state.node_id
