"""What a period's readings mean: whether enough is known, where power and latencies lie to their limits.

Owns the judgement that every controller shares, so that they differ in what they do about it and not in what they call
bad. It decides nothing and remembers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaVerdict,
    Setting,
)
from solvers.control.table import ReplicaWish, Zone, power_zone, zone


def unknown(envelope: DeviceEnvelope, reading: DeviceReading) -> str:
    """Why nothing may be decided; empty when enough is known."""
    if reading.stale:
        return "measurements are too old"
    if envelope.power_w_cap is not None and reading.power_w is None:
        return "power is not measured"
    return ""


def held(state: DeviceState, why: str) -> GovernorDecision:
    """A period in which nothing is decided."""
    return GovernorDecision(state=state, power=None, verdicts=(), clock=ReplicaWish.HOLD, bad=False, held=why)


def power_of(settings: GovernorSettings, envelope: DeviceEnvelope, reading: DeviceReading) -> Zone:
    """Zone of the device's power; without a cap it is always low."""
    if reading.power_capped:
        return Zone.HIGH
    if envelope.power_w_cap is None or reading.power_w is None:
        return Zone.LOW
    return power_zone(reading.power_w, envelope.power_w_cap, settings.power_low_part)


def latency_of(settings: GovernorSettings, replica: ReplicaEnvelope, reading: ReplicaReading | None) -> Zone | None:
    """Zone of a replica's latency; None when nothing was measured that could be judged."""
    if reading is None or (reading.latency_ms is None and replica.latency_ms_limit is not None):
        return None
    if replica.latency_ms_limit is None or reading.latency_ms is None:
        return Zone.LOW
    return zone(reading.latency_ms, replica.latency_ms_limit, settings.latency_low_part)


def readings_of(envelope: DeviceEnvelope, reading: DeviceReading) -> tuple[ReplicaReading | None, ...]:
    """Readings in the order of the envelope's replicas."""
    measured = {replica.replica: replica for replica in reading.replicas}
    return tuple(measured.get(replica.replica) for replica in envelope.replicas)


def is_bad(power: Zone, verdicts: Sequence[ReplicaVerdict]) -> bool:
    """Whether power or any latency is above its limit."""
    return power is Zone.HIGH or any(verdict.latency is Zone.HIGH for verdict in verdicts)


def settled(settings: GovernorSettings, state: DeviceState) -> bool:
    """Whether measurements show the last change."""
    return state.changed_period is None or state.period - state.changed_period >= settings.settle_periods


def inside(envelope: DeviceEnvelope, setting: Setting) -> Setting:
    """A setting brought into the envelope."""
    batches = tuple(
        min(max(batch, replica.batch_min), replica.batch_max)
        for batch, replica in zip(setting.batches, envelope.replicas, strict=True)
    )
    clocks, clock = envelope.clocks_mhz_sm, setting.clock_mhz_sm
    if clocks and clock not in clocks:
        clock = max((each for each in clocks if each <= clock), default=clocks[0])
    return Setting(batches=batches, clock_mhz_sm=clock)
