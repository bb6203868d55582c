"""The worker processes of this host, behind the interface `agents.devices.parts.Crew`.

Verbs answer from what is known and what /proc says at that moment; none waits for a worker but `tune`, and that not for
long. Workers outlive this agent: `close` ends the thread that makes the rounds and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agents.crew.adapters import RESTART, adapter_of, batch_change_of
from agents.crew.launching import Launcher
from agents.crew.member import FOLDER, LOG_FOLDER, CrewBench, CrewHost, CrewMember, CrewOptions, Phase, safe_name
from agents.crew.metrics import Tally
from agents.crew.resources import CgroupLimits, Logs, PortBook, bindable, connections, own_group
from agents.crew.rounds import Rounds, Undertaker, hand_over
from agents.crew.users import users_of
from agents.crew.web import SocketWeb, fetch
from agents.devices.base import LogRead, WorkerSample, WorkerSpec
from agents.devices.parts import CrewOrder, CrewReading
from agents.errors import AgentError, BusyError, DeviceError, NotFoundError, NotSupportedError, WorkerError
from agents.processes import HostProcesses
from agents.state import StateDirectory, host_boot_id

# --- Handing a running worker another batch size or latency limit
#
# A request takes milliseconds, loading a model anew takes minutes. Whoever tunes waits a moment; what takes longer goes
# on in a thread of its own and is found done, or failed, by the next one who tunes alike.


WAIT_S = 3.0


@dataclass(slots=True, eq=False)
class _Change:
    spec: WorkerSpec
    over: threading.Event = field(default_factory=threading.Event)
    error: DeviceError | None = None


class MemberTuning:
    """Changes under way, one at a time for each worker."""

    def __init__(self, bench: CrewBench) -> None:
        self._bench = bench
        self._changes: dict[str, _Change] = {}

    def tune(self, member: CrewMember, spec: WorkerSpec) -> None:
        """Hand it over. Raises BusyError while a change is under way, WorkerError when it failed."""
        with self._bench.lock:
            for gone in self._changes.keys() - self._bench.members.keys():
                del self._changes[gone]
            change = self._changes.get(member.name)
            if change is None:
                change = begun = _Change(spec)
                self._bench.host.aside(lambda: self._carry_out(member, begun))
                self._changes[member.name] = change
        if not change.over.wait(WAIT_S):
            raise BusyError(f"{member.name} still takes its new batch size")
        with self._bench.lock:
            if self._changes.get(member.name) is change:
                del self._changes[member.name]
        if change.error is not None:
            raise change.error
        if change.spec != spec:
            raise BusyError(f"{member.name} has just taken another batch size")

    def _carry_out(self, member: CrewMember, change: _Change) -> None:
        try:
            _tell(self._bench, member, change.spec)
            with self._bench.lock:
                member.spec = member.spec.tuned_as(change.spec)
                if self._bench.members.get(member.name) is member:
                    self._bench.save(member)
        except DeviceError as error:
            change.error = error
        except (AgentError, TypeError, ValueError, KeyError) as error:
            # What a server answers may be anything.
            change.error = WorkerError(f"{member.name}: {type(error).__name__}: {error}")
        finally:
            change.over.set()


def _tell(bench: CrewBench, member: CrewMember, spec: WorkerSpec) -> None:
    """A limit that the server has no use for is the agent's alone."""
    same_batch = spec.batch == member.spec.batch
    if same_batch and adapter_of(member.target).name != "http":
        return
    try:
        hand_over(bench, member, spec)
    except NotSupportedError:
        if not same_batch:
            raise


LOOK_FAR_S = 1.0
PIDS_AGE_S_MAX = 0.5
SAMPLES_WAIT_S = 0.5
_COUNTING = (Phase.ANSWERING, Phase.LEAVING, Phase.FINISHING)


class HostCrew:
    """Every method may be called from any thread."""

    def __init__(self, bench: CrewBench, launcher: Launcher) -> None:
        self._bench = bench
        self._launcher = launcher
        self._undertaker = Undertaker(bench)
        self._rounds = Rounds(bench, launcher, self._undertaker)
        self._tuning = MemberTuning(bench)
        self._pids_s = float("-inf")
        self._stirred = threading.Event()
        self._over = threading.Event()
        self._scraped = threading.Condition(bench.lock)
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """State files that could not be read, and why."""
        return tuple(self._launcher.lost)

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="crew", daemon=True)
        self._thread.start()

    def launch(self, order: CrewOrder) -> None:
        """While others of the device come up, this one waits for its turn."""
        if order.spec.worker is None:
            raise NotSupportedError(f"{order.spec.replica}: its workload does not say how its process is started")
        adapter_of(order.spec.worker)
        bench = self._bench
        with bench.lock:
            if order.worker in bench.members:
                raise BusyError(f"there is a worker {order.worker}")
            now_s = bench.now_s()
            count = 1 + order.spec.worker.metrics_port_offset
            member = CrewMember(
                name=order.worker,
                uuid=order.uuid,
                spec=order.spec,
                since_s=now_s,
                tally=Tally(told_s=now_s),
                port=bench.ports.take(order.worker, count),
                port_count=count,
                order=order,
                apart=order.apart,
            )
            bench.members[member.name] = member
            if not self._rounds.may_start(member):
                member.problem = "waits for its turn: others of this device are coming up"
                return
            try:
                self._launcher.start(member)
            except DeviceError:
                bench.forget(member)
                raise
        self._stir()

    def found(self) -> tuple[CrewReading, ...]:
        """Raises WorkerError when nobody makes the rounds any more: what is known is old then."""
        bench = self._bench
        if self._thread is not None and not self._thread.is_alive() and not self._over.is_set():
            raise WorkerError("nobody looks after the workers any more; start the agent anew")
        with bench.lock:
            self._look_for_children()
            members = sorted(bench.members.values(), key=lambda each: each.name)
            for member in members:
                self._rounds.gone_by_itself(member)
            now_s = bench.now_s()
            return tuple(
                CrewReading(
                    reading=member.reading(bench.options.host, now_s),
                    pids=member.pids,
                    answering=member.answering,
                    mark=member.mark,
                )
                for member in members
            )

    def tune(self, worker: str, spec: WorkerSpec) -> None:
        """Raises BusyError while a server still takes its time, NotSupportedError where only a new
        process can take the batch size.
        """
        with self._bench.lock:
            member = self._member(worker)
            if spec.batch != member.spec.batch and batch_change_of(member.target) == RESTART:
                raise NotSupportedError(f"{worker}: another batch size takes a new process")
        self._tuning.tune(member, spec)

    def drain(self, worker: str) -> None:
        with self._bench.lock:
            member = self._member(worker)
            if member.phase in (Phase.WAITING, Phase.STARTING, Phase.WARMING):
                raise BusyError(f"{worker} is still starting")
            if member.phase in (Phase.ANSWERING, Phase.DONE):
                self._rounds.drain(member)
        self._stir()

    def end(self, worker: str, before_kill: Callable[[int], None]) -> None:
        with self._bench.lock:
            self._undertaker.begin(self._member(worker), before_kill)
        self._stir()

    def read_log(self, replica: str, lines: int, places: Mapping[str, int] | None) -> LogRead:
        with self._bench.lock:
            return self._bench.logs.told(safe_name(replica), lines, places)

    def samples(self) -> tuple[WorkerSample, ...]:
        """Metrics are read now; a server that does not answer in time tells nothing this time, and nobody
        waits for it again until it answers.
        """
        bench = self._bench
        with bench.lock:
            for member in bench.members.values():
                member.scrape_wanted = member.counts and member.phase in _COUNTING
            if self._thread is not None:
                self._await_metrics()
            now_s = bench.now_s()
            gone, bench.gone = bench.gone, []
            living = [
                member.tally.cut(member.reading(bench.options.host, now_s), now_s, gone=False)
                for member in sorted(bench.members.values(), key=lambda each: each.name)
                if member.phase is not Phase.WAITING
            ]
        return (*living, *gone)

    def close(self) -> None:
        self._over.set()
        self._stir()
        if self._thread is not None:
            self._thread.join()
        self._bench.host.web.close()

    def make_round(self) -> float:
        """Visit everybody once; when the next round is due."""
        bench = self._bench
        with bench.lock:
            due_s = bench.now_s() + LOOK_FAR_S
            self._look_for_children()
            for member in tuple(bench.members.values()):
                before = member.coming_up
                due_s = min(due_s, self._rounds.visit(member))
                if before and not member.coming_up:
                    # Others of its device may have waited for this.
                    due_s = bench.now_s()
            return due_s

    def _run(self) -> None:
        bench = self._bench
        for member in tuple(bench.members.values()):
            bench.logs.bound(safe_name(member.name))
        bounded_s = bench.now_s()
        while not self._over.is_set():
            self._stirred.clear()
            due_s = self.make_round()
            if bench.now_s() - bounded_s >= LOOK_FAR_S:
                bounded_s = bench.now_s()
                for name in tuple(bench.members):
                    bench.logs.bound(safe_name(name))
            self._listen(due_s)

    def _listen(self, due_s: float) -> None:
        """Take answers until the next round is due or somebody stirs."""
        while True:
            self._bench.host.web.turn(max(0.0, due_s - self._bench.now_s()))
            with self._scraped:
                self._scraped.notify_all()
            if self._stirred.is_set() or self._bench.now_s() >= due_s:
                return

    def _await_metrics(self) -> None:
        """Give up the lock until all who are waited for have answered, or for as long as anybody is waited for."""
        self._stir()
        if not self._scraped.wait_for(self._all_scraped, SAMPLES_WAIT_S):
            for member in self._bench.members.values():
                member.silent = member.silent or member.scrape_wanted

    def _all_scraped(self) -> bool:
        awaited = (member for member in self._bench.members.values() if member.scrape_wanted and not member.silent)
        return self._over.is_set() or not any(awaited)

    def _look_for_children(self) -> None:
        """Every session's processes, at most twice a second."""
        bench = self._bench
        now_s = bench.now_s()
        if now_s - self._pids_s < PIDS_AGE_S_MAX:
            return
        self._pids_s = now_s
        led = {member.process: member for member in bench.members.values() if member.process is not None}
        for process, left in bench.host.processes.sessions(tuple(led)).items():
            led[process].pids = tuple(each.pid for each in left)

    def _stir(self) -> None:
        self._stirred.set()
        self._bench.host.web.wake()

    def _member(self, worker: str) -> CrewMember:
        member = self._bench.members.get(worker)
        if member is None:
            raise NotFoundError(f"no worker {worker}")
        return member


def open_crew(options: CrewOptions, now_s: Callable[[], float]) -> HostCrew:
    """The crew of this host, with the workers of earlier agents. Raises StateFileError."""
    host = CrewHost(
        processes=HostProcesses(),
        web=SocketWeb(now_s),
        limits=CgroupLimits(own_group()),
        fetch=fetch,
        connections=connections,
        free=bindable,
        aside=_aside,
        boot_id=host_boot_id(),
        users=users_of(options),
    )
    crew = build_crew(options, host, now_s)
    crew.begin()
    return crew


def _aside(work: Callable[[], None]) -> None:
    try:
        threading.Thread(target=work, name="crew-aside", daemon=True).start()
    except RuntimeError as error:
        raise WorkerError(f"this host has no thread left: {error}") from None


def build_crew(options: CrewOptions, host: CrewHost, now_s: Callable[[], float]) -> HostCrew:
    """A crew whose rounds nobody makes yet."""
    bench = CrewBench(
        options=options,
        host=host,
        now_s=now_s,
        logs=Logs(options.state_dir / LOG_FOLDER, options.log_bytes_max),
        ports=PortBook(options.ports, host.free),
        state=StateDirectory(options.state_dir / FOLDER),
    )
    launcher = Launcher(bench)
    launcher.adopt()
    return HostCrew(bench, launcher)
