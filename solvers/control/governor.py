"""Morak's loop for one device: each period, from power and latencies to batches and at most one change of the clock.

Owns the order of a period (zones, wishes, votes, steps), the count of bad periods and the memory of what did not work.
Pure: state in, decision out; agent and simulator run this very code. It never leaves an envelope, holds when it was not
told enough, and asks for a repartition when three periods in a row were bad. What raising broke a limit is remembered
for a while, and dearer settings are not tried in that time: without this, steps coarser than the dead band would hunt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solvers.control.judging import held, inside, is_bad, latency_of, power_of, readings_of, settled, unknown
from solvers.control.knobs import batch_well_below, batches_above, clock_below, clocks_above
from solvers.control.records import (
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
    Setting,
)
from solvers.control.table import Ends, ReplicaWish, Zone, wish_of

BARRIERS_MAX = 16
"""Remembered per device; the oldest are forgotten first."""


def first_state(envelope: DeviceEnvelope, setting: Setting) -> DeviceState:
    """Begin with a setting, brought into the envelope. Its batches are in the order of the envelope's replicas."""
    names = tuple(replica.replica for replica in envelope.replicas)
    return DeviceState(uuid=envelope.uuid, replicas=names, setting=inside(envelope, setting))


def fitted(envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
    """A state under a new envelope: what left it, or is new, is as planned; the rest stays. Old experience is dropped
    and bad periods are counted anew.
    """
    batches = []
    for replica, batch_planned in zip(envelope.replicas, planned.batches, strict=True):
        held = state.batch(replica.replica) if replica.replica in state.replicas else None
        inside = held is not None and replica.batch_min <= held <= replica.batch_max
        batches.append(held if held is not None and inside else batch_planned)
    clock = state.setting.clock_mhz_sm
    clock = clock if clock in envelope.clocks_mhz_sm else planned.clock_mhz_sm
    begun = first_state(envelope, Setting(batches=tuple(batches), clock_mhz_sm=clock))
    return replace(begun, period=state.period)


def next_period(state: DeviceState) -> DeviceState:
    """The state one period later, without experience that is too old."""
    period = state.period + 1
    barriers = tuple(barrier for barrier in state.barriers if barrier.until_period > period)
    return replace(state, period=period, barriers=barriers)


def step(
    settings: GovernorSettings, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading
) -> GovernorDecision:
    """Decide one period. `state` must be of this envelope: from `first_state`, `fitted` or an earlier decision."""
    state = next_period(state)
    why = unknown(envelope, reading)
    if why:
        return held(state, why)
    power = power_of(settings, envelope, reading)
    verdicts = tuple(
        _verdict(settings, envelope, state, position=position, reading=measured, power=power)
        for position, measured in enumerate(readings_of(envelope, reading))
    )
    late = any(verdict.latency is Zone.HIGH for verdict in verdicts)
    bad = is_bad(power, verdicts)
    blamed = late and (state.raised_period is not None or _setting_is_late(envelope, verdicts))
    state = _remember(settings, state, power, late=blamed)
    turn = _Turn(settings=settings, envelope=envelope, state=state, verdicts=verdicts, reading=reading)
    setting, clock = turn.moved()
    state, repartition = _count_bad(settings, turn, bad=bad)
    return GovernorDecision(
        state=moved(state, setting),
        power=power,
        verdicts=verdicts,
        clock=clock,
        bad=bad,
        repartition=repartition,
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
        down = any(verdict.wish is ReplicaWish.CLOCK_DOWN for verdict in self.verdicts)
        if down:
            lower = clock_below(setting.clock_mhz_sm, self.envelope.clocks_mhz_sm, self.settings.clock_step_mhz)
            return replace(setting, clock_mhz_sm=lower), ReplicaWish.CLOCK_DOWN
        if not settled(self.settings, self.state):
            return setting, ReplicaWish.HOLD
        setting = self._grown(setting)
        if not self._clock_up_agreed():
            return setting, ReplicaWish.HOLD
        table, step_mhz = self.envelope.clocks_mhz_sm, self.settings.clock_step_mhz
        for clock in clocks_above(setting.clock_mhz_sm, table, step_mhz):
            wanted = replace(setting, clock_mhz_sm=clock)
            if not self._forbidden(wanted):
                return wanted, ReplicaWish.CLOCK_UP
        return setting, ReplicaWish.HOLD

    def lowest(self, replica: str, *, clock: bool) -> bool:
        """Whether no batch (of one replica, or with the clock of all) can fall any more."""
        setting, clocks = self.state.setting, self.envelope.clocks_mhz_sm
        if clock and len(clocks) > 1 and setting.clock_mhz_sm > clocks[0]:
            return False
        return all(
            batch <= each.batch_min
            for batch, each in zip(setting.batches, self.envelope.replicas, strict=True)
            if clock or each.replica == replica
        )

    def _reduced(self) -> Setting:
        batches = list(self.state.setting.batches)
        for position, verdict in enumerate(self.verdicts):
            if verdict.wish is ReplicaWish.BATCH_DOWN:
                lowest = self.envelope.replicas[position].batch_min
                batches[position] = batch_well_below(batches[position], lowest, self.settings.batch_step_part)
        return replace(self.state.setting, batches=tuple(batches))

    def _grown(self, setting: Setting) -> Setting:
        """Let batches grow, each as far as its step and experience allow; nobody grows beside one that is late."""
        if any(verdict.latency is Zone.HIGH for verdict in self.verdicts):
            return setting
        for position, verdict in enumerate(self.verdicts):
            if verdict.wish is ReplicaWish.BATCH_UP:
                highest = self.envelope.replicas[position].batch_max
                setting = self._larger(setting, position, highest)
        return setting

    def _larger(self, setting: Setting, position: int, highest: int) -> Setting:
        for batch in batches_above(setting.batches[position], highest, self.settings.batch_step_part):
            wanted = _with_batch(setting, position, batch)
            if not self._forbidden(wanted):
                return wanted
        return setting

    def _clock_up_agreed(self) -> bool:
        """One clock, many replicas. Who breaks its limit with its smallest batch has nothing left but the clock and
        outranks those that would only grow; else everybody who still could grow must agree.
        """
        late = [verdict for verdict in self.verdicts if verdict.latency is Zone.HIGH]
        if late:
            return all(verdict.wish is ReplicaWish.CLOCK_UP for verdict in late)
        voting = [verdict for verdict in self.verdicts if verdict.latency is not None]
        return bool(voting) and all(verdict.wish is ReplicaWish.CLOCK_UP for verdict in voting)

    def _forbidden(self, wanted: Setting) -> bool:
        return any(barrier.forbids(wanted) for barrier in self.state.barriers)


def _verdict(
    settings: GovernorSettings,
    envelope: DeviceEnvelope,
    state: DeviceState,
    *,
    position: int,
    reading: ReplicaReading | None,
    power: Zone,
) -> ReplicaVerdict:
    """The zone and wish of the replica at a position, under the device's power zone."""
    replica = envelope.replicas[position]
    latency = latency_of(settings, replica, reading)
    if reading is None or latency is None:
        return ReplicaVerdict(replica=replica.replica, latency=None, wish=ReplicaWish.HOLD)
    ends = _ends(settings, envelope, state, position=position, filled=reading.filled)
    return ReplicaVerdict(replica=replica.replica, latency=latency, wish=wish_of(power, latency, ends))


def _ends(
    settings: GovernorSettings, envelope: DeviceEnvelope, state: DeviceState, *, position: int, filled: bool
) -> Ends:
    """Which knobs are at an end for the replica at a position. A batch is at its ceiling also when it does not fill, or
    when experience forbids every larger one.
    """
    replica, setting = envelope.replicas[position], state.setting
    batch, clocks = setting.batches[position], envelope.clocks_mhz_sm
    larger = batches_above(batch, replica.batch_max, settings.batch_step_part)
    open_above = (
        any(not barrier_of(state, _with_batch(setting, position, each)) for each in larger) if filled else False
    )
    movable = len(clocks) > 1
    return Ends(
        batch_lowest=batch <= replica.batch_min,
        batch_highest=not open_above,
        clock_lowest=not movable or setting.clock_mhz_sm <= clocks[0],
        clock_highest=not movable or setting.clock_mhz_sm >= clocks[-1],
    )


def barrier_of(state: DeviceState, wanted: Setting) -> Barrier | None:
    """The experience that forbids a setting, if there is any."""
    return next((barrier for barrier in state.barriers if barrier.forbids(wanted)), None)


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


def moved(state: DeviceState, setting: Setting) -> DeviceState:
    """The state with a new setting, and when that was."""
    if setting == state.setting:
        return state
    before = state.setting
    higher = setting.clock_mhz_sm > before.clock_mhz_sm or any(
        new > old for new, old in zip(setting.batches, before.batches, strict=True)
    )
    return replace(state, setting=setting, changed_period=state.period, raised_period=state.period if higher else None)


def _count_bad(settings: GovernorSettings, turn: _Turn, *, bad: bool) -> tuple[DeviceState, Repartition | None]:
    """Count bad periods in a row; the one that fills the count asks for a repartition and begins a new count."""
    count = turn.state.bad_periods + 1 if bad else 0
    if count < settings.bad_periods_max:
        return replace(turn.state, bad_periods=count), None
    return replace(turn.state, bad_periods=0), _repartition(settings, turn)


def _repartition(settings: GovernorSettings, turn: _Turn) -> Repartition:
    """What would help: share for the replica that is furthest beyond its limit, or one replica less."""
    measured = {replica.replica: replica.latency_ms for replica in turn.reading.replicas}
    strain = {replica.replica: _strain(replica, measured.get(replica.replica)) for replica in turn.envelope.replicas}
    worst = max(strain, key=lambda name: (strain[name], name), default="")
    if all(verdict.latency is not Zone.HIGH for verdict in turn.verdicts):
        return Repartition(
            cause=BrokenLimit.POWER, replica=worst, donor=None, share_pct_sm=0, exhausted=turn.lowest(worst, clock=True)
        )
    free = 100 - sum(replica.share_pct_sm for replica in turn.envelope.replicas)
    extra = settings.share_pct_sm_step
    donor = None if free >= extra else _donor(turn.envelope.replicas, strain, worst=worst, extra=extra)
    lowest = turn.lowest(worst, clock=False)
    return Repartition(cause=BrokenLimit.LATENCY, replica=worst, donor=donor, share_pct_sm=extra, exhausted=lowest)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MorakGovernor:
    """This loop as a controller."""

    settings: GovernorSettings

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the planned batches at the start clock where clocks are open; never above the planned one."""
        above = (clock for clock in envelope.clocks_mhz_sm if clock >= self.settings.clock_mhz_start)
        begun = min(next(above, planned.clock_mhz_sm), planned.clock_mhz_sm)
        return first_state(envelope, replace(planned, clock_mhz_sm=begun))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope."""
        return fitted(envelope, state, planned)

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period."""
        return step(self.settings, envelope, state, reading)
