"""One worker of the crew: what it was asked to be, its process, how far its life has come; and what all parts of the
crew work with: the host, the files, the members and the lock around them.

Times are seconds of the host's monotonic clock, which goes on while agents change; the state file names the boot it
belongs to. Whoever holds the lock may touch members; nobody waits for a worker, a daemon or a thread while holding it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from agents.config import WorkerRules
from agents.crew.metrics import Tally
from agents.crew.resources import CgroupLimits, Logs, PortBook, listeners
from agents.crew.users import ProjectUsers
from agents.crew.web import Question, SocketWeb, WebAnswer
from agents.devices.base import WorkerReading, WorkerSample, WorkerSpec, WorkerState
from agents.devices.parts import CrewOrder
from agents.errors import NotSupportedError, StateFileError
from agents.processes import HostProcesses, ProcessId
from agents.state import StateDirectory
from agents.wire import WorkerTarget, decode

VERSION = 1


class Phase(StrEnum):
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


@dataclass(slots=True, kw_only=True, eq=False)
class KeptMember:
    """What the state file holds of a member as it is."""

    name: str
    uuid: str
    since_s: float
    """In this state, not phase."""
    mark: str = ""
    port: int = 0
    port_count: int = 0
    answering: bool = False
    came_up: bool = False
    """Has answered once, so that its start is over."""
    drained: bool = False
    failed: bool = False
    problem: str = ""
    note: str = ""
    """What is not as asked, though it works."""


@dataclass(slots=True, kw_only=True, eq=False)
class CrewMember(KeptMember):
    """A worker. What stands behind `order` dies with the agent."""

    spec: WorkerSpec
    tally: Tally
    phase: Phase = Phase.WAITING
    process: ProcessId | None = None

    order: CrewOrder | None = None
    """Until the process is started."""
    apart: bool = False
    """It sees its own memory limit only. Not known of those that an earlier agent started."""
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

    @property
    def target(self) -> WorkerTarget:
        if self.spec.worker is None:
            raise NotSupportedError(f"{self.spec.replica}: its workload does not say how its process is started")
        return self.spec.worker

    @property
    def serves(self) -> bool:
        """Takes requests; jobs and tasks work by themselves."""
        return self.spec.takes_requests

    @property
    def speaks(self) -> bool:
        """Whether anybody listens on its port: jobs and tasks only where their description says so."""
        return self.serves or self.target.ready_path is not None

    @property
    def counts(self) -> bool:
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
        before = self.state
        self.phase, self.failed = phase, self.failed or phase is Phase.FAILED
        self.answering = phase in (Phase.ANSWERING, Phase.DONE)
        self.came_up = self.came_up or self.answering
        if self.state is not before:
            self.since_s = now_s

    def answer(self, answering: bool, now_s: float) -> None:
        before = self.state
        self.answering = answering
        if self.state is not before:
            self.since_s = now_s

    def finish(self) -> None:
        """It has done all it was started for."""
        if self.spec.iterations_total is not None:
            self.tally.finish(self.spec.iterations_total)

    def reading(self, host: str, now_s: float) -> WorkerReading:
        """Read-back. Waiting for one's turn is no time spent starting."""
        told = [text for text in (self.problem, self.note) if text]
        stalled_s = self.tally.stalled_s(now_s) if self.phase is Phase.ANSWERING and not self.serves else None
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
            stalled=f"no progress for more than {stalled_s / 60:.0f} min, though its process runs" if stalled_s else "",
        )


_KEPT = tuple(field.name for field in fields(KeptMember))


def member_to_plain(member: CrewMember, boot_id: str) -> dict[str, object]:
    process = member.process
    return {
        "version": VERSION,
        "boot_id": boot_id,
        "spec": asdict(member.spec),
        "phase": member.phase.value,
        "process": None if process is None else [process.pid, process.started_ticks],
        **{name: getattr(member, name) for name in _KEPT},
    }


def member_from_plain(plain: Mapping[str, Any], now_s: float) -> CrewMember:
    """The worker that was written. Raises ValueError, KeyError or TypeError for what is none."""
    if plain["version"] != VERSION:
        raise ValueError(f"version {plain['version']} of a worker's state")
    process, phase = plain["process"], Phase(plain["phase"])
    tally = Tally(told_s=now_s)
    tally.begin()
    member = CrewMember(
        spec=decode(WorkerSpec, plain["spec"]),
        tally=tally,
        phase=_RESUMED.get(phase, phase),
        process=None if process is None else ProcessId(int(process[0]), int(process[1])),
        **asdict(decode(KeptMember, {name: plain[name] for name in _KEPT})),
    )
    if phase is Phase.DONE:
        # Its agent may have died before it told that.
        member.finish()
    return member


FOLDER, LOG_FOLDER = "workers", "logs"
_ENDING = ".ended"
_UNSAFE = re.compile(r"[^A-Za-z0-9@_-]")
_NAME_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewOptions(WorkerRules):
    """How this host keeps its workers. `ports`: what they listen on, one block each. `route_grace_s`: how long routers
    may take to learn that a worker leaves. `host`: the address (IPv4) on which workers listen and are reached.
    """

    state_dir: Path
    host: str = "127.0.0.1"
    ports: range = range(20000, 21000)
    route_grace_s: float = 2.0
    starts_at_once: int = 1
    """Workers of a device that come up beside each other, where each has its memory to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewHost:
    processes: HostProcesses
    web: SocketWeb
    limits: CgroupLimits
    fetch: Callable[[Question], WebAnswer]
    """Waits for its answer."""
    connections: Callable[[int], int]
    free: Callable[[int], bool]
    aside: Callable[[Callable[[], None]], None]
    """Runs what may wait in a thread of its own. Raises WorkerError where the host has none left."""
    boot_id: str
    users: ProjectUsers | None = None
    """Of the projects whose workers run here; None: they are the agent's."""
    listeners: Callable[[str, int], frozenset[int]] = listeners
    """Users of those who get the connections to an address and port."""


@dataclass(slots=True, kw_only=True)
class CrewBench:
    options: CrewOptions
    host: CrewHost
    now_s: Callable[[], float]
    logs: Logs
    ports: PortBook
    state: StateDirectory
    lock: threading.RLock = field(default_factory=threading.RLock)
    members: dict[str, CrewMember] = field(default_factory=dict)
    gone: list[WorkerSample] = field(default_factory=list)
    """Last samples of workers that ended since the last report."""

    def write(self, member: CrewMember) -> None:
        self.state.write_json(file_name(member.name), member_to_plain(member, self.host.boot_id))

    def save(self, member: CrewMember) -> None:
        """Write a member down. A full disk ends no process: it is said, and the next agent may not know of it."""
        try:
            self.write(member)
        except StateFileError as error:
            member.note = str(error)

    def ending(self, member: CrewMember) -> Path | None:
        """Where the keeper of a job or task writes how it ended. However a service ends, it has failed."""
        return None if member.serves else self.state.path / f"{safe_name(member.name)}{_ENDING}"

    def sweep_endings(self) -> None:
        """Nobody's, as after a reboot."""
        kept = set(map(self.ending, self.members.values()))
        for path in set(self.state.path.glob(f"*{_ENDING}")) - kept:
            with contextlib.suppress(OSError):
                path.unlink()

    def forget(self, member: CrewMember) -> None:
        now_s = self.now_s()
        if member.process is not None:
            member.answering = False
            reading = member.reading(self.options.host, now_s)
            self.gone.append(member.tally.cut(reading, now_s, gone=True))
        del self.members[member.name]
        # The next agent finds that its process is no more, where that cannot be written now.
        with contextlib.suppress(StateFileError):
            self.state.remove(file_name(member.name))
            self.state.remove(f"{safe_name(member.name)}{_ENDING}")
        self.ports.free(member.name)
        self.host.limits.remove(safe_name(member.name))
        self.logs.prune(frozenset(safe_name(name) for name in self.members))


def safe_name(name: str) -> str:
    """A worker's name as part of a file's; different names stay different."""
    return _UNSAFE.sub(lambda found: "".join(f".{byte:02x}" for byte in found[0].encode()), name)[:_NAME_MAX]


def file_name(name: str) -> str:
    return f"{safe_name(name)}.json"
