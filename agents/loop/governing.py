"""Moves batches and clocks inside their envelopes between plans: runs controllers of `solvers.control` on this node.

It touches no device: the applier makes the devices hold the overlaid target and reads back as usual, and nothing is
decided before that has happened. What a plan fixed (both ends of an envelope equal), what cannot be changed without a
new process or a reload, and replicas on their way out stay exactly as planned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agents.devices.base import Devices, DeviceSample, WorkerSample, WorkerState
from agents.errors import DeviceError
from agents.wire import DeviceInventory, DeviceTarget, NodeTarget, RepartitionReport, ReplicaTarget, mirrored
from solvers.control.controllers import Controller, controller, names
from solvers.control.judging import coming_part
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ProcessReading,
    Repartition,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaWish,
    Setting,
    state_from_plain,
    state_to_plain,
)

PERIOD_S = 1.0
STALE_PERIODS = 3
"""Measurements older than this are not acted on."""
AGENT_SETTINGS = GovernorSettings(settle_periods=2)
"""Boards tell power as an average over a second: what was raised shows one period later."""


@dataclass(slots=True)
class _NodeDevice:
    target: DeviceTarget
    governor: str
    loop: Controller
    envelope: DeviceEnvelope
    state: DeviceState
    decided_s: float
    """When it was last decided, or taken over."""
    turned_s: float
    """When a period last ended, with or without a decision."""
    used_s: float
    """The newest observation that counts no more."""
    clock_top_mhz: int
    decision: GovernorDecision | None = None
    wanted: Repartition | None = None


@dataclass(frozen=True, slots=True)
class _Observed:
    sample: DeviceSample
    at_s: float


class NodeGoverning:
    """Governs all devices of a node. Not thread-safe: the applying thread calls it."""

    def __init__(
        self,
        devices: Devices,
        now_s: Callable[[], float],
        settings: GovernorSettings = AGENT_SETTINGS,
        period_s: float = PERIOD_S,
    ) -> None:
        self._devices = devices
        self._inventory = {device.uuid: device for device in devices.inventory()}
        self._now_s = now_s
        self._settings = settings
        self._period_s = period_s
        self._target: NodeTarget | None = None
        self._governed: dict[str, _NodeDevice] = {}
        self._observed: dict[str, _Observed] = {}
        self._recalled: dict[str, DeviceState] = {}
        self._counts: Counter[str] = Counter()

    def observe(self, samples: tuple[DeviceSample, ...]) -> None:
        now_s = self._now_s()
        self._observed = {sample.uuid: _Observed(sample, now_s) for sample in samples}

    def overlay(self, target: NodeTarget) -> NodeTarget:
        """The target with batches and clocks as governed. Decides at most once a period for each device."""
        if target != self._target:
            self._take(target)
        for uuid, governed in self._governed.items():
            self._turn(uuid, governed)
        return replace(target, devices=tuple(self._overlaid(device) for device in target.devices))

    def due_s(self) -> float:
        """Seconds until the next period of some device; infinite when nothing is governed."""
        ends_s = [governed.turned_s + self._period_s for governed in self._governed.values()]
        return max(0.0, min(ends_s) - self._now_s()) if ends_s else math.inf

    def decisions(self) -> Mapping[str, GovernorDecision]:
        return {uuid: governed.decision for uuid, governed in self._governed.items() if governed.decision is not None}

    def problems(self) -> tuple[str, ...]:
        """Devices that cannot keep their limits by governing alone, as sentences for the receipt."""
        return (
            *(f"this agent knows no controller called {name}; batches and clocks stay" for name in self._unknown()),
            *(
                _sentence(uuid, governed.wanted)
                for uuid, governed in sorted(self._governed.items())
                if governed.wanted is not None
            ),
        )

    def _unknown(self) -> list[str]:
        target = self._target
        if target is None:
            return []
        named = {target.governor_of(device) for device in target.devices} or {target.governor}
        return sorted(named - set(names()))

    def wishes(self) -> tuple[RepartitionReport, ...]:
        return tuple(
            mirrored(RepartitionReport, governed.wanted, uuid=uuid, cause=governed.wanted.cause.value)
            for uuid, governed in sorted(self._governed.items())
            if governed.wanted is not None
        )

    def take_counts(self) -> dict[str, int]:
        """How often what was decided since the last call, for the log. The kinds are few and fixed."""
        counts, self._counts = dict(sorted(self._counts.items())), Counter()
        return counts

    def memory(self) -> dict[str, object]:
        """What the next agent on this node should know, as plain JSON data."""
        return {"governed": [state_to_plain(governed.state) for governed in self._governed.values()]}

    def recall(self, plain: object) -> None:
        """Go on where an earlier agent was; call before the first overlay. Raises ValueError."""
        listed = plain.get("governed") if isinstance(plain, dict) else None
        if not isinstance(listed, list):
            raise ValueError("no memory of a governor")
        states = [state_from_plain(item) for item in listed]
        self._recalled = {state.uuid: state for state in states}

    def _take(self, target: NodeTarget) -> None:
        """Take over a new target: what is still inside its envelope stays."""
        before = self._recalled | {uuid: governed.state for uuid, governed in self._governed.items()}
        found = {}
        for device in target.devices:
            name, inventory = target.governor_of(device), self._inventory.get(device.uuid)
            envelope = None if inventory is None else envelope_of(device, inventory)
            if inventory is None or envelope is None or name not in names():
                continue
            standing = self._governed.get(device.uuid)
            if standing is not None and standing.envelope == envelope and standing.governor == name:
                # Nothing changed for it: what it has learned and counted stays.
                found[device.uuid] = replace(standing, target=device)
                continue
            # Another controller begins where the one before ended, with none of its experience.
            loop = controller(name, self._settings)
            planned, held = _planned(device, envelope), before.get(device.uuid)
            found[device.uuid] = _NodeDevice(
                target=device,
                governor=name,
                loop=loop,
                envelope=envelope,
                state=loop.first(envelope, planned) if held is None else loop.fitted(envelope, held, planned),
                decided_s=self._now_s(),
                turned_s=self._now_s(),
                used_s=self._now_s(),
                clock_top_mhz=inventory.clocks_mhz_sm[-1] if inventory.clocks_mhz_sm else 0,
            )
        self._target, self._governed, self._recalled = target, found, {}

    def _turn(self, uuid: str, governed: _NodeDevice) -> None:
        """Decide a device's period, if it is time and there is something to decide on."""
        now_s, observed = self._now_s(), self._observed.get(uuid)
        shortest_s, oldest_s = self._period_s * 0.999, STALE_PERIODS * self._period_s
        fresh = observed is not None and observed.at_s > governed.used_s and now_s - observed.at_s <= oldest_s
        if observed is not None and fresh and now_s - governed.decided_s >= shortest_s:
            governed.decided_s = governed.turned_s = now_s
            governed.used_s = observed.at_s
            if self._applied(uuid, governed, observed.sample):
                self._decide(governed, reading_of(observed.sample, governed.envelope))
            else:
                self._counts["not_applied"] += 1
        elif now_s - governed.turned_s >= shortest_s:
            governed.turned_s = now_s
            if now_s - governed.decided_s > oldest_s:
                self._decide(governed, DeviceReading(power_w=None, replicas=(), stale=True))

    def _decide(self, governed: _NodeDevice, reading: DeviceReading) -> None:
        before = governed.state.setting.batches
        decision = governed.loop.step(governed.envelope, governed.state, reading)
        governed.state, governed.decision = decision.state, decision
        self._note(governed, decision, before)

    def _applied(self, uuid: str, governed: _NodeDevice, sample: DeviceSample) -> bool:
        """Whether what was measured ran under the governed setting: a set value is a request until it is read back."""
        try:
            clock = self._devices.settings(uuid).clock_mhz_sm
        except DeviceError:
            return False
        if governed.envelope.clocks_mhz_sm and clock != self._overlaid(governed.target).clock_mhz_sm:
            return False
        wanted = dict(zip(governed.state.replicas, governed.state.setting.batches, strict=True))
        return all(
            worker.reading.spec.batch == wanted.get(worker.reading.spec.replica, worker.reading.spec.batch)
            for worker in _ready(sample)
        )

    def _note(self, governed: _NodeDevice, decision: GovernorDecision, before: tuple[int, ...]) -> None:
        if decision.held:
            self._counts["held"] += 1
            return
        self._counts["bad" if decision.bad else "good"] += 1
        for old, new in zip(before, decision.state.setting.batches, strict=True):
            if new != old:
                self._counts[(ReplicaWish.BATCH_UP if new > old else ReplicaWish.BATCH_DOWN).value] += 1
        if decision.clock is not ReplicaWish.HOLD:
            self._counts[decision.clock.value] += 1
        if decision.repartition is not None:
            self._counts["repartition"] += 1
            governed.wanted = decision.repartition
        elif not decision.bad:
            governed.wanted = None

    def _overlaid(self, device: DeviceTarget) -> DeviceTarget:
        governed = self._governed.get(device.uuid)
        if governed is None:
            return device
        batches = dict(zip(governed.state.replicas, governed.state.setting.batches, strict=True))
        replicas = tuple(
            replace(replica, batch=batches[replica.replica]) if replica.replica in batches else replica
            for replica in device.replicas
        )
        clock = device.clock_mhz_sm
        if len(governed.envelope.clocks_mhz_sm) > 1:
            clock = governed.state.setting.clock_mhz_sm
            if device.clock_mhz_sm is None and clock == governed.clock_top_mhz:
                # Nothing has to be locked to let a device run as fast as it can.
                clock = None
        return replace(device, clock_mhz_sm=clock, replicas=replicas)


def envelope_of(device: DeviceTarget, inventory: DeviceInventory) -> DeviceEnvelope | None:
    """What may be moved on a device; None when nothing may."""
    staying = [replica for replica in device.replicas if replica.retire_after_s is None]
    replicas = tuple(_replica_envelope(replica) for replica in staying)
    clocks: tuple[int, ...] = ()
    if staying and not (inventory.capabilities or {}).get("set_clock", ""):
        low = max(replica.clock_mhz_sm_min for replica in staying)
        high = min(replica.clock_mhz_sm_max for replica in staying)
        clocks = tuple(sorted(clock for clock in inventory.clocks_mhz_sm if low <= clock <= high))
    if len(clocks) < 2 and all(replica.fixed for replica in replicas):
        return None
    return DeviceEnvelope(
        uuid=device.uuid,
        power_w_cap=device.power_limit_w,
        clocks_mhz_sm=clocks if len(clocks) > 1 else (),
        replicas=replicas,
        cap_held=not (inventory.capabilities or {}).get("set_power", ""),
    )


def reading_of(sample: DeviceSample, envelope: DeviceEnvelope) -> DeviceReading:
    """What the governor shall know of a sample. An unhealthy device is not governed on what it says of itself."""
    known = math.isfinite(sample.power_w) and sample.power_w > 0.0
    ready = _ready(sample)
    found = []
    for replica in envelope.replicas:
        workers = [worker for worker in ready if worker.reading.spec.replica == replica.replica]
        if workers:
            found.append(ReplicaReading.of(replica.replica, [_process_reading(worker) for worker in workers]))
    return DeviceReading(
        power_w=sample.power_w if known else None,
        replicas=tuple(found),
        power_capped=envelope.power_w_cap is not None and "power" in sample.throttle,
        stale=not sample.healthy,
        beside=any(_leaves(worker, envelope) for worker in sample.workers),
        coming_part=coming_part(
            _held(sample, WorkerState.STARTING), _held(sample, WorkerState.READY, WorkerState.DRAINING)
        ),
    )


def _held(sample: DeviceSample, *states: WorkerState) -> list[tuple[str, int]]:
    """Replicas and shares, %, of the workers in some states."""
    specs = [worker.reading.spec for worker in sample.workers if not worker.gone and worker.reading.state in states]
    return [(spec.replica, spec.share_pct_sm) for spec in specs]


def _leaves(worker: WorkerSample, envelope: DeviceEnvelope) -> bool:
    """Whether a worker works that is in no envelope, or that drains or ended since the last sample."""
    names = {replica.replica for replica in envelope.replicas}
    ready = worker.reading.state is WorkerState.READY and worker.reading.spec.replica not in names
    return worker.gone or ready or worker.reading.state is WorkerState.DRAINING


def _ready(sample: DeviceSample) -> list[WorkerSample]:
    return [worker for worker in sample.workers if not worker.gone and worker.reading.state is WorkerState.READY]


def _process_reading(worker: WorkerSample) -> ProcessReading:
    spec = worker.reading.spec
    return mirrored(
        ProcessReading,
        worker,
        batch=spec.batch,
        execution_ms=worker.execution_ms_mean,
        queue=worker.queue_length,
        execution_only=spec.latency_execution_only,
    )


def _replica_envelope(replica: ReplicaTarget) -> ReplicaEnvelope:
    movable = replica.kind != "job" and (replica.worker is None or replica.worker.batch_change == "live")
    low, high = (replica.batch_min, replica.batch_max) if movable else (replica.batch, replica.batch)
    if not low <= replica.batch <= high:
        low = high = replica.batch
    return ReplicaEnvelope(
        replica=replica.replica,
        batch_min=low,
        batch_max=high,
        latency_ms_limit=replica.latency_ms_limit,
        share_pct_sm=replica.share_pct_sm,
        execution_only=replica.latency_execution_only,
    )


def _planned(device: DeviceTarget, envelope: DeviceEnvelope) -> Setting:
    batches = {replica.replica: replica.batch for replica in device.replicas}
    clocks = envelope.clocks_mhz_sm
    return Setting(
        batches=tuple(batches[replica.replica] for replica in envelope.replicas),
        clock_mhz_sm=device.clock_mhz_sm or (clocks[-1] if clocks else 0),
    )


def _sentence(uuid: str, wanted: Repartition) -> str:
    if wanted.share_pct_sm:
        source = f"from {wanted.donor}" if wanted.donor else "from what is free"
        cure = f"{wanted.replica} needs about {wanted.share_pct_sm} % more share, {source}"
    else:
        cure = f"it should hold less, {wanted.replica or 'a replica'} first"
    last = "no knob is left" if wanted.exhausted else "still trying"
    return f"{uuid}: {wanted.cause.value} limit broken three periods in a row ({last}); {cure}"
