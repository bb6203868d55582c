"""What planners keep between cycles, in the database: the Memory port of production.

Owns the name under which a state is kept: a planner's own (after its policy's where that has a pool) and its version,
so that no planner is handed the state of another version. It refuses to look into states.
"""

from __future__ import annotations

from app.store import planner_states
from app.store.engine import Database
from solvers.cycle.ports import memory_key
from solvers.cycle.record import CycleRecord
from solvers.domain.ids import Digest, PolicyName
from solvers.errors import EngineError, StateError
from solvers.planners import registry


class StoreMemory:
    """States by planner, or policy and planner, and version."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recall(self, planner: str) -> bytes | None:
        """The newest state; None for a planner that nobody knows or that kept nothing."""
        version = _version(planner)
        if version is None:
            return None
        with self._database.reading() as session:
            found = planner_states.find(session, planner, version)
        return None if found is None else found.state

    def keep(self, planner: str, state: bytes) -> None:
        """Make this the newest state."""
        version = _version(planner)
        if version is not None:
            with self._database.transaction() as session:
                planner_states.put(session, planner, version, state)

    def recall_exactly(self, record: CycleRecord) -> bytes | None:
        """What the planner of a record's plan was handed. Raises StateError when that is kept no more."""
        plan, digest = record.plan, record.state_digest
        if plan is None or digest is None:
            return None
        return self._exactly(record, plan.planner, plan.planner_version, digest)

    def recall_parts(self, record: CycleRecord) -> dict[PolicyName, bytes]:
        """The same for every policy that had a part in the plan."""
        lines = {} if record.plan is None else {(line.policy, line.planner): line for line in record.plan.parts}
        found = {}
        for attempt in record.attempts:
            line = lines.get((attempt.policy, attempt.planner)) if attempt.policy is not None else None
            if line is not None and attempt.state_digest is not None:
                key = memory_key(record.snapshot.policy.name, line.policy, line.planner)
                found[line.policy] = self._exactly(record, key, line.planner_version, attempt.state_digest)
        return found

    def _exactly(self, record: CycleRecord, key: str, version: str, digest: Digest) -> bytes:
        with self._database.reading() as session:
            found = planner_states.find(session, key, version, digest)
        if found is None:
            raise StateError(
                f"what {key} remembered in cycle {record.id} is kept no more", cycle=record.id, state=digest
            )
        return found.state


def _version(key: str) -> str | None:
    try:
        return registry.create(key.rpartition("/")[2]).spec.version
    except EngineError:
        return None
