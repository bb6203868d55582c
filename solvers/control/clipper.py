"""Clipper's adaptive batching: additive increase, multiplicative decrease, the clock at its highest.

Owns one controller that looks at one limit alone. By latency it is the published one: each replica's own latency to its
own limit. By power it is the variant that Morak was compared with: the device's peak power to its cap, all replicas
alike. Neither looks at the other limit, moves the clock or asks for another partition. The increase never ends, so
limits are overstepped for a period again and again; that is the published rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.control.governor import first_state, fitted, moved, next_period
from solvers.control.judging import held, is_bad, latency_of, power_of, readings_of, settled, unknown
from solvers.control.knobs import batch_below
from solvers.control.records import (
    BrokenLimit,
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaReading,
    ReplicaVerdict,
    Setting,
)
from solvers.control.table import ReplicaWish, Zone

BATCH_STEP = 1
"""By how much a batch grows each period. It falls by `Settings.batch_step_part`, the published tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipper:
    """Batches follow one limit, named by what breaking it is called."""

    by: BrokenLimit
    settings: GovernorSettings
    batch_step: int = BATCH_STEP

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the planned batches at the highest clock."""
        return first_state(envelope, _at_highest_clock(envelope, planned))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope, again at its highest clock."""
        found = fitted(envelope, state, planned)
        return replace(found, setting=_at_highest_clock(envelope, found.setting))

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period."""
        state, why = next_period(state), unknown(envelope, reading)
        if why:
            return held(state, why)
        power, readings = power_of(self.settings, envelope, reading), readings_of(envelope, reading)
        verdicts = tuple(
            self._verdict(replica.replica, power, latency=latency_of(self.settings, replica, found), reading=found)
            for replica, found in zip(envelope.replicas, readings, strict=True)
        )
        setting = replace(state.setting, batches=self._batches(envelope, state, verdicts))
        bad = is_bad(power, verdicts)
        return GovernorDecision(
            state=moved(state, setting), power=power, verdicts=verdicts, clock=ReplicaWish.HOLD, bad=bad
        )

    def _verdict(
        self, replica: str, power: Zone, *, latency: Zone | None, reading: ReplicaReading | None
    ) -> ReplicaVerdict:
        """A replica's wish; a batch that does not fill says nothing about larger ones."""
        watched = latency if self.by is BrokenLimit.LATENCY else power
        wish = ReplicaWish.HOLD
        if watched is Zone.HIGH:
            wish = ReplicaWish.BATCH_DOWN
        elif watched is not None and reading is not None and reading.filled:
            wish = ReplicaWish.BATCH_UP
        return ReplicaVerdict(replica=replica, latency=latency, wish=wish)

    def _batches(
        self, envelope: DeviceEnvelope, state: DeviceState, verdicts: tuple[ReplicaVerdict, ...]
    ) -> tuple[int, ...]:
        batches, may_grow = list(state.setting.batches), settled(self.settings, state)
        for position, verdict in enumerate(verdicts):
            replica, batch = envelope.replicas[position], batches[position]
            if verdict.wish is ReplicaWish.BATCH_DOWN:
                batches[position] = batch_below(batch, replica.batch_min, self.settings.batch_step_part)
            elif verdict.wish is ReplicaWish.BATCH_UP and may_grow:
                batches[position] = min(replica.batch_max, batch + self.batch_step)
        return tuple(batches)


def _at_highest_clock(envelope: DeviceEnvelope, setting: Setting) -> Setting:
    clocks = envelope.clocks_mhz_sm
    return replace(setting, clock_mhz_sm=clocks[-1]) if clocks else setting
