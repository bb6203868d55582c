"""Morak's loop for one device: each period, from power and latencies to batches and at most one change of the clock.

Here are its decision table (what a replica wishes in each state of power and latency), the order of a period (zones,
wishes, votes, steps), the count of bad periods and the memory of what did not work. Pure: state in, decision out; agent
and simulator run this very code. It never leaves an envelope, holds when it was not told enough, and asks for a
repartition when three periods in a row were bad. What raising broke a limit is remembered for a while, and dearer
settings are not tried in that time: without this, steps coarser than the dead band would hunt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from solvers.control.judging import (
    batch_well_below,
    batches_above,
    clock_below,
    clocks_above,
    first_state,
    fitted,
    forbidden,
    held,
    is_bad,
    latency_of,
    moved,
    next_period,
    power_of,
    readings_of,
    settled,
    unknown,
)
from solvers.control.records import (
    BARRIERS_MAX,
    Barrier,
    BrokenLimit,
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    Repartition,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaVerdict,
    ReplicaWish,
    Setting,
    Zone,
)

ABOVE_PER_STEP, STEPS_MOST = 0.25, 3
"""Of the cap: so much too much is made room for by one step of the clock. So many there are in one period."""
POWER_OVER_CLOCK = 1.5
"""Exponent with which a board's watts rise, near its cap, with its clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Which knobs have reached an end: the batch its floor or ceiling, the clock its lowest or highest."""

    batch_lowest: bool
    batch_highest: bool
    clock_lowest: bool
    clock_highest: bool

    def blocks(self, wish: ReplicaWish) -> bool:
        """Whether a wish cannot be granted because its knob is at its end."""
        return {
            ReplicaWish.HOLD: False,
            ReplicaWish.BATCH_UP: self.batch_highest,
            ReplicaWish.BATCH_DOWN: self.batch_lowest,
            ReplicaWish.CLOCK_UP: self.clock_highest,
            ReplicaWish.CLOCK_DOWN: self.clock_lowest,
        }[wish]


TABLE: Mapping[tuple[Zone, Zone], tuple[ReplicaWish, ...]] = MappingProxyType(
    {
        (Zone.LOW, Zone.LOW): (ReplicaWish.BATCH_UP, ReplicaWish.CLOCK_UP),
        (Zone.LOW, Zone.BAND): (ReplicaWish.CLOCK_UP,),
        (Zone.LOW, Zone.HIGH): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_UP),
        (Zone.BAND, Zone.LOW): (),
        (Zone.BAND, Zone.BAND): (),
        (Zone.BAND, Zone.HIGH): (ReplicaWish.BATCH_DOWN,),
        (Zone.HIGH, Zone.LOW): (ReplicaWish.CLOCK_DOWN, ReplicaWish.BATCH_DOWN),
        (Zone.HIGH, Zone.BAND): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_DOWN),
        (Zone.HIGH, Zone.HIGH): (ReplicaWish.BATCH_DOWN, ReplicaWish.CLOCK_DOWN),
    }
)
"""(power, latency) to wishes in order of preference. An empty row holds: the interval left for the steady state."""


def wish_of(power: Zone, latency: Zone, ends: Ends) -> ReplicaWish:
    """The first wish of the row whose knob can still move; HOLD when there is none."""
    return next((wish for wish in TABLE[power, latency] if not ends.blocks(wish)), ReplicaWish.HOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakGovernor:
    """The loop as a controller."""

    settings: GovernorSettings

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the planned batches at the start clock where clocks are open; never above the planned one."""
        above = (clock for clock in envelope.clocks_mhz_sm if clock >= self.settings.clock_mhz_start)
        begun = min(next(above, planned.clock_mhz_sm), planned.clock_mhz_sm)
        return first_state(envelope, replace(planned, clock_mhz_sm=begun))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        return fitted(envelope, state, planned)

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        state, why = next_period(state), unknown(envelope, reading)
        if why:
            return held(state, why)
        power = power_of(self.settings, envelope, reading)
        verdicts = tuple(
            self._verdict(envelope, state, position, measured, power)
            for position, measured in enumerate(readings_of(envelope, reading))
        )
        late = any(verdict.latency is Zone.HIGH for verdict in verdicts)
        blamed = late and (state.raised_period is not None or _setting_is_late(envelope, verdicts))
        if reading.beside:
            state = replace(state, raised_period=None)
        else:
            state = _remember(self.settings, state, power, late=blamed)
        bad = is_bad(power, verdicts)
        turn = _Turn(settings=self.settings, envelope=envelope, state=state, verdicts=verdicts, reading=reading)
        setting, clock = turn.moved()
        count = state.bad_periods + 1 if bad else 0
        # The period that fills the count asks for a repartition and begins a new count.
        asks = count >= self.settings.bad_periods_max
        return GovernorDecision(
            state=moved(replace(state, bad_periods=0 if asks else count), setting),
            power=power,
            verdicts=verdicts,
            clock=clock,
            bad=bad,
            repartition=turn.repartition() if asks else None,
        )

    def _verdict(
        self, envelope: DeviceEnvelope, state: DeviceState, position: int, reading: ReplicaReading | None, power: Zone
    ) -> ReplicaVerdict:
        """The zone and wish of the replica at a position, under the device's power zone."""
        replica = envelope.replicas[position]
        latency = latency_of(self.settings, replica, reading)
        if reading is None or latency is None:
            return ReplicaVerdict(replica=replica.replica, latency=None, wish=ReplicaWish.HOLD)
        ends = self._ends(envelope, state, position, filled=reading.filled)
        return ReplicaVerdict(replica=replica.replica, latency=latency, wish=wish_of(power, latency, ends))

    def _ends(self, envelope: DeviceEnvelope, state: DeviceState, position: int, *, filled: bool) -> Ends:
        """Which knobs are at an end for the replica at a position. A batch is at its ceiling also when it does not
        fill, or when experience forbids every larger one.
        """
        replica, setting = envelope.replicas[position], state.setting
        batch, clocks = setting.batches[position], envelope.clocks_mhz_sm
        larger = batches_above(batch, replica.batch_max, self.settings.batch_step_part) if filled else ()
        movable = len(clocks) > 1
        return Ends(
            batch_lowest=batch <= replica.batch_min,
            batch_highest=all(forbidden(state, _with_batch(setting, position, each)) for each in larger),
            clock_lowest=not movable or setting.clock_mhz_sm <= clocks[0],
            clock_highest=not movable or setting.clock_mhz_sm >= clocks[-1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One period's judgement, turned into a new setting."""

    settings: GovernorSettings
    envelope: DeviceEnvelope
    state: DeviceState
    verdicts: tuple[ReplicaVerdict, ...]
    reading: DeviceReading

    def moved(self) -> tuple[Setting, ReplicaWish]:
        """The setting after this period: reductions first, then batches, then the clock."""
        setting = self._reduced()
        table, step_mhz = self.envelope.clocks_mhz_sm, self.settings.clock_step_mhz
        for_more = self._steps_for_more()
        if for_more or any(verdict.wish is ReplicaWish.CLOCK_DOWN for verdict in self.verdicts):
            lower = clock_below(setting.clock_mhz_sm, table, step_mhz * max(1, for_more))
            return replace(setting, clock_mhz_sm=lower), ReplicaWish.CLOCK_DOWN
        if not settled(self.settings, self.state):
            return setting, ReplicaWish.HOLD
        setting = self._grown(setting)
        if not self._clock_up_agreed():
            return setting, ReplicaWish.HOLD
        for clock in clocks_above(setting.clock_mhz_sm, table, step_mhz):
            wanted = replace(setting, clock_mhz_sm=clock)
            if self._keeps_cap(clock) and not forbidden(self.state, wanted):
                return wanted, ReplicaWish.CLOCK_UP
        return setting, ReplicaWish.HOLD

    def _reduced(self) -> Setting:
        batches = list(self.state.setting.batches)
        for position, verdict in enumerate(self.verdicts):
            if verdict.wish is ReplicaWish.BATCH_DOWN:
                lowest = self.envelope.replicas[position].batch_min
                batches[position] = batch_well_below(batches[position], lowest, self.settings.batch_step_part)
        return replace(self.state.setting, batches=tuple(batches))

    def _grown(self, setting: Setting) -> Setting:
        """Let batches grow, each as far as its step and experience allow; nobody grows beside one that is late, or into
        the watts of one that does not serve yet.
        """
        if self._awaits() or any(verdict.latency is Zone.HIGH for verdict in self.verdicts):
            return setting
        part = self.settings.batch_step_part
        for position, verdict in enumerate(self.verdicts):
            if verdict.wish is ReplicaWish.BATCH_UP:
                larger = batches_above(setting.batches[position], self.envelope.replicas[position].batch_max, part)
                wanted = (_with_batch(setting, position, batch) for batch in larger)
                setting = next((each for each in wanted if not forbidden(self.state, each)), setting)
        return setting

    def _clock_up_agreed(self) -> bool:
        """One clock, many replicas. Who breaks its limit with its smallest batch has nothing left but the clock and
        outranks those that would only grow; else everybody who still could grow must agree, and nobody may be awaited
        or lately have changed beside who leaves.
        """
        late = [verdict for verdict in self.verdicts if verdict.latency is Zone.HIGH]
        if late:
            return all(verdict.wish is ReplicaWish.CLOCK_UP for verdict in late)
        if self._awaits() or self._waits_for_who_leaves():
            return False
        voting = [verdict for verdict in self.verdicts if verdict.latency is not None]
        return bool(voting) and all(verdict.wish is ReplicaWish.CLOCK_UP for verdict in voting)

    def _awaits(self) -> bool:
        """Whether somebody planned here does not serve yet, under a cap that it will draw from."""
        return self.envelope.power_w_cap is not None and None in readings_of(self.envelope, self.reading)

    def _waits_for_who_leaves(self) -> bool:
        """Whether somebody who leaves still draws from the cap, and something changed lately: what is above the cap
        meanwhile is not remembered, so a clock that rises as ever would break it again and again.
        """
        beside = self.envelope.power_w_cap is not None and self.reading.beside
        changed = self.state.changed_period
        return beside and changed is not None and self.state.period - changed < self.settings.beside_periods

    def _steps_for_more(self) -> int:
        """By how many steps the clock has to fall for those who start beside those who leave, before they draw, where
        only the clock holds the cap: one for each quarter by which today's watts for each share would be above it.
        Nobody may come near a latency limit for it, and none is needed below the clock that all begin at.
        """
        cap_w, power_w, part = self.envelope.power_w_cap, self.reading.power_w, self.reading.coming_part
        alone = not (part and self.reading.beside) or self.envelope.cap_held
        if alone or cap_w is None or power_w is None or len(self.envelope.clocks_mhz_sm) < 2:
            return 0
        wanted = math.ceil((power_w * (1.0 + part) / cap_w - 1.0) / ABOVE_PER_STEP)
        return next((steps for steps in range(min(wanted, STEPS_MOST), 0, -1) if self._bears(steps)), 0)

    def _bears(self, steps: int) -> bool:
        """Whether so many steps down leave everybody below what is near a latency limit."""
        held_mhz = self.state.setting.clock_mhz_sm
        lower_mhz = clock_below(held_mhz, self.envelope.clocks_mhz_sm, steps * self.settings.clock_step_mhz)
        measured = {replica.replica: replica.latency_ms for replica in self.reading.replicas}
        strain = max(
            (_strain(replica, measured.get(replica.replica)) for replica in self.envelope.replicas), default=0.0
        )
        near = strain * held_mhz / lower_mhz >= self.settings.latency_low_part
        return self.settings.clock_mhz_start <= lower_mhz < held_mhz and not near

    def _keeps_cap(self, clock_mhz: int) -> bool:
        """Whether a higher clock keeps the cap by what boards draw for it; the least step may always be tried."""
        cap_w, power_w, held_mhz = self.envelope.power_w_cap, self.reading.power_w, self.state.setting.clock_mhz_sm
        above = next(clock for clock in self.envelope.clocks_mhz_sm if clock > held_mhz)
        if cap_w is None or power_w is None or clock_mhz <= above:
            return True
        return power_w * math.pow(clock_mhz / held_mhz, POWER_OVER_CLOCK) <= cap_w

    def repartition(self) -> Repartition:
        """What would help: share for the replica that is furthest beyond its limit, or one replica less."""
        measured = {replica.replica: replica.latency_ms for replica in self.reading.replicas}
        replicas, extra = self.envelope.replicas, self.settings.share_pct_sm_step
        strain = {replica.replica: _strain(replica, measured.get(replica.replica)) for replica in replicas}
        worst = max(strain, key=lambda name: (strain[name], name), default="")
        if all(verdict.latency is not Zone.HIGH for verdict in self.verdicts):
            exhausted = self._lowest(worst, clock=True)
            return Repartition(cause=BrokenLimit.POWER, replica=worst, donor=None, share_pct_sm=0, exhausted=exhausted)
        free = 100 - sum(replica.share_pct_sm for replica in replicas)
        donor = None if free >= extra else _donor(replicas, strain, worst=worst, extra=extra)
        exhausted = self._lowest(worst, clock=False)
        return Repartition(
            cause=BrokenLimit.LATENCY, replica=worst, donor=donor, share_pct_sm=extra, exhausted=exhausted
        )

    def _lowest(self, replica: str, *, clock: bool) -> bool:
        """Whether no batch (of one replica, or with the clock of all) can fall any more."""
        setting, clocks = self.state.setting, self.envelope.clocks_mhz_sm
        if clock and len(clocks) > 1 and setting.clock_mhz_sm > clocks[0]:
            return False
        return all(
            batch <= each.batch_min
            for batch, each in zip(setting.batches, self.envelope.replicas, strict=True)
            if clock or each.replica == replica
        )


def _with_batch(setting: Setting, position: int, batch: int) -> Setting:
    batches = (*setting.batches[:position], batch, *setting.batches[position + 1 :])
    return replace(setting, batches=batches)


def _setting_is_late(envelope: DeviceEnvelope, verdicts: Sequence[ReplicaVerdict]) -> bool:
    """Whether somebody is late by execution alone."""
    return any(
        replica.execution_only and verdict.latency is Zone.HIGH
        for replica, verdict in zip(envelope.replicas, verdicts, strict=True)
    )


def _remember(settings: GovernorSettings, state: DeviceState, power: Zone, *, late: bool) -> DeviceState:
    """Learn what breaks a limit. Power above the cap is the setting's doing whenever it shows, because measurements
    scatter and a setting just below the cap breaks it now and then. Latencies also rise with load: `late` is told when
    they were broken right after a raise, or count execution alone.
    """
    raised = state.raised_period
    until = state.period + settings.barrier_periods
    causes = [BrokenLimit.POWER] * (power is Zone.HIGH) + [BrokenLimit.LATENCY] * late
    learned = tuple(Barrier(setting=state.setting, cause=cause, until_period=until) for cause in causes)
    kept = tuple(
        old for old in state.barriers if not any(new.cause is old.cause and new.forbids(old.setting) for new in learned)
    )
    proved = raised is None or bool(causes) or state.period - raised >= settings.settle_periods
    return replace(state, barriers=(*kept, *learned)[-BARRIERS_MAX:], raised_period=None if proved else raised)


def _strain(replica: ReplicaEnvelope, latency_ms: float | None) -> float:
    """How much of its latency limit a replica uses up."""
    if latency_ms is None or replica.latency_ms_limit is None:
        return 0.0
    return latency_ms / replica.latency_ms_limit


def _donor(replicas: Sequence[ReplicaEnvelope], strain: dict[str, float], *, worst: str, extra: int) -> str | None:
    """Who has the most slack, and more share than the extra that the worst is to be given."""
    able = [
        each for each in replicas if each.replica != worst and each.share_pct_sm > extra and strain[each.replica] < 1
    ]
    return min(able, key=lambda each: (strain[each.replica], each.replica)).replica if able else None
