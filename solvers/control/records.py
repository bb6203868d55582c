"""What the governor is told, remembers and answers: immutable records of plain numbers.

A state has a form as JSON, so that it can be kept across a restart and a run replayed. Units are in the names; a period
is one turn of the governor, whatever its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Zone(StrEnum):
    """Where a measurement lies to its limit: well below, just below, above."""

    LOW = "low"
    BAND = "band"
    HIGH = "high"


class ReplicaWish(StrEnum):
    """What a replica would have done."""

    HOLD = "hold"
    BATCH_UP = "batch_up"
    BATCH_DOWN = "batch_down"
    CLOCK_UP = "clock_up"
    CLOCK_DOWN = "clock_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorSettings:
    """How the governor behaves. The defaults are those chosen for Morak where its paper is silent."""

    power_low_part: float = 0.95
    """alpha: up to this part of the cap power is low."""
    latency_low_part: float = 0.90
    """beta: below this part of its limit a latency is low."""
    clock_mhz_start: int = 600
    """Morak begins here, or at the next clock that it may lock: from a high one the cap stops batches early."""
    clock_step_mhz: int = 90
    batch_step_part: float = 0.10
    """A batch changes by this part of itself, by one at least."""
    bad_periods_max: int = 3
    """After so many bad periods in a row, governing alone does not help."""
    settle_periods: int = 1
    """So many periods after a change nothing is raised: the measurement must show the change first. 1: every period."""
    barrier_periods: int = 300
    """How long a combination that broke a limit is not tried again."""
    beside_periods: int = 30
    """So long after a change the clock does not rise under a cap beside somebody who leaves."""
    share_pct_sm_step: int = 5
    """How much share a repartition would give to the worst replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEnvelope:
    """What may be done to a replica, both ends included. Without a latency limit it wants throughput alone."""

    replica: str
    batch_min: int
    batch_max: int
    latency_ms_limit: float | None
    share_pct_sm: int
    execution_only: bool = False
    """Whether the limit counts execution alone: then a latency is the setting's doing, never the load's."""

    @property
    def fixed(self) -> bool:
        """Whether its batch must stay as it is."""
        return self.batch_min >= self.batch_max


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnvelope:
    """What may be done to a device. `clocks_mhz_sm` rise; with fewer than two of them the clock stays as it is."""

    uuid: str
    power_w_cap: float | None
    clocks_mhz_sm: tuple[int, ...]
    replicas: tuple[ReplicaEnvelope, ...]
    cap_held: bool = False
    """Whether the board holds the cap itself."""


FILLED_PART = 0.75
"""Batches of this part of the allowed size on average, or as many requests waiting, count as full."""
OVERLOAD_PART = 0.01
"""A process that drops more than this part of what arrives has more load than it can carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """A process of a replica in its last period, as it was measured. Mean times of its batches and the tail of answers
    are None when nothing finished.
    """

    batch: int
    """What it is allowed."""
    execution_ms: float | None
    latency_ms_p99: float | None
    batch_mean: float
    queue: float
    arrived: float
    dropped: float
    execution_only: bool

    @property
    def judged_ms(self) -> float | None:
        """What counts against the limit: the execution alone where the service says so, else the tail end to end. Under
        more load than it can carry, only what batch and clock can mend counts, the batch before and its own: the rest
        is a queue, and smaller batches would lengthen it.
        """
        overloaded = self.queue >= 2.0 * self.batch or self.dropped > OVERLOAD_PART * self.arrived
        if self.execution_only or self.execution_ms is None or not overloaded:
            return self.execution_ms if self.execution_only else self.latency_ms_p99
        return 2.0 * self.execution_ms

    @property
    def filled(self) -> bool:
        """Whether its batches were about as large as allowed; unknown ones count as that."""
        full = self.batch_mean <= 0.0 or self.batch_mean >= FILLED_PART * self.batch
        return full or self.queue >= self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReading:
    """A replica's last period. `latency_ms` is None when nothing finished: it then has no wish and no say."""

    replica: str
    latency_ms: float | None
    filled: bool = True
    """Whether its batches were about as large as allowed; if not, allowing larger ones changes nothing."""

    @staticmethod
    def of(replica: str, processes: Sequence[ProcessReading]) -> ReplicaReading:
        """A replica and its shadow are judged by the worse of them."""
        latencies = [latency_ms for each in processes if (latency_ms := each.judged_ms) is not None]
        filled = any(each.filled for each in processes)
        return ReplicaReading(replica=replica, latency_ms=max(latencies, default=None), filled=filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """A device's last period. `power_capped`: its own power limit holds the clock down already."""

    power_w: float | None
    replicas: tuple[ReplicaReading, ...]
    power_capped: bool = False
    stale: bool = False
    """Too old to act on."""
    beside: bool = False
    """Whether somebody runs here who is on the way out: what is broken meanwhile says nothing of the setting."""
    coming_part: float = 0.0
    """Share that is being started here, as a part of the share at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One combination of all knobs of a device: batches in the order of the replicas, and the clock."""

    batches: tuple[int, ...]
    clock_mhz_sm: int


class BrokenLimit(StrEnum):
    POWER = "power"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A combination that was raised to and broke a limit; more of the same is not tried until a period is reached."""

    setting: Setting
    cause: BrokenLimit
    until_period: int

    def forbids(self, wanted: Setting) -> bool:
        """Whether a combination would break the limit even more: larger batches, and a clock that helps even less."""
        larger = all(new >= old for new, old in zip(wanted.batches, self.setting.batches, strict=True))
        if self.cause is BrokenLimit.POWER:
            return larger and wanted.clock_mhz_sm >= self.setting.clock_mhz_sm
        return larger and wanted.clock_mhz_sm <= self.setting.clock_mhz_sm


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """How far a binary search of a device's batch has come."""

    low: int
    """The largest batch known to keep the limit; one below the smallest allowed while none is."""
    high: int
    """The smallest batch known to break it; one above the largest allowed while none is."""
    batch: int
    """The one that is tried, or was found."""


BARRIERS_MAX = 16
"""Remembered per device; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What the governor remembers of a device. `replicas` and `setting.batches` are in the same order."""

    uuid: str
    replicas: tuple[str, ...]
    setting: Setting
    period: int = 0
    bad_periods: int = 0
    changed_period: int | None = None
    """When something last moved."""
    raised_period: int | None = None
    """When something was last raised; None again as soon as it proved good, bad, or was taken back."""
    barriers: tuple[Barrier, ...] = ()
    search: BatchSearch | None = None
    """Of controllers that search; None for all others."""

    def batch(self, replica: str) -> int:
        return self.setting.batches[self.replicas.index(replica)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Governing alone does not help. For latency: give the worst replica `share_pct_sm` more, from what is free or else
    from the donor. For power: move a replica elsewhere.
    """

    cause: BrokenLimit
    replica: str
    donor: str | None
    share_pct_sm: int
    exhausted: bool
    """No knob that would help can move any more; else the governor goes on and may get there by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaVerdict:
    """How the governor judged a replica in a period; no zone: nothing was measured."""

    replica: str
    latency: Zone | None
    wish: ReplicaWish


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorDecision:
    """One period: the state to hold from now on, and how it came to it. `held` says why nothing was decided at all."""

    state: DeviceState
    power: Zone | None
    verdicts: tuple[ReplicaVerdict, ...]
    clock: ReplicaWish
    """CLOCK_UP, CLOCK_DOWN or HOLD: what was done to the clock."""
    bad: bool
    repartition: Repartition | None = None
    held: str = ""


def state_to_plain(state: DeviceState) -> dict[str, object]:
    return asdict(state)


def state_from_plain(plain: object) -> DeviceState:
    """The state that was written. Raises ValueError."""
    item = _a(dict, plain)
    setting, replicas = _setting(item.get("setting")), tuple(_a(str, name) for name in _a(list, item.get("replicas")))
    barriers = tuple(_barrier(_a(dict, barrier)) for barrier in _a(list, item.get("barriers")))
    if any(len(each.batches) != len(replicas) for each in (setting, *(barrier.setting for barrier in barriers))):
        raise ValueError("a state of a governor needs one batch for each replica")
    moments = {name: item.get(name) for name in ("changed_period", "raised_period")}
    search = item.get("search")
    return DeviceState(
        uuid=_a(str, item.get("uuid")),
        replicas=replicas,
        setting=setting,
        period=_a(int, item.get("period")),
        bad_periods=_a(int, item.get("bad_periods")),
        barriers=barriers,
        search=None if search is None else _search(_a(dict, search)),
        **{name: None if moment is None else _a(int, moment) for name, moment in moments.items()},
    )


def _search(item: Mapping[str, object]) -> BatchSearch:
    return BatchSearch(low=_a(int, item.get("low")), high=_a(int, item.get("high")), batch=_a(int, item.get("batch")))


def _barrier(item: Mapping[str, object]) -> Barrier:
    cause = BrokenLimit(_a(str, item.get("cause")))
    return Barrier(setting=_setting(item.get("setting")), cause=cause, until_period=_a(int, item.get("until_period")))


def _setting(plain: object) -> Setting:
    item = _a(dict, plain)
    batches = tuple(_a(int, batch) for batch in _a(list, item.get("batches")))
    return Setting(batches=batches, clock_mhz_sm=_a(int, item.get("clock_mhz_sm")))


def _a(kind: type[T], plain: object) -> T:
    found = list(plain) if isinstance(plain, tuple) else plain
    if isinstance(found, bool) or not isinstance(found, kind):
        raise ValueError(f"no state of a governor: expected {kind.__name__}, got {type(plain).__name__}")
    return found
