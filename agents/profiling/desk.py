"""The node's desk for profile runs: takes orders, gets the device free, has it measured, tells how it went.

One thread carries out one run at a time. A device is measured on only when the target has nothing there and no process
is left on it; when the target wants the device back, the run ends at once. What was measured is told as it comes and
kept in the state directory, so that an agent that starts anew goes on with the order where it was.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.devices.base import MEASURED, Devices, DeviceSample, Reservations, WorkerSpec
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
from agents.profiling.session import ProfilingBench, StoppedError, failed, measure
from agents.transport import UnreachableError
from agents.wire import DeviceInventory, ProfileOrder, ProfileSubject

# --- A whole run: which points, for how long, and what happens with what was measured


BATCHES = (8, 1, 32)
SHARES_PCT = ((50, 50), (30, 70), (70, 30))
POINT_S_USUAL = 40.0
"""How long a point is thought to take before any was measured."""
FAILURES_MAX = 3
"""So many points in a row without a result: something is wrong with the worker, not with the points."""
Step = tuple[MeasuringPoint | None, ...]
"""What of a service alone, or of the first and the second of two, is measured at once; None: it is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a run is told. `steps` gives what to measure, knowing what was measured before; each is asked for when the
    one before was delivered. `spec_of` gives the worker of the first (0) or second (1) at a point; `deliver` hands over
    the results of a step, `say` tells the user. Where there are `results`, a run that was cut off goes on.
    """

    budget_s: float
    steps: Callable[[Collection[MeasuringPoint]], Iterator[Step]]
    spec_of: Callable[[int, MeasuringPoint], WorkerSpec]
    deliver: Callable[[Sequence[Measured]], None]
    say: Callable[[str], None]
    results: ResultFile | None = None


def proposed_steps(
    propose: Callable[[], Iterable[MeasuringPoint]], before: Collection[MeasuringPoint]
) -> Iterator[Step]:
    """Of the points proposed after each result, most useful first, the first that was not measured yet."""
    done = set(before)
    while (point := next((point for point in propose() if point not in done), None)) is not None:
        done.add(point)
        yield (point,)


def pair_steps() -> Iterator[Step]:
    """All measurements of two services, in their order; every configuration of one alone comes once."""
    alone: set[tuple[int, MeasuringPoint]] = set()
    for batch, shares in itertools.product(BATCHES, SHARES_PCT):
        one, other = (MeasuringPoint(batch=batch, share_pct_sm=share) for share in shares)
        if (0, one) not in alone:
            yield one, None
        if (1, other) not in alone:
            yield None, other
        alone |= {(0, one), (1, other)}
        yield one, other


def run(bench: ProfilingBench, errand: Errand) -> str:
    """Measure until the budget is spent, nothing is left to ask, or nothing works; which of them: budget, complete,
    failing, or stopped by somebody. Raises DeviceError when the device does not work before anything was measured.
    """
    before = [] if errand.results is None else errand.results.read()
    kept = [item for item in before if item.usable]
    if kept:
        errand.deliver(kept)
    until_s = bench.now_s() + errand.budget_s
    took_longest_s, failing, works = 0.0, 0, bool(kept)
    for step in errand.steps({item.point for item in before}):
        if failing >= FAILURES_MAX:
            return "failing"
        if bench.now_s() + (took_longest_s or POINT_S_USUAL) > until_s:
            return "budget"
        points = [(place, point) for place, point in enumerate(step) if point is not None]
        started_s = bench.now_s()
        keeps = errand.results
        try:
            found = measure(bench, [errand.spec_of(*each) for each in points], points[0][1].clock_mhz_sm)
        except StoppedError:
            return "stopped"
        except DeviceError as error:
            if not works:
                raise
            # A device that worked before: the point is measured another time.
            keeps = None
            found = tuple(failed(errand.spec_of(*each), each[1].clock_mhz_sm, str(error)) for each in points)
        took_s = bench.now_s() - started_s
        took_longest_s = max(took_longest_s, took_s)
        failing = 0 if all(item.usable for item in found) else failing + 1
        if keeps is not None:
            for item in found:
                keeps.add(item)
        if any(item.usable for item in found):
            works = True
            errand.deliver(found)
        for item in found:
            errand.say(sentence(item, took_s))
    return "complete"


def sentence(item: Measured, took_s: float) -> str:
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
        self._resultless = ""
        self._untold_points: list[object] = []
        self._untold_pairs: list[object] = []

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        while not stop.is_set():
            # Before the node has joined there is nobody to ask.
            joined = bool(self._parts.token())
            self.look()
            stop.wait(LOOK_S if joined else FREE_LOOK_S)

    def look(self) -> None:
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
        self._cancelled, self._counts, self._resultless = False, (0, 0), ""
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
            return self._why(order, run(self._bench(order.uuid), self._errand(order, device)))
        finally:
            self._parts.reservations.give_back(order.uuid)

    def _await_free(self, order: ProfileOrder) -> None:
        until_s = self._parts.now_s() + FREE_S_MAX
        told = False
        devices = self._parts.devices
        while self._parts.occupied(order.uuid) or any(worker.uuid == order.uuid for worker in devices.workers()):
            if not order.drain:
                raise _GivenUpError(f"{order.uuid} carries live traffic; order with drain to have it moved away first")
            if self._parts.now_s() > until_s:
                raise _GivenUpError(f"{order.uuid} was not drained within {FREE_S_MAX:g} s")
            if not told:
                told = self._tell(order, "running", "waits until the device is drained")
            self._parts.wait_s(FREE_LOOK_S)
            if self._ended():
                raise _GivenUpError("ended while it waited for the device")

    def _errand(self, order: ProfileOrder, device: DeviceInventory) -> Errand:
        subject = Subject(
            service=order.subject.service,
            model=order.subject.model,
            gpu_type=device.gpu_type,
            uuid=order.uuid,
            clock_mhz_sm_max=device.clocks_mhz_sm[-1],
            origin=self._parts.loads.origin,
        )
        subjects = (order.subject,) if order.beside is None else (order.subject, order.beside)
        alone = order.beside is None

        def spec_of(place: int, point: MeasuringPoint) -> WorkerSpec:
            made = _spec(subjects[place], point, int(MEMORY_PART * device.memory_mib / len(subjects)))
            return made if alone else replace(made, replica=f"{made.replica}-{place}")

        def deliver(found: Sequence[Measured]) -> None:
            if alone or len(found) == 1:
                self._hand_in(order, profile_points(subject, found), ())
            else:
                self._hand_in(order, (), pair_points(subject, [(found[0], found[1])]))

        def steps(before: Collection[MeasuringPoint]) -> Iterator[Step]:
            return proposed_steps(lambda: self._proposed(order), before) if alone else pair_steps()

        return Errand(
            budget_s=order.budget_s,
            steps=steps,
            spec_of=spec_of,
            deliver=deliver,
            say=lambda text: self._say(order, text),
            results=ResultFile(self._parts.folder / FOLDER / f"run-{order.run}.jsonl", subject) if alone else None,
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
        """The highest clock is no lock: there a board goes as fast as its power limit lets it, as it does for users. So
        it is whatever was asked, where this agent may not set clocks.
        """
        device, asked = self._inventory[uuid], point.clock_mhz_sm
        may = not (device.capabilities or {}).get("set_clock", "")
        own = asked is None or asked >= device.clocks_mhz_sm[-1] or not may
        return replace(point, clock_mhz_sm=None) if own else point

    def _hand_in(self, order: ProfileOrder, points: Sequence[object], pairs: Sequence[object]) -> None:
        self._untold_points += points
        self._untold_pairs += pairs
        self._counts = (self._counts[0] + len(points) + len(pairs), self._counts[1])
        self._tell(order, "running", "")

    def _say(self, order: ProfileOrder, text: str) -> None:
        failed = "no result" in text
        self._resultless = (self._resultless or text) if failed else ""
        if failed:
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

    def _why(self, order: ProfileOrder, ended: str) -> str:
        if ended == "stopped":
            wanted_back = self._parts.reservations.is_claimed(order.uuid)
            return "the target wants the device back" if wanted_back else "the run was ended"
        if ended == "failing":
            return f"several points in a row gave no result, first {self._resultless}"
        if ended == "budget" and not any(self._counts):
            reckoned = f"a first point is reckoned with {POINT_S_USUAL:g} s"
            return f"nothing was measured: the budget is {order.budget_s:g} s, and {reckoned}"
        return ""


def _spec(subject: ProfileSubject, point: MeasuringPoint, memory_mib_limit: int) -> WorkerSpec:
    return WorkerSpec(
        replica=f"profile-{subject.service.replace('/', '-')}",
        kind=MEASURED,
        workload=subject.service,
        project=subject.project,
        model=subject.model,
        share_pct_sm=point.share_pct_sm,
        memory_mib_limit=memory_mib_limit,
        batch=point.batch,
        launch_s=subject.launch_s,
        worker=subject.worker,
    )
