"""The next steps for one device: what to do now, given what it holds and what it shall hold.

Owns the order of changes and nothing else; a pure function of two readings, asked again after every pass, so that a
killed agent goes on where its devices are and applying twice is applying once. Its promises:

* what lowers (clock, power limit) comes before load is added, what raises comes after load is gone;
* a worker that must be replaced goes on until its replacement is ready, whenever share and memory allow both (shadow);
* when they do not, and nothing else on the device is on its way to make room, one worker at a time makes room (gap),
  the one that shrinks most first;
* a worker that retires goes on as long as its target says, but makes room before anybody else does;
* room is counted by what workers hold, also those that drain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from agents.devices.base import DeviceSettings, Mode, WorkerReading, WorkerSpec, WorkerState
from agents.wire import DeviceInventory, DeviceTarget, ReplicaTarget

DRAIN_S_MAX = 30.0
"""A worker that has not drained by then is stopped all the same."""
LAUNCH_S_MIN = 60.0
LAUNCH_FACTOR = 10.0
"""A worker that is not ready after this many times its expected launch time has failed."""


class StepKind(StrEnum):
    """What can be done to a device in one call."""

    LOWER_POWER = "lower_power"
    LOWER_CLOCK = "lower_clock"
    STOP = "stop"
    DRAIN = "drain"
    SET_MODE = "set_mode"
    TUNE = "tune"
    START = "start"
    RAISE_POWER = "raise_power"
    RAISE_CLOCK = "raise_clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call. `gap` marks the end of a worker whose replica will be without any until its next one is ready."""

    kind: StepKind
    uuid: str
    worker: str = ""
    replica: str = ""
    spec: WorkerSpec | None = None
    mode: Mode | None = None
    clock_mhz_sm: int | None = None
    power_limit_w: float | None = None
    gap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device as read back."""

    inventory: DeviceInventory
    settings: DeviceSettings
    workers: tuple[WorkerReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What to do now. `settled`: the device reads back exactly what it shall hold, every replica ready."""

    steps: tuple[Step, ...]
    settled: bool


@dataclass(slots=True)
class _Sorted:
    """The device's workers by what shall become of them."""

    keep: dict[str, WorkerReading] = field(default_factory=dict)
    """The worker that is, or will be, each wanted replica."""
    standing: dict[str, WorkerReading] = field(default_factory=dict)
    """Serving until a replacement is ready, here or on another device of this node."""
    retiring: list[WorkerReading] = field(default_factory=list)
    ending: list[Step] = field(default_factory=list)
    under_way: int = 0
    """Workers that drain by themselves, or will be released when their replacement is ready."""


def spec_of(replica: ReplicaTarget) -> WorkerSpec:
    """The worker a replica's target asks for."""
    return WorkerSpec(
        replica=replica.replica,
        kind=replica.kind,
        workload=replica.workload,
        project=replica.project,
        model=replica.model,
        share_pct_sm=replica.share_pct_sm,
        memory_mib_limit=replica.memory_mib_limit,
        batch=replica.batch,
        latency_ms_limit=replica.latency_ms_limit,
        launch_s=replica.launch_s,
        iterations_total=replica.iterations_total,
        iteration_ms_reference=replica.iteration_ms_reference,
        gpu_type_reference=replica.gpu_type_reference,
        latency_execution_only=replica.latency_execution_only,
        worker=replica.worker,
    )


def same_process(held: WorkerSpec, wanted: WorkerSpec) -> bool:
    """Whether a running process can be the wanted one; what else differs can be changed while it runs."""
    return (held.replica, held.kind, held.workload, held.model, held.share_pct_sm, held.memory_mib_limit) == (
        wanted.replica,
        wanted.kind,
        wanted.workload,
        wanted.model,
        wanted.share_pct_sm,
        wanted.memory_mib_limit,
    )


def next_steps(
    view: DeviceView, target: DeviceTarget, awaited_elsewhere: Iterable[str] = (), not_now: Iterable[str] = ()
) -> DeviceSteps:
    """Steps to take now, in order; retiring replicas whose time is over are not in the target any more.
    `awaited_elsewhere`: replicas of this node that are not ready yet on another
    device, so that their workers here go on until they are. `not_now`: replicas whose start failed lately.
    """
    wanted = {replica.replica: spec_of(replica) for replica in target.replicas if replica.retire_after_s is None}
    found = _sort(view, target, wanted, frozenset(awaited_elsewhere))
    steps = [*_settings(view, target, lower=True), *found.ending]
    mode_differs = view.settings.mode != target.mode
    if mode_differs:
        steps += _change_mode(view, target, found)
    else:
        steps += _tune(found, wanted)
        delayed = frozenset(not_now)
        steps += _start(view, {name: spec for name, spec in wanted.items() if name not in delayed}, found)
    started = {step.replica for step in steps if step.kind is StepKind.START}
    leaving = len(view.workers) > len(found.keep) + len(found.retiring)
    if not mode_differs and not leaving and started | set(found.keep) == set(wanted):
        steps += _settings(view, target, lower=False)
    ready = all(worker.state is WorkerState.READY for worker in found.keep.values())
    settled = not steps and not leaving and ready and len(found.keep) == len(wanted)
    return DeviceSteps(steps=tuple(steps), settled=settled)


def _settings(view: DeviceView, target: DeviceTarget, *, lower: bool) -> list[Step]:
    steps = []
    uuid, held = view.inventory.uuid, view.settings
    clock_max, power_max = view.inventory.clocks_mhz_sm[-1], view.inventory.power_limit_w_max
    if held.power_limit_w != target.power_limit_w:
        falls = (target.power_limit_w or power_max) < (held.power_limit_w or power_max)
        if falls == lower:
            kind = StepKind.LOWER_POWER if lower else StepKind.RAISE_POWER
            steps.append(Step(kind=kind, uuid=uuid, power_limit_w=target.power_limit_w))
    if held.clock_mhz_sm != target.clock_mhz_sm:
        falls = (target.clock_mhz_sm or clock_max) < (held.clock_mhz_sm or clock_max)
        if falls == lower:
            kind = StepKind.LOWER_CLOCK if lower else StepKind.RAISE_CLOCK
            steps.append(Step(kind=kind, uuid=uuid, clock_mhz_sm=target.clock_mhz_sm))
    return steps


def _sort(view: DeviceView, target: DeviceTarget, wanted: dict[str, WorkerSpec], elsewhere: frozenset[str]) -> _Sorted:
    found = _Sorted()
    mode_fits = view.settings.mode == target.mode
    usable = [
        worker
        for worker in view.workers
        if mode_fits
        and worker.spec.replica in wanted
        and same_process(worker.spec, wanted[worker.spec.replica])
        and (worker.state is WorkerState.READY or (worker.state is WorkerState.STARTING and not _overdue(worker)))
    ]
    for worker in sorted(usable, key=lambda each: (each.state is not WorkerState.READY, each.worker)):
        found.keep.setdefault(worker.spec.replica, worker)
    retiring = {replica.replica: spec_of(replica) for replica in target.replicas} if mode_fits else {}
    found.retiring = [
        worker
        for worker in view.workers
        if worker.spec.replica in retiring.keys() - wanted.keys()
        and worker.state is WorkerState.READY
        and same_process(worker.spec, retiring[worker.spec.replica])
    ]
    kept = {worker.worker for worker in (*found.keep.values(), *found.retiring)}
    for worker in view.workers:
        if worker.worker not in kept:
            _send_off(worker, wanted, elsewhere, found)
    return found


def _send_off(worker: WorkerReading, wanted: dict[str, WorkerSpec], elsewhere: frozenset[str], found: _Sorted) -> None:
    """Decide how a worker that is not kept ends: at once, after draining, or when its replacement is ready."""
    replica = worker.spec.replica
    replacement = found.keep.get(replica)
    replaced = replacement is not None and replacement.state is WorkerState.READY
    if worker.state is WorkerState.DRAINING and not worker.drained and worker.state_s <= DRAIN_S_MAX:
        found.under_way += 1
    elif worker.state is not WorkerState.READY:
        found.ending.append(_end(StepKind.STOP, worker))
    elif replica not in found.standing and not replaced and (replica in wanted or replica in elsewhere):
        found.standing[replica] = worker
        found.under_way += replacement is not None
    else:
        found.ending.append(_end(StepKind.DRAIN, worker))


def _end(kind: StepKind, worker: WorkerReading, *, gap: bool = False) -> Step:
    return Step(kind=kind, uuid=worker.uuid, worker=worker.worker, replica=worker.spec.replica, gap=gap)


def _overdue(worker: WorkerReading) -> bool:
    return worker.state_s > max(LAUNCH_S_MIN, LAUNCH_FACTOR * worker.spec.launch_s)


def _change_mode(view: DeviceView, target: DeviceTarget, found: _Sorted) -> list[Step]:
    """A mode belongs to an empty device: everybody goes first."""
    if view.workers:
        return [_end(StepKind.DRAIN, worker, gap=True) for worker in found.standing.values()]
    return [Step(kind=StepKind.SET_MODE, uuid=view.inventory.uuid, mode=Mode(target.mode))]


def _tune(found: _Sorted, wanted: dict[str, WorkerSpec]) -> list[Step]:
    steps = []
    for replica, worker in sorted(found.keep.items()):
        spec = wanted[replica]
        if worker.spec.tuned_as(spec) != worker.spec:
            steps.append(Step(kind=StepKind.TUNE, uuid=worker.uuid, worker=worker.worker, replica=replica, spec=spec))
    return steps


def _start(view: DeviceView, wanted: dict[str, WorkerSpec], found: _Sorted) -> list[Step]:
    """Start what fits, what frees most first. When nothing fits and nothing is on its way, what retires makes room,
    else one worker.
    """
    stopped = {step.worker for step in found.ending if step.kind is StepKind.STOP}
    holding = [worker.spec for worker in view.workers if worker.worker not in stopped]
    share = 100 - sum(spec.share_pct_sm for spec in holding)
    memory = view.inventory.memory_mib - sum(spec.memory_mib_limit for spec in holding)
    alone = view.settings.mode is Mode.DEDICATED

    def growth(replica: str) -> tuple[int, str]:
        standing = found.standing.get(replica)
        held = standing.spec.share_pct_sm if standing is not None else 0
        return (wanted[replica].share_pct_sm - held if replica in wanted else -held, replica)

    waiting = sorted((replica for replica in wanted if replica not in found.keep), key=growth)
    steps: list[Step] = []
    for replica in waiting:
        spec = wanted[replica]
        if spec.share_pct_sm <= share and spec.memory_mib_limit <= memory and not (alone and (holding or steps)):
            share -= spec.share_pct_sm
            memory -= spec.memory_mib_limit
            steps.append(Step(kind=StepKind.START, uuid=view.inventory.uuid, replica=replica, spec=spec))
    stuck = bool(waiting) and not steps and not found.ending and not found.under_way
    if stuck and found.retiring:
        return [_end(StepKind.DRAIN, worker) for worker in found.retiring]
    if stuck and found.standing:
        victim = min(found.standing, key=growth)
        return [_end(StepKind.DRAIN, found.standing[victim], gap=True)]
    return steps
