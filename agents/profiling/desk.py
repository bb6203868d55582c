"""The node's desk for profile runs: takes orders, gets the device free, has it measured, tells how it went.

Owns one thread that carries out one run at a time. A device is measured on only when the target has nothing there and
no process is left on it; when the target wants the device back, the run ends at once. What was measured is told as it
comes and kept in the state directory, so that an agent that starts anew goes on with the order where it was.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.devices.base import Devices, DeviceSample, Reservations, WorkerSpec
from agents.errors import AgentError, DeviceError, StateFileError
from agents.log import Log
from agents.profiling.loads import LoadMaker
from agents.profiling.points import (
    Control,
    Measured,
    MeasuringPoint,
    RefusedError,
    ResultFile,
    Subject,
    pair_points,
    profile_points,
)
from agents.profiling.session import ProfilingBench, StoppedError, measure
from agents.transport import UnreachableError
from agents.wire import DeviceInventory, ProfileOrder, ProfileSubject

# --- A whole run: which points, for how long, and what happens with what was measured


# --- Two services side by side: which configurations a run of a pair goes through, and in which order


BATCHES = (8, 1, 32)
SHARES_PCT = ((50, 50), (30, 70), (70, 30))
Step = tuple[MeasuringPoint | None, MeasuringPoint | None]
"""What of the first and the second is measured at once; None: it is absent."""


def steps() -> Iterator[Step]:
    """All measurements of a pair, in their order; every configuration of one alone comes once."""
    alone: set[tuple[int, MeasuringPoint]] = set()
    for batch, shares in itertools.product(BATCHES, SHARES_PCT):
        one, other = (MeasuringPoint(batch=batch, share_pct_sm=share) for share in shares)
        if (0, one) not in alone:
            yield one, None
        if (1, other) not in alone:
            yield None, other
        alone |= {(0, one), (1, other)}
        yield one, other


POINT_S_USUAL = 40.0
"""How long a point is thought to take before any was measured."""
FAILURES_MAX = 3
"""So many points in a row without a result: something is wrong with the worker, not with the points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a run is told. `spec_of` gives the worker of a point; `propose` the next points to measure, most useful
    first, knowing what was delivered; `deliver` hands results over; `say` tells the user.
    """

    budget_s: float
    spec_of: Callable[[MeasuringPoint], WorkerSpec]
    propose: Callable[[], Sequence[MeasuringPoint]]
    deliver: Callable[[Sequence[Measured]], None]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairErrand:
    """What a run of two services is told. `spec_of` gives the worker of the first (0) or second (1) at a point;
    `deliver` takes one result of a worker alone, or two of workers side by side.
    """

    budget_s: float
    spec_of: Callable[[int, MeasuringPoint], WorkerSpec]
    deliver: Callable[[Sequence[Measured]], None]
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOutcome:
    """How a run ended."""

    measured: int
    doubtful: int
    resumed: int
    why: str
    """budget, complete, stopped, or failing"""


def run(bench: ProfilingBench, errand: Errand, results: ResultFile) -> ProfilingOutcome:
    """Measure until the budget is spent, nothing is left to ask, or nothing works."""
    before = [item for item in results.read() if not item.beside]
    kept = [item for item in before if item.usable]
    if kept:
        errand.deliver(kept)
    done = {item.point for item in before}
    fresh: list[Measured] = []
    until_s = bench.now_s() + errand.budget_s
    longest_s, failing = POINT_S_USUAL, 0
    while True:
        point = next((point for point in errand.propose() if point not in done), None)
        why = "complete" if point is None else _over(bench.now_s() + longest_s > until_s, failing)
        if point is None or why:
            return _outcome(fresh, len(before), why)
        started_s = bench.now_s()
        try:
            (item,) = measure(bench, (errand.spec_of(point),), point.clock_mhz_sm)
        except StoppedError:
            return _outcome(fresh, len(before), "stopped")
        item = replace(item, point=point)
        took_s = bench.now_s() - started_s
        longest_s = took_s if not fresh else max(longest_s, took_s)
        done.add(point)
        fresh.append(item)
        results.add(item)
        failing = 0 if item.usable else failing + 1
        if item.usable:
            errand.deliver([item])
        errand.say(sentence(item, took_s))


def run_pairs(bench: ProfilingBench, errand: PairErrand) -> ProfilingOutcome:
    """Measure two services alone and side by side until the budget is spent or the design is through."""
    fresh: list[Measured] = []
    until_s = bench.now_s() + errand.budget_s
    longest_s, failing, why = POINT_S_USUAL, 0, "complete"
    for step in steps():
        why = _over(bench.now_s() + longest_s > until_s, failing)
        if why:
            break
        specs = [errand.spec_of(place, point) for place, point in enumerate(step) if point is not None]
        started_s = bench.now_s()
        try:
            found = measure(bench, specs, None)
        except StoppedError:
            return _outcome(fresh, 0, "stopped")
        longest_s = max(longest_s if fresh else 0.0, bench.now_s() - started_s)
        fresh += found
        failing = 0 if all(item.usable for item in found) else failing + 1
        errand.deliver(found)
        for item in found:
            errand.say(sentence(item, bench.now_s() - started_s))
    return _outcome(fresh, 0, why or "complete")


def _over(too_late: bool, failing: int) -> str:
    if failing >= FAILURES_MAX:
        return "failing"
    return "budget" if too_late else ""


def _outcome(fresh: Sequence[Measured], resumed: int, why: str) -> ProfilingOutcome:
    usable = sum(item.usable for item in fresh)
    return ProfilingOutcome(measured=usable, doubtful=len(fresh) - usable, resumed=resumed, why=why)


def sentence(item: Measured, took_s: float) -> str:
    """A result in one line."""
    point = item.point
    clock = f", {point.clock_mhz_sm} MHz" if point.clock_mhz_sm else ""
    where = f"batch {point.batch}, {point.share_pct_sm} %{clock}"
    if item.latency_ms_mean is None or item.problem:
        return f"{where}: no result, {item.problem} ({took_s:.0f} s)"
    parts = [f"{item.latency_ms_mean:.3f} ms ± {item.half_width_pct or 0.0:.1f} %"]
    if item.throughput_rps is not None:
        parts.append(f"{item.throughput_rps:.0f}/s")
    if item.memory_mib is not None:
        parts.append(f"{item.memory_mib:.0f} MiB")
    if item.power_w is not None:
        parts.append(f"{item.power_w:.0f} W")
    return f"{where}: {', '.join(parts)} ({item.sm_count} SMs, {took_s:.0f} s)"


LOOK_S = 20.0
FREE_S_MAX = 900.0
"""How long a device may take to be drained."""
FREE_LOOK_S = 1.0
AWAY_S_MAX, AGAIN_S = 120.0, 2.0
"""How long a run waits for a control plane that does not answer, and how often it asks."""
MEMORY_PART = 0.9
"""Of a device's memory that a measured worker may take, all of a pair together."""
FOLDER = "profiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskParts:
    """What a desk works with. `occupied` says whether the target has replicas on a device; `samples` what devices did
    since it was last called; `token` is the node's own, empty before it joined.
    """

    devices: Devices
    reservations: Reservations
    occupied: Callable[[str], bool]
    samples: Callable[[], Sequence[DeviceSample]]
    loads: LoadMaker
    control: Control
    token: Callable[[], str]
    folder: Path
    log: Log
    now_s: Callable[[], float] = time.monotonic
    wait_s: Callable[[float], None] = time.sleep


class _GivenUpError(AgentError):
    """The run cannot be carried out; the text says why."""

    code = "profile-run"


class ProfilingDesk:
    """Carries out profile runs. `run` belongs in a thread of its own."""

    def __init__(self, parts: DeskParts) -> None:
        self._parts = parts
        self._inventory = {device.uuid: device for device in parts.devices.inventory()}
        self._stop = threading.Event()
        self._cancelled = False
        self._counts = (0, 0)
        self._untold_points: list[object] = []
        self._untold_pairs: list[object] = []

    def run(self, stop: threading.Event) -> None:
        """Look for orders until stopped."""
        self._stop = stop
        while not stop.is_set():
            # Before the node has joined there is nobody to ask.
            joined = bool(self._parts.token())
            self.look()
            stop.wait(LOOK_S if joined else FREE_LOOK_S)

    def look(self) -> None:
        """Carry out what there is to do."""
        token = self._parts.token()
        if not token:
            return
        self._parts.control.use_token(token)
        try:
            orders = self._parts.control.orders()
        except (RefusedError, UnreachableError) as error:
            # Control planes of before know no such runs.
            self._parts.log.state("profile-runs", "unknown", reason=str(error))
            return
        self._parts.log.state("profile-runs", "known")
        for order in orders:
            if not self._stop.is_set():
                self._carry_out(order)

    def _carry_out(self, order: ProfileOrder) -> None:
        self._cancelled, self._counts = False, (0, 0)
        self._untold_points, self._untold_pairs = [], []
        self._parts.log.event("profile_run.taken", run=order.run, device=order.uuid, service=order.subject.service)
        try:
            detail = self._measured(order)
            state = "failed" if detail else "done"
        except (AgentError, DeviceError, StateFileError) as error:
            state, detail = "failed", str(error)
        self._tell_end(order, state, detail)
        self._parts.log.event("profile_run.ended", run=order.run, state=state, detail=detail or None)

    def _measured(self, order: ProfileOrder) -> str:
        """Carry out an order; why it ended early, empty when it did not."""
        device = self._inventory.get(order.uuid)
        if device is None:
            raise _GivenUpError(f"this node has no device {order.uuid}")
        for subject in (order.subject, order.beside):
            refusal = self._parts.loads.refusal(subject.worker) if subject is not None else ""
            if subject is not None and refusal:
                raise _GivenUpError(f"{subject.service}: {refusal}")
        self._await_free(order)
        if not self._parts.reservations.lend(order.uuid):
            raise _GivenUpError(f"{order.uuid} is measured on already")
        try:
            self._tell(order, "running", "")
            measure = self._run_pairs if order.beside is not None else self._run_alone
            return self._why(order, measure(order, device))
        finally:
            self._parts.reservations.give_back(order.uuid)

    def _await_free(self, order: ProfileOrder) -> None:
        until_s = self._parts.now_s() + FREE_S_MAX
        told = False
        while self._parts.occupied(order.uuid) or self._workers_on(order.uuid):
            if not order.drain:
                raise _GivenUpError(f"{order.uuid} carries live traffic; order with drain to have it moved away first")
            if self._parts.now_s() > until_s:
                raise _GivenUpError(f"{order.uuid} was not drained within {FREE_S_MAX:g} s")
            if not told:
                told = self._tell(order, "running", "waits until the device is drained")
            self._parts.wait_s(FREE_LOOK_S)
            if self._ended():
                raise _GivenUpError("ended while it waited for the device")

    def _workers_on(self, uuid: str) -> bool:
        return any(worker.uuid == uuid for worker in self._parts.devices.workers())

    def _run_alone(self, order: ProfileOrder, device: DeviceInventory) -> ProfilingOutcome:
        subject = self._subject(order, device)
        results = ResultFile(self._parts.folder / FOLDER / f"run-{order.run}.jsonl", subject)

        def deliver(found: Sequence[Measured]) -> None:
            self._hand_in(order, profile_points(subject, found), ())

        errand = Errand(
            budget_s=order.budget_s,
            spec_of=lambda point: _spec(order.subject, point, int(MEMORY_PART * device.memory_mib)),
            propose=lambda: self._proposed(order),
            deliver=deliver,
            say=lambda text: self._say(order, text),
        )
        return run(self._bench(order.uuid), errand, results)

    def _run_pairs(self, order: ProfileOrder, device: DeviceInventory) -> ProfilingOutcome:
        subject = self._subject(order, device)
        both = (order.subject, order.beside or order.subject)
        memory_mib = int(MEMORY_PART * device.memory_mib / 2)

        def deliver(found: Sequence[Measured]) -> None:
            if len(found) == 2:
                self._hand_in(order, (), pair_points(subject, [(found[0], found[1])]))
            else:
                self._hand_in(order, profile_points(subject, found), ())

        def spec_of(place: int, point: MeasuringPoint) -> WorkerSpec:
            made = _spec(both[place], point, memory_mib)
            return replace(made, replica=f"{made.replica}-{place}")

        errand = PairErrand(
            budget_s=order.budget_s, spec_of=spec_of, deliver=deliver, say=lambda text: self._say(order, text)
        )
        return run_pairs(self._bench(order.uuid), errand)

    def _subject(self, order: ProfileOrder, device: DeviceInventory) -> Subject:
        return Subject(
            service=order.subject.service,
            model=order.subject.model,
            gpu_type=device.gpu_type,
            uuid=order.uuid,
            clock_mhz_sm_max=device.clocks_mhz_sm[-1],
            origin=self._parts.loads.origin,
        )

    def _bench(self, uuid: str) -> ProfilingBench:
        parts = self._parts
        return ProfilingBench(
            devices=parts.devices,
            uuid=uuid,
            now_s=parts.now_s,
            wait_s=parts.wait_s,
            samples=parts.samples,
            begin=parts.loads.begin,
            stopped=lambda: self._ended() or parts.reservations.is_claimed(uuid),
        )

    def _ended(self) -> bool:
        return self._stop.is_set() or self._cancelled

    def _proposed(self, order: ProfileOrder) -> tuple[MeasuringPoint, ...]:
        """The next points. Raises _GivenUpError when they cannot be had."""
        until_s = self._parts.now_s() + AWAY_S_MAX
        while True:
            try:
                return tuple(self._at_own_clock(point, order.uuid) for point in self._parts.control.points(order.run))
            except RefusedError as error:
                raise _GivenUpError(f"no points to measure: {error}") from None
            except UnreachableError as error:
                self._parts.wait_s(AGAIN_S)
                if self._parts.now_s() > until_s or self._stop.is_set():
                    raise _GivenUpError(f"the control plane is away: {error}") from None

    def _at_own_clock(self, point: MeasuringPoint, uuid: str) -> MeasuringPoint:
        """The highest clock is no lock: there a board goes as fast as its power limit lets it, as it does for users."""
        top = self._inventory[uuid].clocks_mhz_sm[-1]
        asked = point.clock_mhz_sm
        return replace(point, clock_mhz_sm=None) if asked is not None and asked >= top else point

    def _hand_in(self, order: ProfileOrder, points: Sequence[object], pairs: Sequence[object]) -> None:
        self._untold_points += points
        self._untold_pairs += pairs
        self._counts = (self._counts[0] + len(points) + len(pairs), self._counts[1])
        self._tell(order, "running", "")

    def _say(self, order: ProfileOrder, text: str) -> None:
        if "no result" in text:
            self._counts = (self._counts[0], self._counts[1] + 1)
        self._tell(order, "running", text)
        self._parts.log.event("profile_run.measured", run=order.run, detail=text)

    def _tell(self, order: ProfileOrder, state: str, detail: str) -> bool:
        """Tell the control plane how far it is, with everything it has not heard yet; whether it heard. It may end the
        run with its answer.
        """
        news = {"state": state, "measured": self._counts[0], "doubtful": self._counts[1], "detail": detail}
        try:
            going_on = self._parts.control.tell(order.run, news, self._untold_points, self._untold_pairs)
            self._cancelled = self._cancelled or not going_on
        except RefusedError as error:
            self._cancelled = True
            self._parts.log.event("profile_run.refused", run=order.run, reason=str(error))
        except UnreachableError as error:
            self._parts.log.state("profile_run.news", "untold", run=order.run, reason=str(error))
            return False
        self._untold_points, self._untold_pairs = [], []
        return True

    def _tell_end(self, order: ProfileOrder, state: str, detail: str) -> None:
        """The last word is worth some patience: with it goes what was measured while nobody answered."""
        until_s = self._parts.now_s() + AWAY_S_MAX
        while not self._tell(order, state, detail):
            self._parts.wait_s(AGAIN_S)
            if self._parts.now_s() > until_s or self._stop.is_set():
                return

    def _why(self, order: ProfileOrder, outcome: ProfilingOutcome) -> str:
        if outcome.why == "stopped":
            wanted_back = self._parts.reservations.is_claimed(order.uuid)
            return "the target wants the device back" if wanted_back else "the run was ended"
        if outcome.why == "failing":
            return "several points in a row gave no result; the last line of the run says why"
        return ""


def _spec(subject: ProfileSubject, point: MeasuringPoint, memory_mib_limit: int) -> WorkerSpec:
    return WorkerSpec(
        replica=f"profile-{subject.service.replace('/', '-')}",
        kind="service",
        workload=subject.service,
        project=subject.project,
        model=subject.model,
        share_pct_sm=point.share_pct_sm,
        memory_mib_limit=memory_mib_limit,
        batch=point.batch,
        launch_s=subject.launch_s,
        worker=subject.worker,
    )
