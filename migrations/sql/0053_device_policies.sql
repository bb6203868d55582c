-- Which policy decides on each billable device, and so by whose prices it is billed. The rule is the planner's
-- (`solvers.domain.ownership`; a test holds both together): a pool's selectors of different kinds all have to match, of
-- devices, nodes and GPU types any one named is enough, of labels every one has to be on the node; a GPU and its slices
-- have one owner, on each node that they were on; of several pools the first policy by name; what no pool means belongs to `default`.
CREATE OR REPLACE VIEW device_policies AS
    WITH parts AS (
        SELECT uuid, node_id, gpu_type, node_spec, live, billed_from, coalesce(spec #>> '{mig,parent}', uuid) AS board
        FROM billable_devices
    ),
    owners AS (
        SELECT d.board, d.live, d.node_id, min(p.name COLLATE "C") COLLATE "default" AS policy
        FROM parts d
        JOIN policies p ON p.name <> 'default' AND jsonb_typeof(p.spec -> 'pool') = 'object'
            AND (coalesce(p.spec #> '{pool,devices}', '[]') = '[]' OR p.spec #> '{pool,devices}' ? d.uuid)
            AND (coalesce(p.spec #> '{pool,nodes}', '[]') = '[]' OR p.spec #> '{pool,nodes}' ? d.node_id)
            AND (coalesce(p.spec #> '{pool,gpu_types}', '[]') = '[]' OR p.spec #> '{pool,gpu_types}' ? d.gpu_type)
            AND coalesce(d.node_spec -> 'labels', '[]') @> coalesce(p.spec #> '{pool,labels}', '[]')
        GROUP BY d.board, d.live, d.node_id
    )
    SELECT d.uuid, d.live, d.billed_from, coalesce(o.policy, 'default') AS policy, coalesce(p.spec, '{}') AS policy_spec
    FROM parts d
    LEFT JOIN owners o ON o.board = d.board AND o.live = d.live AND o.node_id = d.node_id
    LEFT JOIN policies p ON p.name = coalesce(o.policy, 'default');

COMMENT ON VIEW device_policies IS
    'Which policy decides on each billable device, and so by whose prices it is billed; read by the ledger only.';
