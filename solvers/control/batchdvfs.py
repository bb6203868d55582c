"""BatchDVFS: the largest batch under the power cap by binary search, and the clock where batches alone do not do.

Owns that controller. One search moves all batches of a device together, each as far as its own envelope lets it. At a
batch of one that is still too much the clock falls; at the ceiling with power left it rises; either begins the search
anew. What was found is kept until power leaves the band or the memory of it is too old. Latencies are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.control.governor import BARRIERS_MAX, first_state, fitted, moved, next_period
from solvers.control.judging import held, inside, is_bad, latency_of, power_of, readings_of, settled, unknown
from solvers.control.knobs import batch_below, clock_below, clocks_above
from solvers.control.records import (
    Barrier,
    BatchSearch,
    BrokenLimit,
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaVerdict,
    Setting,
)
from solvers.control.table import ReplicaWish, Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDvfs:
    """Batches by binary search under the cap, the clock at their ends."""

    settings: GovernorSettings

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin in the middle of the batches, at the planned clock. From a high clock it would end with small batches
        there, and serve less for the same power.
        """
        begun, search = first_state(envelope, planned), _search(envelope)
        return replace(begun, setting=_with_batch(envelope, begun.setting, search.batch), search=search)

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope with a new search."""
        found, search = fitted(envelope, state, planned), _search(envelope)
        return replace(found, setting=_with_batch(envelope, found.setting, search.batch), search=search)

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period."""
        state, why = next_period(state), unknown(envelope, reading)
        if why:
            return held(state, why)
        power, readings = power_of(self.settings, envelope, reading), readings_of(envelope, reading)
        found, clock = state, ReplicaWish.HOLD
        if settled(self.settings, state):
            may_grow = any(readings) and all(each is None or each.filled for each in readings)
            turn = _SearchTurn(settings=self.settings, envelope=envelope, state=state)
            found, clock = turn.fewer() if power is Zone.HIGH else turn.more(power, may_grow=may_grow)
        verdicts = tuple(
            ReplicaVerdict(
                replica=replica.replica,
                latency=latency_of(self.settings, replica, seen),
                wish=_wish(found.setting.batches[position] - state.setting.batches[position]),
            )
            for position, (replica, seen) in enumerate(zip(envelope.replicas, readings, strict=True))
        )
        return GovernorDecision(state=found, power=power, verdicts=verdicts, clock=clock, bad=is_bad(power, verdicts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchTurn:
    """One period's search."""

    settings: GovernorSettings
    envelope: DeviceEnvelope
    state: DeviceState

    def fewer(self) -> tuple[DeviceState, ReplicaWish]:
        """Power is above the cap: a smaller batch, or a lower clock where there is none."""
        search, floor = self.search, _floor(self.envelope)
        if search.batch <= floor:
            return self._clock_down()
        if search.batch > search.low:
            return self._at(_next(replace(search, high=search.batch))), ReplicaWish.HOLD
        # It held before: something drifted a little, most of the time. If a step down is too much as well, all is open.
        near = batch_below(search.batch, floor, self.settings.batch_step_part)
        return self._at(BatchSearch(low=floor - 1, high=search.batch, batch=near)), ReplicaWish.HOLD

    def more(self, power: Zone, *, may_grow: bool) -> tuple[DeviceState, ReplicaWish]:
        """The cap is kept: larger batches as far as the search goes, then a higher clock at the ceiling."""
        search = replace(self.search, low=self.search.batch)
        known = replace(self.state, search=search)
        if not may_grow:
            return self.state, ReplicaWish.HOLD
        if search.high - search.low > 1:
            return self._at(_next(search)), ReplicaWish.HOLD
        if power is not Zone.LOW:
            return known, ReplicaWish.HOLD
        if search.batch >= _ceiling(self.envelope):
            return self._clock_up(known)
        changed = self.state.changed_period or 0
        if self.state.period - changed >= self.settings.barrier_periods:
            return self._at(_next(replace(search, high=_ceiling(self.envelope) + 1))), ReplicaWish.HOLD
        return known, ReplicaWish.HOLD

    @property
    def search(self) -> BatchSearch:
        """Where the search stands; a state of another controller has none."""
        return self.state.search or _search(self.envelope)

    def _clock_down(self) -> tuple[DeviceState, ReplicaWish]:
        setting, clocks = self.state.setting, self.envelope.clocks_mhz_sm
        lower = clock_below(setting.clock_mhz_sm, clocks, self.settings.clock_step_mhz)
        if lower == setting.clock_mhz_sm:
            return self.state, ReplicaWish.HOLD
        until = self.state.period + self.settings.barrier_periods
        barrier = Barrier(setting=setting, cause=BrokenLimit.POWER, until_period=until)
        begun = replace(self.state, barriers=(*self.state.barriers, barrier)[-BARRIERS_MAX:])
        return self._at(_search(self.envelope), lower, begun), ReplicaWish.CLOCK_DOWN

    def _clock_up(self, known: DeviceState) -> tuple[DeviceState, ReplicaWish]:
        setting, clocks = self.state.setting, self.envelope.clocks_mhz_sm
        least = _with_batch(self.envelope, setting, _floor(self.envelope))
        for clock in clocks_above(setting.clock_mhz_sm, clocks, self.settings.clock_step_mhz):
            wanted = replace(least, clock_mhz_sm=clock)
            if not any(barrier.forbids(wanted) for barrier in known.barriers):
                search = replace(_search(self.envelope), batch=self.search.batch)
                return self._at(search, clock, known), ReplicaWish.CLOCK_UP
        return known, ReplicaWish.HOLD

    def _at(self, search: BatchSearch, clock_mhz: int | None = None, state: DeviceState | None = None) -> DeviceState:
        """The state that tries the batch of a search."""
        begun = self.state if state is None else state
        setting = _with_batch(self.envelope, begun.setting, search.batch)
        clock = setting.clock_mhz_sm if clock_mhz is None else clock_mhz
        return replace(moved(begun, replace(setting, clock_mhz_sm=clock)), search=search)


def _floor(envelope: DeviceEnvelope) -> int:
    return min((replica.batch_min for replica in envelope.replicas), default=1)


def _ceiling(envelope: DeviceEnvelope) -> int:
    return max((replica.batch_max for replica in envelope.replicas), default=1)


def _search(envelope: DeviceEnvelope) -> BatchSearch:
    """Nothing is known yet: the first probe is the middle."""
    return _next(BatchSearch(low=_floor(envelope) - 1, high=_ceiling(envelope) + 1, batch=_floor(envelope)))


def _next(search: BatchSearch) -> BatchSearch:
    """The probe in the middle; what is known to hold when there is nothing between."""
    return replace(search, batch=(search.low + search.high) // 2)


def _with_batch(envelope: DeviceEnvelope, setting: Setting, batch: int) -> Setting:
    return inside(envelope, replace(setting, batches=(batch,) * len(envelope.replicas)))


def _wish(difference: int) -> ReplicaWish:
    if difference == 0:
        return ReplicaWish.HOLD
    return ReplicaWish.BATCH_UP if difference > 0 else ReplicaWish.BATCH_DOWN
