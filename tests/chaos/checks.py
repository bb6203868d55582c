"""What must hold at every moment, whoever was killed, frozen, lost, repeated or lied to. In SQL, and by nothing that
the product uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rows = Callable[..., list[Any]]

ALWAYS = {
    "generations rise by one from parent to child": """
        SELECT generation, parent_generation FROM (
            SELECT generation, parent_generation, row_number() OVER (ORDER BY generation) AS place FROM target_history
        ) AS history WHERE generation <> place OR parent_generation <> generation - 1""",
    "the current generation is the newest of history": """
        SELECT generation FROM cluster_state
        WHERE generation <> (SELECT coalesce(max(generation), 0) FROM target_history)""",
    "one plan is promoted, and it is the current one": """
        SELECT plans.id FROM plans LEFT JOIN cluster_state ON cluster_state.plan_id = plans.id
        WHERE (plans.state = 'promoted') <> (cluster_state.plan_id IS NOT NULL)""",
    "a deposed leader never writes": """
        SELECT generation FROM (
            SELECT generation, fencing_token AS token,
                   max(fencing_token) OVER (ORDER BY generation ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT ROW) AS last
            FROM target_history) AS history WHERE token < last""",
    "who promotes under a token had the lease": """
        SELECT generation FROM target_history, leases WHERE leases.name = 'planner' AND fencing_token > token""",
    "nodes are told the current generation": """
        SELECT node_id FROM node_targets, cluster_state WHERE node_targets.generation <> cluster_state.generation""",
    "each promotion is told once": """
        SELECT generation FROM target_history
        LEFT JOIN events ON name = 'plan.promoted' AND (facts ->> 'generation')::int = generation
        GROUP BY generation HAVING count(name) <> 1""",
    "no report is stored twice": """
        SELECT source, boot_id, sequence FROM report_log GROUP BY 1, 2, 3 HAVING count(*) > 1""",
    "a report is stored whole": """
        SELECT log.source, log.sequence FROM report_log AS log LEFT JOIN device_samples AS sample
            ON 'node/' || sample.node_id = log.source AND sample.boot_id = log.boot_id
            AND sample.sequence = log.sequence
        GROUP BY log.source, log.boot_id, log.sequence HAVING count(sample.uuid) <> 1""",
    "nobody speaks of what it was never told": """
        SELECT sample.node_id, sample.replica FROM replica_samples AS sample LEFT JOIN told_replicas AS told
            ON told.node_id = sample.node_id AND told.replica = sample.replica WHERE told.replica IS NULL""",
    "no work is done for others": """
        SELECT name, done FROM job_progress WHERE done >= 1000000""",
    "a key does its work once": """
        SELECT name, count(*) FROM tokens WHERE name LIKE 'post-%' GROUP BY 1 HAVING count(*) > 1""",
    "a node has one living token": """
        SELECT subject, count(*) FROM tokens WHERE purpose = 'node' AND revoked_at IS NULL AND name NOT LIKE '%node'
        GROUP BY 1 HAVING count(*) > 1""",
    "accounts sum to bills": """
        SELECT * FROM ledger_check WHERE difference_usd <> 0""",
}


_ALL = " UNION ALL ".join(
    f"SELECT '{name}' AS promise WHERE EXISTS ({query})" for name, query in ALWAYS.items()
)  # fmt: skip


def broken(rows: Rows) -> list[str]:
    """Every promise that does not hold now, with what breaks it."""
    return [f"{name}: {rows(ALWAYS[name])[:3]}" for (name,) in rows(_ALL)]
