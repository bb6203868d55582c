"""How long services' demand is remembered: learned of what gateways counted in the last hour."""

from __future__ import annotations

from app import kinds
from app.logs import EventLog
from app.services.planning.planning import Leader
from app.services.planning.snapshots import deciding_policies, read_services
from app.store import documents, telemetry
from app.store.engine import Database
from solvers.cycle.memory import PAST_S, memory_s
from solvers.cycle.ports import Clock
from solvers.domain.ids import ServiceId
from solvers.domain.telemetry import DEMAND_BIN_S
from solvers.domain.workload import ModelVariant

RESTS = 100.0
"""So many times as long as a look at an hour takes nobody looks again."""
_log = EventLog("headroom.planner")


class DemandMemory:
    """The loop that learns how long to look back."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._due_ms = 0.0

    def learn(self, leader: Leader) -> None:  # noqa: ARG002 - every loop is told who leads
        """Learn for every service. Raises TransientError."""
        began_ms = self._clock.elapsed_ms()
        if began_ms < self._due_ms:
            return
        with self._database.reading() as session:
            services = {service.id: service for service in read_services(session)}
            policies, known_s = deciding_policies(session, services.values()), telemetry.memories_s(session)
            launch_s = {model.name: model.launch_s for model in documents.values(session, kinds.MODEL, ModelVariant)}
            found_s: dict[str, float] = {}
            for name, past in telemetry.asked(session, PAST_S, DEMAND_BIN_S):
                service = services.get(ServiceId(name))
                if service is None or service.model not in launch_s:
                    continue
                policy = policies[service.id]
                seconds = memory_s(past, service, policy, launch_s[service.model])
                if policy.demand_lookback_learned and seconds < policy.demand_lookback_s:
                    found_s[service.id] = seconds
        if found_s != known_s:
            with self._database.transaction() as session:
                telemetry.put_memories(session, found_s)
            _log.info("demand.remembered", shorter=len(found_s), of=len(services))
        ended_ms = self._clock.elapsed_ms()
        self._due_ms = ended_ms + RESTS * (ended_ms - began_ms)
