"""Controllers by name: who may move batches and clocks inside their envelopes between plans.

Policies and scenarios choose by name; nodes and the simulated world run what they get without asking which it is.
Beside Morak's loop these are the controllers that its paper compares it with:

Clipper     batches by additive increase and multiplicative decrease, the clock at its highest. By latency it is the
            published one: each replica's own latency to its own limit. By power all replicas alike follow the device's
            peak power to its cap. Neither looks at the other limit. The increase never ends, so limits are overstepped
            for a period again and again; that is the published rule.
DFS         one large batch, and a clock that follows the power cap: what is left of Morak's table when batches are
            fixed and no latency has a limit. So it runs that very loop under such an envelope, memory and shorter steps
            included, and is told nothing that the published rule does not use.
BatchDVFS   the largest batch under the cap by binary search, all batches of a device together, each as far as its own
            envelope lets it. At a batch of one that is still too much the clock falls; at the ceiling with power left
            it rises; either begins the search anew. What was found is kept until power leaves the band or the memory
            of it is too old. Latencies are not looked at.

None of the three asks for another partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from solvers.control.governor import MorakGovernor
from solvers.control.judging import (
    batch_below,
    clock_below,
    clocks_above,
    first_state,
    fitted,
    forbidden,
    held,
    inside,
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
    BatchSearch,
    BrokenLimit,
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaReading,
    ReplicaVerdict,
    ReplicaWish,
    Setting,
    Zone,
)

DEFAULT = "morak"
CLIPPER_BATCH_STEP = 1
"""By how much Clipper's batch grows each period. It falls by `batch_step_part`, the published tenth."""
DFS_BATCH = 64
"""The fixed batch of DFS: large, so that throughput is high. Where the envelope ends below it, its end."""


class Controller(Protocol):
    """One device's feedback loop: pure, one decision a period."""

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Where it begins with what was planned."""
        ...

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """How it goes on under a new envelope."""
        ...

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        """Decide one period. `state` must be of this envelope: from `first`, `fitted` or an earlier decision."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipper:
    """Batches follow one limit, named by what breaking it is called."""

    by: BrokenLimit
    settings: GovernorSettings

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the planned batches at the highest clock."""
        return first_state(envelope, _at_highest_clock(envelope, planned))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope, again at its highest clock."""
        found = fitted(envelope, state, planned)
        return replace(found, setting=_at_highest_clock(envelope, found.setting))

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
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
                batches[position] = min(replica.batch_max, batch + CLIPPER_BATCH_STEP)
        return tuple(batches)


def _at_highest_clock(envelope: DeviceEnvelope, setting: Setting) -> Setting:
    clocks = envelope.clocks_mhz_sm
    return replace(setting, clock_mhz_sm=clocks[-1]) if clocks else setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Dfs:
    """The clock alone, by power alone."""

    settings: GovernorSettings

    def first(self, envelope: DeviceEnvelope, planned: Setting) -> DeviceState:
        """Begin with the fixed batch at the planned clock."""
        return first_state(envelope, self._with_batch(envelope, planned))

    def fitted(self, envelope: DeviceEnvelope, state: DeviceState, planned: Setting) -> DeviceState:
        """Go on under a new envelope, with the fixed batch."""
        found = fitted(envelope, state, planned)
        return replace(found, setting=self._with_batch(envelope, found.setting))

    def step(self, envelope: DeviceEnvelope, state: DeviceState, reading: DeviceReading) -> GovernorDecision:
        found = MorakGovernor(settings=self.settings).step(self._narrowed(envelope, state), state, reading)
        if found.held or found.power is None:
            return found
        verdicts = tuple(
            replace(verdict, latency=latency_of(self.settings, replica, seen))
            for verdict, replica, seen in zip(
                found.verdicts, envelope.replicas, readings_of(envelope, reading), strict=True
            )
        )
        bad = is_bad(found.power, verdicts)
        return replace(found, verdicts=verdicts, bad=bad, repartition=None)

    def _with_batch(self, envelope: DeviceEnvelope, setting: Setting) -> Setting:
        batches = tuple(min(max(DFS_BATCH, each.batch_min), each.batch_max) for each in envelope.replicas)
        return replace(setting, batches=batches)

    def _narrowed(self, envelope: DeviceEnvelope, state: DeviceState) -> DeviceEnvelope:
        """The envelope without what this controller does not look at."""
        replicas = tuple(
            replace(replica, batch_min=batch, batch_max=batch, latency_ms_limit=None)
            for replica, batch in zip(envelope.replicas, state.setting.batches, strict=True)
        )
        return replace(envelope, replicas=replicas)


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
            if not forbidden(known, wanted):
                search = replace(_search(self.envelope), batch=self.search.batch)
                return self._at(search, clock, known), ReplicaWish.CLOCK_UP
        return known, ReplicaWish.HOLD

    def _at(self, search: BatchSearch, clock_mhz: int | None = None, state: DeviceState | None = None) -> DeviceState:
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


_FACTORIES: Mapping[str, Callable[[GovernorSettings], Controller]] = MappingProxyType(
    {
        "morak": lambda settings: MorakGovernor(settings=settings),
        "clipper_l": lambda settings: Clipper(by=BrokenLimit.LATENCY, settings=settings),
        "clipper_p": lambda settings: Clipper(by=BrokenLimit.POWER, settings=settings),
        "dfs": lambda settings: Dfs(settings=settings),
        "batchdvfs": lambda settings: BatchDvfs(settings=settings),
    }
)


def names() -> tuple[str, ...]:
    return tuple(sorted(_FACTORIES))


def controller(name: str, settings: GovernorSettings | None = None) -> Controller:
    """A controller by name. Raises ValueError for an unknown one."""
    if name not in _FACTORIES:
        raise ValueError(f"no controller is called {name}; there are {', '.join(names())}")
    return _FACTORIES[name](GovernorSettings() if settings is None else settings)
