"""One worker of the crew: what it was asked to be, its process, and how far its life has come.

Owns the record, its form in the state file and its reading. Times are seconds of the host's monotonic clock, which goes
on while agents change; the state file names the boot it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agents.crew.processes import ProcessId
from agents.crew.tally import Tally
from agents.devices.base import WorkerReading, WorkerSpec, WorkerState
from agents.devices.parts import CrewOrder
from agents.devices.specs import spec_from_plain, spec_to_plain
from agents.errors import NotSupportedError
from agents.wire import WorkerTarget

VERSION = 1


class Phase(StrEnum):
    """How far a worker's life has come."""

    WAITING = "waiting"
    """Another one of its device has not come up yet; it has no process."""
    STARTING = "starting"
    WARMING = "warming"
    ANSWERING = "answering"
    DONE = "done"
    """A job or task whose process ended well: it idles, as its iterations are done."""
    LEAVING = "leaving"
    """Draining; routers learn of it."""
    FINISHING = "finishing"
    """Draining; it finishes what it has."""
    ENDING = "ending"
    FAILED = "failed"


_STATES = {
    Phase.WAITING: WorkerState.STARTING,
    Phase.STARTING: WorkerState.STARTING,
    Phase.WARMING: WorkerState.STARTING,
    Phase.ANSWERING: WorkerState.READY,
    Phase.DONE: WorkerState.READY,
    Phase.LEAVING: WorkerState.DRAINING,
    Phase.FINISHING: WorkerState.DRAINING,
    Phase.ENDING: WorkerState.DRAINING,
    Phase.FAILED: WorkerState.FAILED,
}
_RESUMED = {Phase.WARMING: Phase.STARTING, Phase.FINISHING: Phase.LEAVING}
"""Where an agent takes up what another one was in the midst of."""


@dataclass(slots=True, eq=False)
class CrewMember:
    """A worker. What stands behind `order` dies with the agent."""

    name: str
    uuid: str
    spec: WorkerSpec
    since_s: float
    """In this state, not phase."""
    tally: Tally
    phase: Phase = Phase.WAITING
    process: ProcessId | None = None
    mark: str = ""
    port: int = 0
    port_count: int = 0
    answering: bool = False
    drained: bool = False
    failed: bool = False
    problem: str = ""
    note: str = ""
    """What is not as asked, though it works."""

    order: CrewOrder | None = None
    """Until the process is started."""
    pids: tuple[int, ...] = ()
    asking: set[str] = field(default_factory=set)
    """Questions under way."""
    next_ask_s: float = 0.0
    unanswered_s: float | None = None
    """Since when readiness is not answered."""
    scrape_wanted: bool = False
    silent: bool = False
    """Its metrics did not come in time when they were last wanted."""
    scraped_s: float = 0.0
    batch_told: bool = False
    """Its server was told its batch size after it had come up, because nothing it was started with says it."""
    warm_ups: int = 0
    quiet: int = 0
    """How often in a row nothing was in flight."""
    finish_by_s: float = 0.0
    kill_at_s: float = 0.0
    before_kill: Callable[[int], None] | None = None
    children_told: bool = False
    killing: bool = False
    came_up: bool = False
    """Has answered once, so that its start is over."""

    @property
    def target(self) -> WorkerTarget:
        """How its process is described."""
        if self.spec.worker is None:
            raise NotSupportedError(f"{self.spec.replica}: its workload does not say how its process is started")
        return self.spec.worker

    @property
    def serves(self) -> bool:
        """Takes requests; jobs and tasks work by themselves."""
        return self.spec.kind == "service"

    @property
    def speaks(self) -> bool:
        """Whether anybody listens on its port: jobs and tasks only where their description says so."""
        return self.serves or self.target.ready_path is not None

    @property
    def counts(self) -> bool:
        """Whether it has metrics to read."""
        return self.serves or self.target.metrics_path is not None

    @property
    def coming_up(self) -> bool:
        """Its start is not over, so that others of its device must wait."""
        return self.process is not None and not self.came_up and self.phase not in (Phase.FAILED, Phase.DONE)

    @property
    def state(self) -> WorkerState:
        """The state others see. Who does not answer any more is starting again, as far as they are concerned."""
        if self.failed:
            return WorkerState.FAILED
        silent = self.phase is Phase.ANSWERING and not self.answering
        return WorkerState.STARTING if silent else _STATES[self.phase]

    def enter(self, phase: Phase, now_s: float) -> None:
        """Go on to another phase."""
        before = self.state
        self.phase, self.failed = phase, self.failed or phase is Phase.FAILED
        self.answering = phase in (Phase.ANSWERING, Phase.DONE)
        self.came_up = self.came_up or self.answering
        if self.state is not before:
            self.since_s = now_s

    def answer(self, answering: bool, now_s: float) -> None:
        """It answers, or does not any more."""
        before = self.state
        self.answering = answering
        if self.state is not before:
            self.since_s = now_s

    def reading(self, host: str, now_s: float) -> WorkerReading:
        """Read-back. Waiting for one's turn is no time spent starting."""
        told = [text for text in (self.problem, self.note) if text]
        return WorkerReading(
            worker=self.name,
            uuid=self.uuid,
            spec=self.spec,
            sm_count=0,
            state=self.state,
            state_s=0.0 if self.phase is Phase.WAITING else max(0.0, now_s - self.since_s),
            drained=self.drained,
            endpoint=f"http://{host}:{self.port}" if self.port else None,
            problem="; ".join(told),
        )


def member_to_plain(member: CrewMember, boot_id: str) -> dict[str, object]:
    """The state file's content."""
    process = member.process
    return {
        "version": VERSION,
        "boot_id": boot_id,
        "name": member.name,
        "uuid": member.uuid,
        "spec": spec_to_plain(member.spec),
        "since_s": member.since_s,
        "phase": member.phase.value,
        "process": None if process is None else [process.pid, process.started_ticks],
        "mark": member.mark,
        "port": member.port,
        "port_count": member.port_count,
        "answering": member.answering,
        "came_up": member.came_up,
        "drained": member.drained,
        "failed": member.failed,
        "problem": member.problem,
        "note": member.note,
    }


def member_from_plain(plain: Mapping[str, Any], now_s: float) -> CrewMember:
    """The worker that was written. Raises ValueError, KeyError or TypeError for what is none."""
    if plain["version"] != VERSION:
        raise ValueError(f"version {plain['version']} of a worker's state")
    process, phase = plain["process"], Phase(plain["phase"])
    tally = Tally(told_s=now_s)
    tally.begin()
    return CrewMember(
        name=str(plain["name"]),
        uuid=str(plain["uuid"]),
        spec=spec_from_plain(plain["spec"]),
        since_s=float(plain["since_s"]),
        tally=tally,
        phase=_RESUMED.get(phase, phase),
        process=None if process is None else ProcessId(pid=int(process[0]), started_ticks=int(process[1])),
        mark=str(plain["mark"]),
        port=int(plain["port"]),
        port_count=int(plain["port_count"]),
        answering=bool(plain["answering"]),
        came_up=bool(plain["came_up"]),
        drained=bool(plain["drained"]),
        failed=bool(plain["failed"]),
        problem=str(plain["problem"]),
        note=str(plain["note"]),
    )
