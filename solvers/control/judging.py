"""What controllers share: the judgement of a period's readings, the steps of a knob, how a state goes on.

So they differ in what they do about a period and not in what they call bad. Clocks are always values of the
table that is given; a step that leaves the range ends at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil

from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaVerdict,
    ReplicaWish,
    Setting,
    Zone,
)


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
    measured = {replica.replica: replica for replica in reading.replicas}
    return tuple(measured.get(replica.replica) for replica in envelope.replicas)


def is_bad(power: Zone, verdicts: Sequence[ReplicaVerdict]) -> bool:
    """Whether power or any latency is above its limit."""
    return power is Zone.HIGH or any(verdict.latency is Zone.HIGH for verdict in verdicts)


def coming_part(starting: Sequence[tuple[str, int]], working: Sequence[tuple[str, int]]) -> float:
    """Of replicas and shares, %: what those who start add, as a part of what works. Who is replaced goes."""
    held: dict[str, int] = {}
    for replica, share_pct_sm in working:
        held[replica] = held.get(replica, 0) + share_pct_sm
    added = sum(max(0, share_pct_sm - held.get(replica, 0)) for replica, share_pct_sm in starting)
    return added / sum(held.values()) if added and any(held.values()) else 0.0


def settled(settings: GovernorSettings, state: DeviceState) -> bool:
    """Whether measurements show the last change."""
    return state.changed_period is None or state.period - state.changed_period >= settings.settle_periods


def inside(envelope: DeviceEnvelope, setting: Setting) -> Setting:
    batches = tuple(
        min(max(batch, replica.batch_min), replica.batch_max)
        for batch, replica in zip(setting.batches, envelope.replicas, strict=True)
    )
    clocks, clock = envelope.clocks_mhz_sm, setting.clock_mhz_sm
    if clocks and clock not in clocks:
        clock = max((each for each in clocks if each <= clock), default=clocks[0])
    return Setting(batches=batches, clock_mhz_sm=clock)


def zone(measured: float, limit: float, low_part: float) -> Zone:
    """Zone of a measurement: low below `low_part` of the limit, high above the limit. Both ends belong to the band."""
    if measured > limit:
        return Zone.HIGH
    return Zone.LOW if measured < low_part * limit else Zone.BAND


def power_zone(measured_w: float, cap_w: float, low_part: float) -> Zone:
    """Zone of power. Its lower end still counts as low: there is room for one more step."""
    if measured_w > cap_w:
        return Zone.HIGH
    return Zone.LOW if measured_w <= low_part * cap_w else Zone.BAND


def first_state(envelope: DeviceEnvelope, setting: Setting) -> DeviceState:
    """Begin with a setting, brought into the envelope. Its batches are in the order of the envelope's replicas."""
    names = tuple(replica.replica for replica in envelope.replicas)
    return DeviceState(uuid=envelope.uuid, replicas=names, setting=inside(envelope, setting))


def fitted(envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
    """A state under a new envelope: batches that left it, or are new, are as planned; the rest stays. A clock that left
    it is the nearest one, no higher than planned: what it kept to, a cap or a latency, was measured. Old experience is
    dropped and bad periods are counted anew.
    """
    batches = []
    for replica, batch_planned in zip(envelope.replicas, planned.batches, strict=True):
        held = state.batch(replica.replica) if replica.replica in state.replicas else None
        stays = held is not None and replica.batch_min <= held <= replica.batch_max
        batches.append(held if held is not None and stays else batch_planned)
    clock, clocks = state.setting.clock_mhz_sm, envelope.clocks_mhz_sm
    if clock not in clocks:
        clock = min(planned.clock_mhz_sm, max(clock, clocks[0])) if clocks else planned.clock_mhz_sm
    begun = first_state(envelope, Setting(batches=tuple(batches), clock_mhz_sm=clock))
    return replace(begun, period=state.period)


def next_period(state: DeviceState) -> DeviceState:
    """The state one period later, without experience that is too old."""
    period = state.period + 1
    barriers = tuple(barrier for barrier in state.barriers if barrier.until_period > period)
    return replace(state, period=period, barriers=barriers)


def moved(state: DeviceState, setting: Setting) -> DeviceState:
    if setting == state.setting:
        return state
    before = state.setting
    higher = setting.clock_mhz_sm > before.clock_mhz_sm or any(
        new > old for new, old in zip(setting.batches, before.batches, strict=True)
    )
    return replace(state, setting=setting, changed_period=state.period, raised_period=state.period if higher else None)


def forbidden(state: DeviceState, wanted: Setting) -> bool:
    return any(barrier.forbids(wanted) for barrier in state.barriers)


def batch_step(batch: int, part: float) -> int:
    """By how much a batch changes: a part of itself, one at least."""
    return max(1, int(part * batch))


def batches_above(batch: int, highest: int, part: float) -> tuple[int, ...]:
    """Larger batches to try, the full step first, then halves of it."""
    return (
        tuple(dict.fromkeys(min(highest, batch + step) for step in _halves(batch_step(batch, part))))
        if (batch < highest)
        else ()
    )


def batch_below(batch: int, lowest: int, part: float) -> int:
    return max(lowest, batch - batch_step(batch, part))


def batch_well_below(batch: int, lowest: int, part: float) -> int:
    """The same with the step rounded up, so that small batches fall as quickly as large ones."""
    return max(lowest, batch - max(1, ceil(part * batch)))


def clocks_above(clock_mhz: int, table_mhz: Sequence[int], step_mhz: int) -> tuple[int, ...]:
    """Higher clocks to try, the full step first, then halves of it."""
    above = [each for each in table_mhz if each > clock_mhz]
    if not above:
        return ()
    nearest = [_nearest(above, clock_mhz + step) for step in _halves(step_mhz)]
    return tuple(dict.fromkeys([*nearest, above[0]]))


def clock_below(clock_mhz: int, table_mhz: Sequence[int], step_mhz: int) -> int:
    """The next lower clock; the lowest stays."""
    below = list(takewhile(lambda each: each < clock_mhz, table_mhz))
    return _nearest(below, clock_mhz - step_mhz) if below else clock_mhz


def _nearest(clocks_mhz: Sequence[int], wanted_mhz: int) -> int:
    """The clock nearest to the wanted one, the lower of two."""
    return min(clocks_mhz, key=lambda each: (abs(each - wanted_mhz), each))


def _halves(step: int) -> tuple[int, ...]:
    steps = []
    while step >= 1:
        steps.append(step)
        step //= 2
    return tuple(steps)
