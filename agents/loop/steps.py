"""Whether a target may be held, and the next steps for one device: what to do now, given what it holds and shall hold.

Steps are a pure function of two readings, asked again after every pass, so that a killed agent goes on where its
devices are and applying twice is applying once. Its promises:

* what lowers (clock, power limit) comes before load is added, what raises comes after load is gone;
* a worker that must be replaced goes on until its replacement is ready, whenever memory allows both (shadow); a
  training job has none, for two of it would write the same files;
* shares are ceilings that may overlap: of a worker and its shadow the larger counts, of what is on its way out none;
* when there is no room, and nothing else on the device is on its way to make room, one worker at a time makes room
  (gap), the one that shrinks most first;
* a worker that retires goes on as long as its target says, but makes room before anybody else does;
* memory is counted by what workers hold, also those that drain or are being ended, until their processes are gone;
* whose turn it is to come up, where processes size themselves by the memory they find free, is the crew's to say;
* a replacement that failed or is overdue is ended, and the worker it was to replace goes on;
* a frozen device keeps whom it has: only what failed is ended and started again, and settings are held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter

from agents.crew.adapters import restart_needed
from agents.devices.base import (
    DeviceSettings,
    Mode,
    WorkerReading,
    WorkerSpec,
    WorkerState,
    held_mib,
    held_pct_sm,
    needed_pct_sm,
)
from agents.errors import ForeignTargetError, TargetRefusedError
from agents.state import TARGET_FILE
from agents.wire import DeviceInventory, DeviceTarget, NodeTarget, ReplicaTarget, mirrored

DRAIN_S_MAX = 30.0
"""A worker whose workload says nothing about it may drain for so long."""
LAUNCH_S_MIN = 60.0
LAUNCH_FACTOR = 10.0
"""A worker that is not ready after this many times its expected launch time has failed."""


def spec_of(replica: ReplicaTarget) -> WorkerSpec:
    return mirrored(WorkerSpec, replica)


def same_process(held: WorkerSpec, wanted: WorkerSpec) -> bool:
    """Whether a running process can be the wanted one; what else differs can be changed while it runs."""
    fixed = attrgetter("replica", "kind", "workload", "model", "share_pct_sm", "memory_mib_limit")
    return bool(fixed(held) == fixed(wanted)) and not restart_needed(held, wanted)


def overdue(worker: WorkerReading) -> bool:
    return worker.state is WorkerState.STARTING and worker.state_s > max(
        LAUNCH_S_MIN, LAUNCH_FACTOR * worker.spec.launch_s
    )


def drain_over(worker: WorkerReading, route_grace_s: float) -> bool:
    """Whether a worker that drains has had its time, which begins when the routers have forgotten it."""
    allowed_s = DRAIN_S_MAX if worker.spec.worker is None else worker.spec.worker.drain_s + route_grace_s
    return worker.drained or worker.state_s > allowed_s


# --- The hard limits a target must respect to be accepted by a node


def check_target(
    target: NodeTarget,
    node: str,
    held: NodeTarget | None,
    inventory: Mapping[str, DeviceInventory],
) -> None:
    """Refuse what this node must not hold. Devices may be missing: one that is gone must not cost the others their
    workers. Raises TargetRefusedError.
    """
    if target.node != node:
        raise TargetRefusedError(f"the target is for node {target.node}, this is {node}")
    if held is not None:
        _check_history(target, held)
    names = [replica.replica for device in target.devices for replica in device.replicas]
    if len(names) != len(set(names)):
        raise TargetRefusedError("a replica is named twice")
    if len({device.uuid for device in target.devices}) != len(target.devices):
        raise TargetRefusedError("a device is named twice")
    for device in target.devices:
        if device.uuid in inventory:
            _check_device(device, inventory[device.uuid])


def _check_history(target: NodeTarget, held: NodeTarget) -> None:
    """Generations compare within an epoch of a cluster, and with whoever does not say of which one theirs are."""
    if held.cluster_id is not None and target.cluster_id not in (None, held.cluster_id):
        raise ForeignTargetError(
            f"the target is of cluster {target.cluster_id}, this node belongs to cluster {held.cluster_id}; to hand it "
            f"over, stop its agent and remove {TARGET_FILE} from its state directory"
        )
    told, known = target.epoch or held.epoch or 0, held.epoch or 0
    if told < known:
        raise ForeignTargetError(f"the target is of epoch {told}, which is over: this node holds one of epoch {known}")
    if held.epoch is not None and told > known:
        return
    if target.generation < held.generation:
        raise TargetRefusedError(
            f"generation {target.generation} is older than {held.generation}, which this node holds"
        )
    renamed = replace(held, cluster_id=target.cluster_id, epoch=target.epoch)
    if target.generation == held.generation and target != renamed:
        raise TargetRefusedError(f"generation {target.generation} has already been told with another content")


def _check_device(device: DeviceTarget, inventory: DeviceInventory) -> None:
    if device.mode not in set(Mode):
        raise TargetRefusedError(f"{device.uuid}: unknown mode {device.mode!r}")
    if device.mode == Mode.DEDICATED and len(device.replicas) > 1:
        raise TargetRefusedError(f"{device.uuid}: {len(device.replicas)} replicas on a dedicated device")
    for replica in device.replicas:
        if not 1 <= replica.share_pct_sm <= 100 or replica.memory_mib_limit < 1 or replica.batch < 1:
            raise TargetRefusedError(f"{replica.replica}: share, memory limit or batch is out of range")
    share = sum(held_pct_sm(replica) for replica in device.replicas if replica.retire_after_s is None)
    if share > 100 and device.mode != Mode.TIME_SLICED:
        raise TargetRefusedError(f"{device.uuid}: shares sum to {share} %")
    memory = sum(held_mib(replica) for replica in device.replicas)
    if memory > inventory.memory_mib:
        raise TargetRefusedError(f"{device.uuid}: memory limits sum to {memory} of {inventory.memory_mib} MiB")


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
class WorkerStep:
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
    inventory: DeviceInventory
    settings: DeviceSettings
    workers: tuple[WorkerReading, ...]
    route_grace_s: float = 0.0
    """How long routers may take to forget a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """What to do now. `settled`: the device reads back exactly what it shall hold, every replica ready."""

    steps: tuple[WorkerStep, ...]
    settled: bool


@dataclass(slots=True)
class _SortedWorkers:
    """The device's workers by what shall become of them."""

    keep: dict[str, WorkerReading] = field(default_factory=dict)
    """The worker that is, or will be, each wanted replica."""
    standing: dict[str, WorkerReading] = field(default_factory=dict)
    """Serving until a replacement is ready, here or on another device of this node."""
    retiring: list[WorkerReading] = field(default_factory=list)
    ending: list[WorkerStep] = field(default_factory=list)
    under_way: int = 0
    """Workers that drain by themselves, or will be released when their replacement is ready."""


def next_steps(
    view: DeviceView,
    target: DeviceTarget,
    awaited_elsewhere: Iterable[str] = (),
    not_now: Iterable[str] = (),
    *,
    frozen: bool = False,
) -> DeviceSteps:
    """Steps to take now, in order; retiring replicas whose time is over are not in the target any more.
    `awaited_elsewhere`: replicas of this node that are not ready yet on another
    device, so that their workers here go on until they are. `not_now`: replicas whose start failed lately, or whose
    workers died. `frozen`: change nothing that works.
    """
    wanted = {replica.replica: spec_of(replica) for replica in target.replicas if replica.retire_after_s is None}
    found = _sort(view, target, wanted, frozenset(awaited_elsewhere))
    steps = [*_settings(view, target, lower=True), *found.ending]
    # How an empty device would be shared means nothing to anybody, and may be impossible there.
    mode_differs = view.settings.mode != target.mode and bool(target.replicas or view.workers)
    if mode_differs:
        steps += _change_mode(view, target, found)
    else:
        steps += _tune(found, wanted)
        delayed = frozenset(not_now)
        steps += _start(view, {name: spec for name, spec in wanted.items() if name not in delayed}, found, wanted)
    started = {step.replica for step in steps if step.kind is StepKind.START}
    leaving = len(view.workers) > len(found.keep) + len(found.retiring)
    if not mode_differs and not leaving and started | set(found.keep) == set(wanted):
        steps += _settings(view, target, lower=False)
    ready = all(worker.state is WorkerState.READY for worker in found.keep.values())
    settled = not steps and not leaving and ready and len(found.keep) == len(wanted)
    return DeviceSteps(steps=tuple(_thawed(steps, view) if frozen else steps), settled=settled)


def steps_without_device(
    workers: Iterable[WorkerReading], target: DeviceTarget | None, route_grace_s: float
) -> tuple[WorkerStep, ...]:
    """What can be done for the workers of a device that is gone: those that are not wanted on it any more, or that
    failed, end; the others are left to their fate, which a plan decides.
    """
    wanted = {replica.replica for replica in target.replicas} if target is not None else set()
    steps = []
    for worker in workers:
        if worker.state is WorkerState.FAILED or (worker.spec.replica not in wanted and _done(worker, route_grace_s)):
            steps.append(_end(StepKind.STOP, worker))
        elif worker.spec.replica not in wanted and worker.state is WorkerState.READY:
            steps.append(_end(StepKind.DRAIN, worker))
    return tuple(steps)


def _done(worker: WorkerReading, route_grace_s: float) -> bool:
    """Whether nothing is lost when a worker ends now."""
    if worker.state is WorkerState.DRAINING:
        return drain_over(worker, route_grace_s)
    return worker.state is not WorkerState.READY


def _thawed(steps: list[WorkerStep], view: DeviceView) -> list[WorkerStep]:
    """Of these steps, those that touch nothing that works."""
    failed = {worker.worker for worker in view.workers if worker.state is WorkerState.FAILED or overdue(worker)}
    at_work = {worker.spec.replica for worker in view.workers if worker.worker not in failed}

    def touches_nothing(step: WorkerStep) -> bool:
        match step.kind:
            case StepKind.STOP:
                return step.worker in failed
            case StepKind.START:
                return step.replica not in at_work
            case StepKind.DRAIN:
                return False
            case StepKind.SET_MODE:
                return not view.workers
            case _:
                return True

    return [step for step in steps if touches_nothing(step)]


def _settings(view: DeviceView, target: DeviceTarget, *, lower: bool) -> list[WorkerStep]:
    steps = []
    uuid, held = view.inventory.uuid, view.settings
    clock_max, power_max = view.inventory.clocks_mhz_sm[-1], view.inventory.power_limit_w_max
    falls = (target.power_limit_w or power_max) < (held.power_limit_w or power_max)
    if held.power_limit_w != target.power_limit_w and falls == lower:
        kind = StepKind.LOWER_POWER if lower else StepKind.RAISE_POWER
        steps.append(WorkerStep(kind=kind, uuid=uuid, power_limit_w=target.power_limit_w))
    falls = (target.clock_mhz_sm or clock_max) < (held.clock_mhz_sm or clock_max)
    if held.clock_mhz_sm != target.clock_mhz_sm and falls == lower:
        kind = StepKind.LOWER_CLOCK if lower else StepKind.RAISE_CLOCK
        steps.append(WorkerStep(kind=kind, uuid=uuid, clock_mhz_sm=target.clock_mhz_sm))
    return steps


def _sort(
    view: DeviceView, target: DeviceTarget, wanted: dict[str, WorkerSpec], elsewhere: frozenset[str]
) -> _SortedWorkers:
    found = _SortedWorkers()
    mode_fits = view.settings.mode == target.mode
    usable = [
        worker
        for worker in view.workers
        if mode_fits
        and worker.spec.replica in wanted
        and same_process(worker.spec, wanted[worker.spec.replica])
        and (worker.state is WorkerState.READY or (worker.state is WorkerState.STARTING and not overdue(worker)))
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
        if worker.worker in kept:
            continue
        if worker.state is WorkerState.DRAINING and not drain_over(worker, view.route_grace_s):
            found.under_way += 1
        else:
            _send_off(worker, wanted, elsewhere, found)
    return found


def _send_off(
    worker: WorkerReading, wanted: dict[str, WorkerSpec], elsewhere: frozenset[str], found: _SortedWorkers
) -> None:
    """Decide how a worker that is not kept ends: at once, after draining, or when its replacement is ready."""
    replica = worker.spec.replica
    replacement = found.keep.get(replica)
    replaced = replacement is not None and replacement.state is WorkerState.READY
    awaited = worker.spec.kind != "job" and (replica in wanted or replica in elsewhere)
    if worker.state is not WorkerState.READY:
        found.ending.append(_end(StepKind.STOP, worker))
    elif replica not in found.standing and not replaced and awaited:
        found.standing[replica] = worker
        found.under_way += replacement is not None
    else:
        found.ending.append(_end(StepKind.DRAIN, worker))


def _end(kind: StepKind, worker: WorkerReading, *, gap: bool = False) -> WorkerStep:
    return WorkerStep(kind=kind, uuid=worker.uuid, worker=worker.worker, replica=worker.spec.replica, gap=gap)


def _change_mode(view: DeviceView, target: DeviceTarget, found: _SortedWorkers) -> list[WorkerStep]:
    """A mode belongs to an empty device: everybody goes first."""
    if view.workers:
        return [_end(StepKind.DRAIN, worker, gap=True) for worker in found.standing.values()]
    return [WorkerStep(kind=StepKind.SET_MODE, uuid=view.inventory.uuid, mode=Mode(target.mode))]


def _tune(found: _SortedWorkers, wanted: dict[str, WorkerSpec]) -> list[WorkerStep]:
    steps = []
    for replica, worker in sorted(found.keep.items()):
        spec = wanted[replica]
        if worker.spec.tuned_as(spec) != worker.spec:
            steps.append(
                WorkerStep(kind=StepKind.TUNE, uuid=worker.uuid, worker=worker.worker, replica=replica, spec=spec)
            )
    return steps


def _start(
    view: DeviceView, wanted: dict[str, WorkerSpec], found: _SortedWorkers, staying: Collection[str]
) -> list[WorkerStep]:
    """Start what fits, what frees most first. When nothing fits and nothing is on its way, what retires makes room,
    else one worker.
    """

    def growth(replica: str) -> tuple[int, str]:
        standing = found.standing.get(replica)
        held = standing.spec.share_pct_sm if standing is not None else 0
        return (wanted[replica].share_pct_sm - held if replica in wanted else -held, replica)

    jobs = {worker.spec.replica for worker in view.workers if worker.spec.kind == "job"}
    waiting = sorted((replica for replica in wanted if replica not in found.keep and replica not in jobs), key=growth)
    steps = _fitting(view, [wanted[replica] for replica in waiting], staying)
    stuck = bool(waiting) and not steps and not found.ending and not found.under_way
    if stuck and found.retiring:
        return [_end(StepKind.DRAIN, worker) for worker in found.retiring]
    if stuck and found.standing and all(kept.state is WorkerState.READY for kept in found.keep.values()):
        victim = min(found.standing, key=growth)
        return [_end(StepKind.DRAIN, found.standing[victim], gap=True)]
    return steps


def _fitting(view: DeviceView, waiting: list[WorkerSpec], staying: Collection[str]) -> list[WorkerStep]:
    """Starts of those for whom there is room beside who stays."""
    holding = [worker.spec for worker in view.workers]
    shares = [(spec.replica, held_pct_sm(spec)) for spec in holding]
    memory = view.inventory.memory_mib - sum(held_mib(spec) for spec in holding)
    alone, limited = view.settings.mode is Mode.DEDICATED, view.settings.mode is not Mode.TIME_SLICED
    steps: list[WorkerStep] = []
    for spec in waiting:
        beside = [*shares, (spec.replica, held_pct_sm(spec))]
        crowded = (limited and needed_pct_sm(beside, staying) > 100) or held_mib(spec) > memory
        if crowded or (alone and (holding or steps)):
            continue
        shares = beside
        memory -= held_mib(spec)
        steps.append(WorkerStep(kind=StepKind.START, uuid=view.inventory.uuid, replica=spec.replica, spec=spec))
    return steps
