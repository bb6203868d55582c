"""Makes the devices hold the accepted target, one pass at a time, and says how far it got.

The carrying out of steps, retries with back-off, gaps and receipts. It keeps no picture of the devices: every pass
reads them back first, and a receipt says what that pass read. While it is frozen it holds what works and changes
nothing. Of a target that holds, batches and clocks may move inside their envelopes: that is governing, not a change of
what was applied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agents.devices.base import Devices, DeviceSettings, Reservations, WorkerReading, WorkerState
from agents.errors import DeviceError, LostError
from agents.loop.steps import DeviceView, StepKind, WorkerStep, check_target, next_steps, overdue, steps_without_device
from agents.wire import (
    DeviceInventory,
    DeviceReadBack,
    DeviceTarget,
    NodeReceipt,
    NodeTarget,
    RepartitionReport,
    ReplicaReadBack,
    mirrored,
)

# --- Workers that die or never get ready, and when another one may be started
#
# The back-off between a replica's workers doubles from a second to a minute with jitter, and is forgiven after one has
# been ready for a while.


BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
FORGIVEN_AFTER_S = 120.0
"""A worker that has been ready for so long clears its replica's name."""


@dataclass(frozen=True, slots=True)
class _Setback:
    """What failed so many times, and when it may be tried again."""

    times: int
    not_before_s: float
    problem: str
    worker: str = ""
    """Who died last."""


def _longer_s(times: int) -> float:
    return min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** (times - 1))


class Restarts:
    """Counts deaths by device and replica. Not thread-safe."""

    def __init__(self, now_s: Callable[[], float], jitter: random.Random) -> None:
        self._now_s = now_s
        self._jitter = jitter
        self._records: dict[tuple[str, str], _Setback] = {}
        self._counted: set[str] = set()
        self._ready: dict[tuple[str, str], str] = {}
        """The newest ready worker of each replica at the last look."""

    def observe(self, workers: Iterable[WorkerReading]) -> None:
        """Count whoever has died since the last look, once, and forgive whoever has been well for long."""
        found = set()
        self._ready = {}
        for worker in workers:
            found.add(worker.worker)
            key = (worker.uuid, worker.spec.replica)
            if worker.state is WorkerState.READY:
                self._ready[key] = max(worker.worker, self._ready.get(key, ""))
            if worker.state is WorkerState.READY and worker.state_s >= FORGIVEN_AFTER_S:
                self._records.pop(key, None)
            problem = _fate(worker)
            if problem and worker.worker not in self._counted:
                self._counted.add(worker.worker)
                self._count(key, problem, worker.worker)
        self._counted &= found

    def delayed(self, uuid: str) -> frozenset[str]:
        now_s = self._now_s()
        return frozenset(
            replica
            for (device, replica), record in self._records.items()
            if device == uuid and now_s < record.not_before_s
        )

    def keep(self, wanted: Iterable[tuple[str, str]]) -> None:
        keys = set(wanted)
        for key in [key for key in self._records if key not in keys]:
            del self._records[key]

    def problems(self) -> list[str]:
        return [
            f"{uuid} {replica}: {record.times} {'worker' if record.times == 1 else 'workers'} failed, "
            f"the last one: {record.problem}{self._standing((uuid, replica), record)}"
            for (uuid, replica), record in sorted(self._records.items())
        ]

    def _standing(self, key: tuple[str, str], record: _Setback) -> str:
        """Whether the one that was to be replaced is still there."""
        return "; the one before it goes on" if "" < self._ready.get(key, "") < record.worker else ""

    def _count(self, key: tuple[str, str], problem: str, worker: str) -> None:
        before = self._records.get(key)
        deaths = 1 if before is None else before.times + 1
        not_before_s = self._now_s() + _longer_s(deaths) * self._jitter.uniform(0.5, 1.0)
        self._records[key] = _Setback(deaths, not_before_s, problem, worker)


def _fate(worker: WorkerReading) -> str:
    """How a worker failed; empty when it did not."""
    if worker.state is WorkerState.FAILED:
        return worker.problem or "the process failed"
    if overdue(worker):
        return f"not ready in time{': ' + worker.problem if worker.problem else ''}"
    return ""


def _late(worker: WorkerReading) -> bool:
    """Whether it takes longer than its launch should, or has not begun because others have their turn, and says why."""
    return (
        worker.state is WorkerState.STARTING and bool(worker.problem) and not 0 < worker.state_s <= worker.spec.launch_s
    )


PROBLEMS_MAX = 50
PROBLEM_LENGTH_MAX = 512
"""What the control plane takes of one; a receipt with a longer one would be refused whole."""
CUT = " ... "
_GUARDED = {StepKind.STOP: {StepKind.START}, StepKind.LOWER_POWER: {StepKind.START, StepKind.RAISE_CLOCK}}
"""When a step of the first kind did not happen, those of the second kinds must not happen on that device in this pass.
"""
_GOVERNED = {StepKind.TUNE, StepKind.LOWER_CLOCK, StepKind.RAISE_CLOCK}
"""What a governor moves without the target being held any less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass did: how many calls it made, and whether everything reads back as wanted."""

    calls: int
    settled: bool


class Applier:
    """Holds one target. Not thread-safe: one thread applies."""

    def __init__(self, node: str, devices: Devices, now_s: Callable[[], float], jitter: random.Random) -> None:
        self.target: NodeTarget | None = None
        self.generation_applied = 0
        self.frozen = False
        """Change nothing that works: nobody answers for what is wanted."""
        self.route_grace_s = 0.0
        """How long routers may take to forget a worker."""
        self.more_problems: Callable[[], tuple[str, ...]] = tuple
        self.wishes: Callable[[], tuple[RepartitionReport, ...]] = tuple
        """What else belongs into receipts."""
        self._governed: NodeTarget | None = None
        self.reservations = Reservations()
        """Devices that are lent to profile runs."""
        self._node = node
        self._devices = devices
        self._inventory = {device.uuid: device for device in devices.inventory()}
        self._now_s = now_s
        self._jitter = jitter
        self._accepted_s = now_s()
        self._failures: dict[tuple[str, str, str], _Setback] = {}
        self._restarts = Restarts(now_s, jitter)
        self._gaps: dict[str, float] = {}
        self._notes: list[str] = []
        self._elapsed_ms = 0.0
        self._settled = False
        self._told: tuple[object, ...] | None = None
        self._workers: tuple[WorkerReading, ...] = ()
        self._settings: dict[str, DeviceSettings] = {}

    def accept(self, target: NodeTarget) -> bool:
        """Take a target over; False when it is the one already held. Raises TargetRefusedError."""
        if self.target is not None and target == self.target:
            return False
        check_target(target, self._node, self.target, self._inventory)
        if self.target is None or self.target.epoch != target.epoch:
            self.generation_applied = 0
        self.target = target
        self._governed = None
        self._accepted_s = self._now_s()
        self._failures.clear()
        self._restarts.keep((device.uuid, replica.replica) for device in target.devices for replica in device.replicas)
        self._notes.clear()
        self._settled = False
        self._told = None
        return True

    def govern(self, target: NodeTarget) -> None:
        """Hold the target with these batches and clocks from now on, until another one is accepted."""
        self._governed = target

    def run_pass(self) -> Pass:
        if self.target is None:
            return Pass(calls=0, settled=True)
        now_held = self._governed or self.target
        held = now_held.devices if self.frozen else self._without_retired(now_held)
        wanted = {device.uuid: device for device in held}
        self._workers = workers = self._devices.workers()
        self._restarts.observe(workers)
        self._note_gaps()
        ready = {(worker.uuid, worker.spec.replica) for worker in workers if worker.state is WorkerState.READY}
        awaited = {
            device.uuid: {
                replica.replica
                for replica in device.replicas
                if replica.retire_after_s is None and (device.uuid, replica.replica) not in ready
            }
            for device in held
        }
        calls, settled = 0, not self._missing()
        for uuid, inventory in self._inventory.items():
            if self.reservations.is_lent(uuid):
                settled = self._wanted_back(uuid, wanted.get(uuid)) and settled
                continue
            elsewhere = frozenset().union(*(replicas for other, replicas in awaited.items() if other != uuid))
            made, done = self._run_device(inventory, wanted.get(uuid), elsewhere)
            calls += made
            settled = settled and done
        if settled and not self._settled:
            self._elapsed_ms = 1000.0 * (self._now_s() - self._accepted_s)
            self.generation_applied = self.target.generation
        self._settled = settled
        return Pass(calls=calls, settled=settled)

    def _wanted_back(self, uuid: str, target: DeviceTarget | None) -> bool:
        """Leave a device to whoever measures on it, unless the target has something there; whether all is well."""
        if target is None or not target.replicas:
            return True
        self.reservations.claim(uuid)
        return False

    def receipt(self, boot_id: str, observed_at_s: float) -> NodeReceipt | None:
        """The receipt to send now: the first of a target, and every one that says something new."""
        if self.target is None:
            return None
        outcome = "applied" if self._settled else "partial"
        failing = [f"{key[0]} {key[1]} {key[2]}: {failure.problem}" for key, failure in sorted(self._failures.items())]
        missing = (f"{uuid}: not on this host any more" for uuid in self._missing())
        devices = (*missing, *self._devices.problems(), *self.more_problems())
        late = (f"{each.uuid} {each.spec.replica}: not ready: {each.problem}" for each in self._workers if _late(each))
        stalled = (f"{each.uuid} {each.spec.replica}: {each.stalled}" for each in self._workers if each.stalled)
        found_wrong = (*devices, *failing, *self._restarts.problems(), *late, *stalled, *self._notes)
        more = len(found_wrong) - PROBLEMS_MAX
        if more > 0:
            found_wrong = (*found_wrong[: PROBLEMS_MAX - 1], f"{more + 1} more problems")
        problems = tuple(map(problem_line, found_wrong))
        wishes = self.wishes()
        told = (outcome, problems, wishes, *self._seen(batches=not self._settled or self._governed is None))
        if told == self._told:
            return None
        self._told = told
        found = self._read_back(boot_id, self.target, observed_at_s)
        elapsed_ms = self._elapsed_ms if self._settled else 1000.0 * (self._now_s() - self._accepted_s)
        return replace(found, outcome=outcome, elapsed_ms=elapsed_ms, problems=problems, wishes=wishes)

    def tell_again(self) -> None:
        """The last receipts were refused for their time."""
        self._told = None

    def _seen(self, *, batches: bool) -> tuple[object, ...]:
        """What a receipt would say of devices and workers. What a governor moves is in every report: a receipt for each
        move would say nothing new, so that it is left out then.
        """
        workers = [
            (each.worker, each.state is WorkerState.READY, each.sm_count, each.endpoint, each.spec.batch * batches)
            for each in self._workers
        ]
        settings = [
            (held.uuid, held.mode, held.clock_mhz_sm if batches else None, held.power_limit_w)
            for held in self._settings.values()
        ]
        return (workers, settings)

    def refusal(self, boot_id: str, observed_at_s: float, target: NodeTarget, reason: str) -> NodeReceipt:
        """The receipt of a target that was refused: what the node holds instead."""
        self._workers = self._devices.workers()
        for uuid in self._inventory:
            self._read_settings(uuid)
        held = target if self.target is None or target.epoch is None else self.target
        told = replace(target, plan=None, cluster_id=held.cluster_id, epoch=held.epoch)
        return replace(self._read_back(boot_id, told, observed_at_s), problems=(problem_line(reason),))

    def _missing(self) -> list[str]:
        devices = self.target.devices if self.target is not None else ()
        return [device.uuid for device in devices if device.replicas and device.uuid not in self._inventory]

    def _without_retired(self, target: NodeTarget) -> tuple[DeviceTarget, ...]:
        """The target without the replicas whose time to retire is over."""
        age_s = self._now_s() - self._accepted_s
        return tuple(
            replace(
                device,
                replicas=tuple(
                    replica
                    for replica in device.replicas
                    if replica.retire_after_s is None or age_s < replica.retire_after_s
                ),
            )
            for device in target.devices
        )

    def _run_device(
        self, inventory: DeviceInventory, wanted: DeviceTarget | None, elsewhere: frozenset[str]
    ) -> tuple[int, bool]:
        """Take a device's steps; how many calls that made, and whether it holds what it shall."""
        uuid = inventory.uuid
        workers = tuple(worker for worker in self._workers if worker.uuid == uuid)
        error = self._read_settings(uuid)
        if error is not None:
            self._fail((uuid, "read", ""), error)
            gone = steps_without_device(workers, wanted, self.route_grace_s) if isinstance(error, LostError) else ()
            return self._take_all(() if self.frozen else gone), False
        self._failures.pop((uuid, "read", ""), None)
        settings = self._settings[uuid]
        target = wanted or DeviceTarget(
            uuid=uuid, mode=settings.mode.value, clock_mhz_sm=None, power_limit_w=None, replicas=()
        )
        view = DeviceView(inventory=inventory, settings=settings, workers=workers, route_grace_s=self.route_grace_s)
        not_now = self._starts_delayed(uuid) | self._restarts.delayed(uuid)
        planned = next_steps(view, target, elsewhere, not_now, frozen=self.frozen)
        self._forget(target, planned.steps)
        made = self._take_all(planned.steps)
        only_governed = self._settled and made == len(planned.steps) > 0
        held = planned.settled or (only_governed and {step.kind for step in planned.steps} <= _GOVERNED)
        return made, held

    def _read_settings(self, uuid: str) -> DeviceError | None:
        try:
            self._settings[uuid] = self._devices.settings(uuid)
        except DeviceError as error:
            self._settings.pop(uuid, None)
            return error
        return None

    def _take_all(self, steps: tuple[WorkerStep, ...]) -> int:
        forbidden: set[StepKind] = set()
        calls = 0
        for step in steps:
            if step.kind in forbidden:
                continue
            done = self._take(step)
            calls += done
            if not done:
                forbidden |= _GUARDED.get(step.kind, set())
        return calls

    def _take(self, step: WorkerStep) -> bool:
        """Make one call, unless it failed lately; whether it was made and worked."""
        key = (step.uuid, step.kind.value, step.replica)
        failure = self._failures.get(key)
        if failure is not None and self._now_s() < failure.not_before_s:
            return False
        try:
            self._call(step)
        except DeviceError as error:
            self._fail(key, error)
            return False
        self._failures.pop(key, None)
        if step.gap:
            self._gaps.setdefault(step.replica, self._now_s())
        return True

    def _call(self, step: WorkerStep) -> None:
        match step.kind:
            case StepKind.LOWER_POWER | StepKind.RAISE_POWER:
                self._devices.set_power_limit(step.uuid, step.power_limit_w)
            case StepKind.LOWER_CLOCK | StepKind.RAISE_CLOCK:
                self._devices.set_clock(step.uuid, step.clock_mhz_sm)
            case StepKind.STOP:
                self._devices.stop(step.worker)
            case StepKind.DRAIN:
                self._devices.drain(step.worker)
            case StepKind.SET_MODE if step.mode is not None:
                self._devices.set_mode(step.uuid, step.mode)
            case StepKind.TUNE if step.spec is not None:
                self._devices.tune(step.worker, step.spec)
            case StepKind.START if step.spec is not None:
                self._devices.start(step.uuid, step.spec)
            case _:
                raise AssertionError(f"a step without what it needs: {step}")

    def _fail(self, key: tuple[str, str, str], error: DeviceError) -> None:
        before = self._failures.get(key)
        times = 1 if before is None else before.times + 1
        wait_s = (_longer_s(times) if error.retryable else BACKOFF_S_MAX) * self._jitter.uniform(0.5, 1.0)
        self._failures[key] = _Setback(times, self._now_s() + wait_s, f"{error.code}: {error}")

    def _starts_delayed(self, uuid: str) -> frozenset[str]:
        now_s = self._now_s()
        return frozenset(
            replica
            for (device, kind, replica), failure in self._failures.items()
            if device == uuid and kind == StepKind.START and now_s < failure.not_before_s
        )

    def _forget(self, target: DeviceTarget, steps: tuple[WorkerStep, ...]) -> None:
        """Drop failures of steps that nobody wants any more. A start that waits for its time or its turn is still
        wanted.
        """
        wanted = {(step.uuid, step.kind.value, step.replica) for step in steps}
        asked = {replica.replica for replica in target.replicas}
        present = {worker.spec.replica for worker in self._workers if worker.uuid == target.uuid}
        waiting = (self._starts_delayed(target.uuid) | (asked - present)) & asked
        wanted |= {(target.uuid, StepKind.START.value, replica) for replica in waiting}
        for key in [key for key in self._failures if key[0] == target.uuid and key not in wanted]:
            del self._failures[key]

    def _note_gaps(self) -> None:
        """A gap ends when its replica is ready again; how long it was belongs into the receipt."""
        if not self._gaps:
            return
        ready = {worker.spec.replica for worker in self._workers if worker.state is WorkerState.READY}
        for replica in sorted(set(self._gaps) & ready):
            gap_s = self._now_s() - self._gaps.pop(replica)
            self._notes.append(f"{replica}: {gap_s:.1f} s without a process, there was no room for a shadow")

    def _read_back(self, boot_id: str, target: NodeTarget, observed_at_s: float) -> NodeReceipt:
        """What was read last; a device that could not be read is not in it."""
        return mirrored(
            NodeReceipt,
            target,
            node=self._node,
            boot_id=boot_id,
            outcome="refused",
            observed_at_s=observed_at_s,
            elapsed_ms=0.0,
            devices=tuple(mirrored(DeviceReadBack, held, mode=held.mode.value) for held in self._settings.values()),
            replicas=tuple(
                mirrored(ReplicaReadBack, worker, worker.spec, ready=worker.state is WorkerState.READY)
                for worker in sorted(self._workers, key=lambda each: each.worker)
            ),
            problems=(),
            wishes=(),
        )


def problem_line(text: str) -> str:
    """A problem as a receipt may carry it: printable, and not too long. Workers' last words are neither; who failed
    stands at its beginning, and why at its end.
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    if len(line) <= PROBLEM_LENGTH_MAX:
        return line
    half = (PROBLEM_LENGTH_MAX - len(CUT)) // 2
    return f"{line[:half]}{CUT}{line[-half:]}"
