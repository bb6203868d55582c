"""A host that is none: a clock, processes and answers that tests move by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agents.crew.crew import HostCrew, build_crew
from agents.crew.launching import MARK, Invocation
from agents.crew.member import CrewHost, CrewOptions
from agents.crew.resources import CgroupLimits
from agents.crew.users import ProjectUsers
from agents.crew.web import Question, Then, WebAnswer
from agents.devices.base import WorkerSpec
from agents.devices.parts import CrewOrder, CrewReading
from agents.errors import WorkerError
from agents.processes import ProcessId
from agents.wire import WarmUpTarget, WorkerTarget

UNREACHABLE = WebAnswer(status=0, problem="Connection refused")


def target(
    *,
    adapter: str = "http",
    command: tuple[str, ...] = ("/bin/true",),
    environment: tuple[tuple[str, str], ...] = (),
    warm_up: WarmUpTarget | None = None,
    ready_path: str | None = None,
    metrics_path: str | None = None,
    batch_change: str | None = None,
    metrics_port_offset: int = 0,
    stop_s: float = 10.0,
    drain_s: float = 30.0,
    host_memory_mib_max: int | None = None,
) -> WorkerTarget:
    """How a process is described."""
    return WorkerTarget(
        command=command,
        environment=environment,
        adapter=adapter,
        warm_up=warm_up,
        ready_path=ready_path,
        metrics_path=metrics_path,
        batch_change=batch_change,
        metrics_port_offset=metrics_port_offset,
        stop_s=stop_s,
        drain_s=drain_s,
        host_memory_mib_max=host_memory_mib_max,
    )


def spec(
    worker: WorkerTarget | None = None,
    *,
    kind: str = "service",
    batch: int = 4,
    memory_mib_limit: int = 4000,
    latency_ms_limit: float | None = 50.0,
    iterations_total: int | None = None,
) -> WorkerSpec:
    """What is asked for."""
    return WorkerSpec(
        replica="shop/search-0",
        kind=kind,
        workload="shop/search",
        project="shop",
        model="bert",
        share_pct_sm=50,
        memory_mib_limit=memory_mib_limit,
        batch=batch,
        latency_ms_limit=latency_ms_limit,
        launch_s=1.0,
        iterations_total=iterations_total,
        worker=worker,
    )


def order(
    name: str = "shop/search-0@1",
    *,
    uuid: str = "GPU-a",
    worker: WorkerTarget | None = None,
    memory_mib_limit: int = 4000,
    device_memory_mib: int = 16000,
    kind: str = "service",
    iterations_total: int | None = None,
) -> CrewOrder:
    """A worker to launch."""
    asked = spec(worker or target(), kind=kind, memory_mib_limit=memory_mib_limit, iterations_total=iterations_total)
    return CrewOrder(worker=name, uuid=uuid, spec=asked, environment={}, device_memory_mib=device_memory_mib)


@dataclass(slots=True)
class FakeProcesses:
    """Processes as rows: session, whether they live, how they ended."""

    next_pid: int = 100
    living: dict[ProcessId, int] = field(default_factory=dict)
    """Session of each."""
    statuses: dict[ProcessId, int] = field(default_factory=dict)
    started: list[Invocation] = field(default_factory=list)
    sent: list[tuple[int, signal.Signals]] = field(default_factory=list)
    marks: dict[ProcessId, str] = field(default_factory=dict)
    deaf: bool = False
    refusal: str = ""

    def start(self, invocation: Invocation, log: int, ending: Path | None = None) -> ProcessId:
        if self.refusal:
            raise WorkerError(self.refusal)
        self.started.append(invocation)
        leader = self.spawn(self.next_pid)
        self.marks[leader] = invocation.environment[MARK]
        return leader

    def spawn(self, session: int) -> ProcessId:
        """A process in a session."""
        process = ProcessId(pid=self.next_pid, started_ticks=self.next_pid)
        self.next_pid += 1
        self.living[process] = session
        return process

    def die(self, process: ProcessId, status: int = 0) -> None:
        """End by itself."""
        del self.living[process]
        self.statuses[process] = status

    def alive(self, process: ProcessId) -> bool:
        return process in self.living

    def keeper_waits(self, ending: Path) -> bool:
        return False

    def exit_status(self, process: ProcessId, ending: Path | None = None) -> int | None:
        return self.statuses.get(process)

    def sessions(self, leaders: Iterable[ProcessId]) -> dict[ProcessId, tuple[ProcessId, ...]]:
        return {
            leader: tuple(sorted((each for each, session in self.living.items() if session == leader.pid), key=_pid))
            for leader in leaders
        }

    def marked(self, mark: str) -> tuple[ProcessId, ...]:
        return tuple(each for each, found in self.marks.items() if found == mark and each in self.living)

    def identify(self, pids: Iterable[int]) -> tuple[ProcessId, ...]:
        wanted = set(pids)
        return tuple(each for each in self.living if each.pid in wanted)

    def send(self, process: ProcessId, number: signal.Signals) -> None:
        if process in self.living:
            self.sent.append((process.pid, number))
            if number is signal.SIGKILL or not self.deaf:
                self.die(process, -number)


def _pid(process: ProcessId) -> int:
    return process.pid


@dataclass(slots=True)
class FakeWeb:
    """Questions wait until a test answers them."""

    open: list[tuple[Question, Then]] = field(default_factory=list)
    woken: int = 0

    def ask(self, question: Question, then: Then) -> None:
        self.open.append((question, then))

    def turn(self, timeout_s: float) -> None:
        """Nothing comes by itself."""

    def wake(self) -> None:
        self.woken += 1

    def close(self) -> None:
        self.open.clear()

    def asked(self) -> list[str]:
        """Paths of the questions that wait."""
        return [question.path for question, _ in self.open]

    def answer(self, answers: Callable[[Question], WebAnswer]) -> int:
        """Answer all that wait; how many."""
        waiting, self.open = self.open, []
        for question, then in waiting:
            then(answers(question))
        return len(waiting)


@dataclass(slots=True)
class World:
    """A crew and everything around it."""

    folder: Path
    now: float = 1000.0
    processes: FakeProcesses = field(default_factory=FakeProcesses)
    web: FakeWeb = field(default_factory=FakeWeb)
    pages: dict[str, WebAnswer] = field(default_factory=dict)
    """Answers by path; what is missing is unreachable."""
    fetched: list[Question] = field(default_factory=list)
    connected: int = 0
    boot_id: str = "boot"
    limits: CgroupLimits = field(default_factory=lambda: CgroupLimits(None))
    users: ProjectUsers | None = None
    options: dict[str, object] = field(default_factory=dict)

    def crew(self, starts_at_once: int = 1) -> HostCrew:
        """Another agent."""
        host = CrewHost(
            processes=self.processes,
            web=self.web,
            limits=self.limits,
            fetch=self.fetch,
            connections=lambda port: self.connected,
            free=lambda port: True,
            aside=lambda work: work(),
            boot_id=self.boot_id,
            users=self.users,
        )
        options = CrewOptions(
            state_dir=self.folder,
            ports=range(30000, 30010),
            route_grace_s=2.0,
            workers_as_agent=True,
            starts_at_once=starts_at_once,
        )
        return build_crew(options, host, lambda: self.now)

    def fetch(self, question: Question) -> WebAnswer:
        self.fetched.append(question)
        return self.pages.get(question.path, UNREACHABLE)

    def run(self, crew: HostCrew, seconds: float, step_s: float = 0.1) -> None:
        """Let time pass, making rounds and answering."""
        for _ in range(round(seconds / step_s)):
            crew.make_round()
            while self.web.answer(lambda question: self.pages.get(question.path, UNREACHABLE)):
                pass
            self.now += step_s
        crew.make_round()


def control_groups(root: Path, controllers: str = "cpu memory pids", enabled: str = "") -> Path:
    """Files like those of a delegated group with a sub-group for the agent."""
    own = root / "unit" / "agent"
    own.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory")
    for group in (own.parent, own):
        (group / "cgroup.controllers").write_text(controllers)
        (group / "cgroup.subtree_control").write_text(enabled)
    return own


def page(**totals: float) -> WebAnswer:
    """A page of Headroom's own metrics."""
    names = {"pending": "headroom_requests_pending", "failed": "headroom_requests_failed_total"}
    names |= {"completed": "headroom_requests_total", "iterations": "headroom_iterations_total"}
    lines = [f"{names[name]} {total}" for name, total in totals.items()]
    return WebAnswer(status=200, body=("\n".join(lines) + "\n").encode())


def only(crew: HostCrew) -> CrewReading:
    """The one worker there is."""
    (found,) = crew.found()
    return found


OK = WebAnswer(status=200)
