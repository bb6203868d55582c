"""What must hold whatever is killed: one current target, generations without gap or repeat, no device asked or seen
to hold more than it has. Memory is what it has; shares are ceilings, which may overlap while processes change over,
so only what is asked to stay must fit by them.

Owns the checks over the database, while things happen and afterwards. It shares no code with the verifier or the
planners: sums are summed anew, in SQL.
"""

from __future__ import annotations

import json

import psycopg
from psycopg.rows import TupleRow

from solvers.errors import HeadroomError
from tests.integration.faults.fleet import HIGH_RPS, MEMORY_MIB, PROJECT, SERVICES
from tests.integration.faults.house import House

OVERFULL_TARGETS = """
SELECT node_id, device ->> 'uuid',
       sum((replica ->> 'share_pct_sm')::int) FILTER (WHERE replica ->> 'retire_after_s' IS NULL),
       sum((replica ->> 'memory_mib_limit')::int)
FROM node_targets, jsonb_array_elements(document -> 'devices') AS device,
     jsonb_array_elements(device -> 'replicas') AS replica
GROUP BY 1, 2
HAVING sum((replica ->> 'share_pct_sm')::int) FILTER (WHERE replica ->> 'retire_after_s' IS NULL) > 100
    OR sum((replica ->> 'memory_mib_limit')::int) > %s
"""
OVERFULL_RECEIPTS = """
SELECT id, node_id, replica ->> 'uuid', sum((replica ->> 'memory_mib_limit')::int)
FROM receipts, jsonb_array_elements(document -> 'replicas') AS replica
GROUP BY 1, 2, 3
HAVING sum((replica ->> 'memory_mib_limit')::int) > %s
"""
OVERFULL_DEVICES = "SELECT node_id, uuid, sequence, memory_mib_used FROM device_samples WHERE memory_mib_used > %s"
GAPS = """
SELECT generation, parent_generation FROM (
    SELECT generation, parent_generation, row_number() OVER (ORDER BY generation) AS place FROM target_history
) AS history WHERE generation <> place OR parent_generation <> generation - 1
"""
# Who wrote a later generation had a token at least as high; a deposed leader never writes again.
FENCE_BROKEN = """
SELECT generation, token, last FROM (
    SELECT generation, fencing_token AS token, lag(fencing_token) OVER (ORDER BY generation) AS last FROM target_history
) AS history WHERE token < last
"""
# Agents send again what was not acknowledged, so one boot's sequences have no holes, whoever was away.
HOLES = """
SELECT source, boot_id, count(*), min(sequence), max(sequence) FROM report_log GROUP BY 1, 2
HAVING count(*) <> max(sequence) - min(sequence) + 1
"""
DOUBLED = """
SELECT source, boot_id, sequence, count(*) FROM report_log GROUP BY 1, 2, 3 HAVING count(*) > 1
"""


class Watch:
    """Looks again and again while others are being killed; what it saw last must never be taken back."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._line = house.line()
        self._generation = 0
        self.looks = 0
        self.workers_seen = 0

    def __call__(self) -> None:
        """One look. A database that is away is no finding."""
        self._look_at_devices()
        try:
            with self._line.picture() as connection:
                states = connection.execute("SELECT generation FROM cluster_state").fetchall()
                newest = connection.execute("SELECT coalesce(max(generation), 0) FROM target_history").fetchall()
                targets = connection.execute("SELECT DISTINCT generation FROM node_targets").fetchall()
                overfull = connection.execute(OVERFULL_TARGETS, (MEMORY_MIB,)).fetchall()
                gaps = connection.execute(GAPS).fetchall()
        except (psycopg.Error, HeadroomError, OSError):
            return
        assert len(states) <= 1, f"several current targets: {states}"
        generation = states[0][0] if states else 0
        assert generation >= self._generation, f"generation {self._generation} was taken back to {generation}"
        assert newest[0][0] == generation, f"history ends at {newest[0][0]}, current is {generation}"
        assert [row[0] for row in targets] in ([], [generation]), f"targets of {targets} beside {generation}"
        assert overfull == []
        assert gaps == []
        self._generation = generation
        self.looks += 1

    def _look_at_devices(self) -> None:
        """What simulated devices hold at this moment, by the file in which their workers outlive the agent."""
        for file in (self._house.home / "agents").glob("*/devices.json"):
            for board in json.loads(file.read_text())["boards"]:
                specs = [worker["spec"] for worker in board["workers"]]
                self.workers_seen += len(specs)
                assert sum(spec["memory_mib_limit"] for spec in specs) <= MEMORY_MIB, (file.parent.name, board)


def check_afterwards(house: House, *forgiven: str) -> None:
    """Everything that was written, from the first moment to the last."""
    Watch(house)()
    assert house.rows("SELECT count(*) FROM cluster_state") == [(1,)]
    for query in (GAPS, FENCE_BROKEN, DOUBLED, HOLES):
        assert house.rows(query) == [], query
    for query in (OVERFULL_TARGETS, OVERFULL_RECEIPTS, OVERFULL_DEVICES):
        assert house.rows(query, MEMORY_MIB) == [], query
    with house.client() as client:
        house.await_true("the API tells it, too", lambda: client.target()["generation"] == house.generation())
    crashes = house.tracebacks(*forgiven)
    assert not crashes, crashes


def behind(house: House, *nodes: str) -> list[TupleRow]:
    """Nodes that do not yet hold the current generation, by their reports or by their receipts, with what is held."""
    return [
        row
        for row in house.rows(
            "SELECT node, state.generation_applied, target.generation, receipt.outcome FROM unnest(%s::text[]) AS node"
            " LEFT JOIN node_targets AS target ON target.node_id = node"
            " LEFT JOIN node_states AS state ON state.node_id = node LEFT JOIN LATERAL ("
            "  SELECT outcome FROM receipts WHERE receipts.node_id = node AND receipts.generation = target.generation"
            "  ORDER BY id DESC LIMIT 1) AS receipt ON true",
            list(nodes),
        )
        if row[1] is None or row[1] != row[2] or row[3] != "applied"
    ]


def planned_rps(house: House, name: str) -> float:
    """What the current plan lets a service's replicas serve, requests per second."""
    found: float | None = house.one(
        "SELECT sum((each ->> 'capacity_rps')::float8)"
        " FROM cluster_state JOIN plans ON plans.id = cluster_state.plan_id,"
        " jsonb_array_elements(plans.document -> 'assignments') AS each WHERE each ->> 'workload' = %s",
        f"{PROJECT}/{name}",
    )
    return found or 0.0


def meets(house: House, name: str) -> bool:
    """Whether the current plan was made for this service being busy and the others quiet."""
    return all((planned_rps(house, each) > HIGH_RPS) is (each == name) for each in SERVICES)


def held(house: House, node: str) -> dict[str, tuple[str, int, int]]:
    """What a node's newest report says it runs: device, share and memory limit by replica."""
    return {
        replica: (uuid, share_pct, memory_mib)
        for replica, uuid, share_pct, memory_mib in house.rows(
            "SELECT replica, uuid, share_pct_sm, memory_mib_limit FROM replica_samples AS sample"
            " JOIN report_heads AS head ON head.source = 'node/' || sample.node_id AND head.boot_id = sample.boot_id"
            " AND head.sequence = sample.sequence WHERE sample.node_id = %s AND sample.state = 'ready'",
            node,
        )
    }


def wanted(house: House, node: str) -> dict[str, tuple[str, int, int]]:
    """What a node shall run; what is on its way out may run, too."""
    return {
        replica: (uuid, share_pct, memory_mib)
        for replica, uuid, share_pct, memory_mib in house.rows(
            "SELECT replica ->> 'replica', device ->> 'uuid', (replica ->> 'share_pct_sm')::int,"
            " (replica ->> 'memory_mib_limit')::int FROM node_targets,"
            " jsonb_array_elements(document -> 'devices') AS device,"
            " jsonb_array_elements(device -> 'replicas') AS replica"
            " WHERE node_id = %s AND replica ->> 'retire_after_s' IS NULL",
            node,
        )
    }
