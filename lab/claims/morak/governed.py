"""One device under a controller and full load, period after period: what Morak's own evaluation measures.

Owns that loop: every replica always has a full batch waiting, the device settles under the setting that is held, the
controller reads the period's answer times and peak power, each with noise of the measurement, and its decision holds
from the next period on. The board's own power limit is not the cap: who does not look at the cap exceeds it. What the
truth says of a setting is worked out once. It refuses to place, and to move shares; it tells when it was asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.control.controllers import Controller
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    ReplicaEnvelope,
    ReplicaReading,
    Setting,
)
from solvers.sim.truth.device import DeviceLoad, Tenant, settle
from solvers.sim.truth.truth import GpuTruth

SATURATING_RPS = 1e9
"""More than anything can serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedPart:
    """A replica: its model, its part of the device, and between what its batch may move."""

    model: str
    share_pct_sm: int
    batch_max: int
    batch_min: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedLimits:
    """What shall be kept: the device's peak power, and the time of the answers to everybody's batches."""

    power_w_cap: float
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedDevice:
    """A device, what is on it, and what shall be kept. `clocks_mhz_sm`: what the controller may lock, rising."""

    gpu: GpuTruth
    parts: tuple[GovernedPart, ...]
    limits: GovernedLimits
    clocks_mhz_sm: tuple[int, ...]

    @property
    def envelope(self) -> DeviceEnvelope:
        """All batches of the parts, all these clocks."""
        return DeviceEnvelope(
            uuid=self.gpu.name,
            power_w_cap=self.limits.power_w_cap,
            clocks_mhz_sm=self.clocks_mhz_sm,
            replicas=tuple(
                ReplicaEnvelope(
                    replica=f"{part.model}-{position}",
                    batch_min=part.batch_min,
                    batch_max=part.batch_max,
                    latency_ms_limit=self.limits.latency_ms,
                    share_pct_sm=part.share_pct_sm,
                    execution_only=True,
                )
                for position, part in enumerate(self.parts)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedCourse:
    """How long and how noisily: relative standard deviations of a period's latency and peak power."""

    periods: int
    seed: int
    latency_noise: float = 0.01
    power_noise: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One period as it was, in the order of the parts."""

    setting: Setting
    power_w: float
    latency_ms: tuple[float, ...]
    rate_rps: tuple[float, ...]
    repartition: bool

    def keeps(self, limits: GovernedLimits) -> bool:
        """Whether power and every latency were within their limits."""
        return self.power_w <= limits.power_w_cap and max(self.latency_ms) <= limits.latency_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedRun:
    """What a controller did, and where it stands."""

    periods: tuple[Period, ...]
    state: DeviceState


def govern(
    device: GovernedDevice, loop: Controller, start: Setting | DeviceState, course: GovernedCourse
) -> GovernedRun:
    """Let a controller run, from a setting or on from where it stood. What a period shows was held in it; the
    controller's answer holds in the next.
    """
    envelope, drawn = device.envelope, np.random.default_rng(course.seed)
    begun = loop.first(envelope, start) if isinstance(start, Setting) else loop.fitted(envelope, start, start.setting)
    state, periods = begun, list[Period]()
    known: dict[Setting, _HeldSetting] = {}
    for _ in range(course.periods):
        setting = state.setting
        if setting not in known:
            known[setting] = _settled(device, setting)
        held = known[setting]
        noise = drawn.standard_normal(len(held.answer_ms) + 1)
        latencies = tuple(
            float(mean * max(0.5, 1.0 + course.latency_noise * each))
            for mean, each in zip(held.answer_ms, noise, strict=False)
        )
        seen_w = float(held.power_w * max(0.5, 1.0 + course.power_noise * noise[-1]))
        readings = tuple(
            ReplicaReading(replica=replica.replica, latency_ms=latency)
            for replica, latency in zip(envelope.replicas, latencies, strict=True)
        )
        decision = loop.step(envelope, state, DeviceReading(power_w=seen_w, replicas=readings))
        rates = tuple(1000.0 * batch / cycle for batch, cycle in zip(setting.batches, held.cycle_ms, strict=True))
        periods.append(
            Period(
                setting=setting,
                power_w=seen_w,
                latency_ms=latencies,
                rate_rps=rates,
                repartition=decision.repartition is not None,
            )
        )
        state = decision.state
    return GovernedRun(periods=tuple(periods), state=state)


def alone_ms(gpu: GpuTruth, part: GovernedPart) -> float:
    """Milliseconds of a part's largest batch with the device to itself at its highest clock: a point of a profile."""
    tenant = Tenant(model=part.model, share_pct_sm=part.share_pct_sm, batch=part.batch_max, rate_rps=SATURATING_RPS)
    load = DeviceLoad(gpu=gpu, clock_mhz_sm=gpu.clock_mhz_sm_max, power_limit_w=2.0 * gpu.tdp_w, tenants=(tenant,))
    return settle(load).exec_ms[0][-1]


@dataclass(frozen=True, slots=True)
class _HeldSetting:
    """A setting: milliseconds from one of everybody's full batches to the next, of the answers to them, and watts."""

    cycle_ms: tuple[float, ...]
    answer_ms: tuple[float, ...]
    power_w: float


def _settled(device: GovernedDevice, setting: Setting) -> _HeldSetting:
    tenants = tuple(
        Tenant(model=part.model, share_pct_sm=part.share_pct_sm, batch=batch, rate_rps=SATURATING_RPS)
        for part, batch in zip(device.parts, setting.batches, strict=True)
    )
    load = DeviceLoad(
        gpu=device.gpu, clock_mhz_sm=setting.clock_mhz_sm, power_limit_w=device.gpu.tdp_w, tenants=tenants
    )
    found = settle(load)
    cycle_ms = tuple(table[-1] for table in found.exec_ms)
    answer_ms = tuple(cycle + shift for cycle, shift in zip(cycle_ms, found.answer_shift_ms, strict=True))
    return _HeldSetting(cycle_ms=cycle_ms, answer_ms=answer_ms, power_w=found.power_w)
