"""Makes the devices hold the accepted target, one pass at a time, and says how far it got.

Owns the hard limits a target must respect to be accepted, the carrying out of steps, retries with back-off, gaps and
receipts. It keeps no picture of the devices: every pass reads them back first. It refuses targets of other nodes,
older generations, and anything over a device's share or memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from agents.devices.base import Devices, Mode, WorkerState
from agents.errors import DeviceError, TargetRefusedError
from agents.steps import DeviceView, Step, StepKind, next_steps
from agents.wire import DeviceInventory, DeviceReadBack, DeviceTarget, NodeReceipt, NodeTarget, ReplicaReadBack

BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 60.0
PROBLEMS_MAX = 50
_GUARDED = {StepKind.STOP: {StepKind.START}, StepKind.LOWER_POWER: {StepKind.START, StepKind.RAISE_CLOCK}}
"""When a step of the first kind did not happen, those of the second kinds must not happen on that device in this pass.
"""


@dataclass(slots=True)
class _Failure:
    times: int
    not_before_s: float
    problem: str


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
        self._node = node
        self._devices = devices
        self._inventory = {device.uuid: device for device in devices.inventory()}
        self._now_s = now_s
        self._jitter = jitter
        self._accepted_s = now_s()
        self._failures: dict[tuple[str, str, str], _Failure] = {}
        self._gaps: dict[str, float] = {}
        self._notes: list[str] = []
        self._elapsed_ms = 0.0
        self._settled = False
        self._told: tuple[object, ...] | None = None
        self._told_settled = False

    def accept(self, target: NodeTarget) -> bool:
        """Take a target over; False when it is the one already held. Raises TargetRefusedError."""
        if self.target is not None and target == self.target:
            return False
        self._check(target)
        self.target = target
        self._accepted_s = self._now_s()
        self._failures.clear()
        self._notes.clear()
        self._settled = self._told_settled = False
        self._told = None
        return True

    def run_pass(self) -> Pass:
        """Read everything back and take the next steps of every device."""
        if self.target is None:
            return Pass(calls=0, settled=True)
        held = self._without_retired(self.target)
        wanted = {device.uuid: device for device in held}
        workers = self._devices.workers()
        ready = {(worker.uuid, worker.spec.replica) for worker in workers if worker.state is WorkerState.READY}
        awaited = {
            device.uuid: {
                replica.replica
                for replica in device.replicas
                if replica.retire_after_s is None and (device.uuid, replica.replica) not in ready
            }
            for device in held
        }
        calls, settled = 0, True
        for uuid, inventory in self._inventory.items():
            target = wanted.get(uuid) or DeviceTarget(
                uuid=uuid, mode=Mode.MPS.value, clock_mhz_sm=None, power_limit_w=None, replicas=()
            )
            elsewhere = frozenset().union(*(replicas for other, replicas in awaited.items() if other != uuid))
            made, done = self._run_device(inventory, target, elsewhere)
            calls += made
            settled = settled and done
        self._note_gaps()
        if settled and not self._settled:
            self._elapsed_ms = 1000.0 * (self._now_s() - self._accepted_s)
            self.generation_applied = self.target.generation
        self._settled = settled
        self._told_settled = self._told_settled and settled
        return Pass(calls=calls, settled=settled)

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

    def receipt(self, boot_id: str, observed_at_s: float) -> NodeReceipt | None:
        """The receipt to send now: the first of a target, and every one that says something new."""
        if self.target is None or (self._settled and self._told_settled):
            return None
        outcome = "applied" if self._settled else "partial"
        failing = [f"{key[0]} {key[1]} {key[2]}: {failure.problem}" for key, failure in sorted(self._failures.items())]
        problems = (*failing, *self._notes)[:PROBLEMS_MAX]
        found = self._read_back(boot_id, self.target.generation, self.target.plan, observed_at_s)
        told = (outcome, problems, found.devices, found.replicas)
        if told == self._told:
            return None
        self._told, self._told_settled = told, self._settled
        elapsed_ms = self._elapsed_ms if self._settled else 1000.0 * (self._now_s() - self._accepted_s)
        return replace(found, outcome=outcome, elapsed_ms=elapsed_ms, problems=problems)

    def refusal(self, boot_id: str, observed_at_s: float, generation: int, reason: str) -> NodeReceipt:
        """The receipt of a target that was refused: what the node holds instead."""
        return replace(self._read_back(boot_id, generation, None, observed_at_s), problems=(reason,))

    def _check(self, target: NodeTarget) -> None:
        if target.node != self._node:
            raise TargetRefusedError(f"the target is for node {target.node}, this is {self._node}")
        if self.target is not None and target.generation < self.target.generation:
            raise TargetRefusedError(
                f"generation {target.generation} is older than {self.target.generation}, which this node holds"
            )
        if self.target is not None and target.generation == self.target.generation:
            raise TargetRefusedError(f"generation {target.generation} has already been told with another content")
        names = [replica.replica for device in target.devices for replica in device.replicas]
        if len(names) != len(set(names)):
            raise TargetRefusedError("a replica is named twice")
        if len({device.uuid for device in target.devices}) != len(target.devices):
            raise TargetRefusedError("a device is named twice")
        for device in target.devices:
            self._check_device(device)

    def _check_device(self, device: DeviceTarget) -> None:
        inventory = self._inventory.get(device.uuid)
        if inventory is None:
            raise TargetRefusedError(f"this node has no device {device.uuid}")
        if device.mode not in set(Mode):
            raise TargetRefusedError(f"{device.uuid}: unknown mode {device.mode!r}")
        if device.mode == Mode.DEDICATED and len(device.replicas) > 1:
            raise TargetRefusedError(f"{device.uuid}: {len(device.replicas)} replicas on a dedicated device")
        for replica in device.replicas:
            if not 1 <= replica.share_pct_sm <= 100 or replica.memory_mib_limit < 1 or replica.batch < 1:
                raise TargetRefusedError(f"{replica.replica}: share, memory limit or batch is out of range")
        share = sum(replica.share_pct_sm for replica in device.replicas)
        if share > 100:
            raise TargetRefusedError(f"{device.uuid}: shares sum to {share} %")
        memory = sum(replica.memory_mib_limit for replica in device.replicas)
        if memory > inventory.memory_mib:
            raise TargetRefusedError(f"{device.uuid}: memory limits sum to {memory} of {inventory.memory_mib} MiB")

    def _run_device(
        self, inventory: DeviceInventory, target: DeviceTarget, elsewhere: frozenset[str]
    ) -> tuple[int, bool]:
        uuid = inventory.uuid
        try:
            workers = tuple(worker for worker in self._devices.workers() if worker.uuid == uuid)
            view = DeviceView(inventory=inventory, settings=self._devices.settings(uuid), workers=workers)
        except DeviceError as error:
            self._fail((uuid, "read", ""), error)
            return 0, False
        self._failures.pop((uuid, "read", ""), None)
        planned = next_steps(view, target, elsewhere, self._starts_delayed(uuid))
        self._forget(target, planned.steps)
        forbidden: set[StepKind] = set()
        calls = 0
        for step in planned.steps:
            if step.kind in forbidden:
                continue
            done = self._take(step)
            calls += done
            if not done:
                forbidden |= _GUARDED.get(step.kind, set())
        return calls, planned.settled

    def _take(self, step: Step) -> bool:
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

    def _call(self, step: Step) -> None:
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
        longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** (times - 1))
        wait_s = (BACKOFF_S_MAX if not error.retryable else longest) * self._jitter.uniform(0.5, 1.0)
        self._failures[key] = _Failure(times, self._now_s() + wait_s, f"{error.code}: {error}")

    def _starts_delayed(self, uuid: str) -> frozenset[str]:
        now_s = self._now_s()
        return frozenset(
            replica
            for (device, kind, replica), failure in self._failures.items()
            if device == uuid and kind == StepKind.START and now_s < failure.not_before_s
        )

    def _forget(self, target: DeviceTarget, steps: tuple[Step, ...]) -> None:
        """Drop failures of steps that nobody wants any more. A start that waits for its time is still wanted."""
        wanted = {(step.uuid, step.kind.value, step.replica) for step in steps}
        delayed = self._starts_delayed(target.uuid) & {replica.replica for replica in target.replicas}
        wanted |= {(target.uuid, StepKind.START.value, replica) for replica in delayed}
        for key in [key for key in self._failures if key[0] == target.uuid and key not in wanted]:
            del self._failures[key]

    def _note_gaps(self) -> None:
        """A gap ends when its replica is ready again; how long it was belongs into the receipt."""
        if not self._gaps:
            return
        ready = {worker.spec.replica for worker in self._devices.workers() if worker.state is WorkerState.READY}
        for replica in sorted(set(self._gaps) & ready):
            gap_s = self._now_s() - self._gaps.pop(replica)
            self._notes.append(f"{replica}: {gap_s:.1f} s without a process, there was no room for a shadow")

    def _read_back(self, boot_id: str, generation: int, plan: str | None, observed_at_s: float) -> NodeReceipt:
        settings = [self._devices.settings(uuid) for uuid in self._inventory]
        return NodeReceipt(
            node=self._node,
            boot_id=boot_id,
            generation=generation,
            plan=plan,
            outcome="refused",
            observed_at_s=observed_at_s,
            elapsed_ms=0.0,
            devices=tuple(
                DeviceReadBack(
                    uuid=held.uuid,
                    mode=held.mode.value,
                    clock_mhz_sm=held.clock_mhz_sm,
                    power_limit_w=held.power_limit_w,
                )
                for held in settings
            ),
            replicas=tuple(
                ReplicaReadBack(
                    replica=worker.spec.replica,
                    uuid=worker.uuid,
                    share_pct_sm=worker.spec.share_pct_sm,
                    sm_count=worker.sm_count,
                    memory_mib_limit=worker.spec.memory_mib_limit,
                    batch=worker.spec.batch,
                    ready=worker.state is WorkerState.READY,
                    endpoint=worker.endpoint,
                )
                for worker in sorted(self._devices.workers(), key=lambda each: each.worker)
            ),
        )
