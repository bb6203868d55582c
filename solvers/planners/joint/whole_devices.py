"""Problems in which every replica takes a whole device: then it is a matter of counting, and counting is solved better.

Nothing but the devices of each pool may limit such a problem: no caps, quotas, budgets or floors, for counts know none
of these. What counting proves holds for plans that serve every demand; to count, a demand is served whole or not at
all.

Where something stands, a second programme finds the cheapest whole devices that can be had without interruptions:
replicas that stay, that start and that end, by pool and network, and which standing ones must end at once because their
devices are needed before their replacements are ready. What starts costs its launch and a part of itself, as when
layouts are compared; to be short, now or during launches, costs far more than any device. Where a workload would stay
short only because interruptions weigh so much, they weigh as long as demand is remembered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import Limits, ProgrammeRows, create
from solvers.engines.deadline import Deadline
from solvers.planners.counting.covers import cover
from solvers.planners.counting.demands import Covers
from solvers.planners.joint.seat.seats import Floor, Seats
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout, Pattern, judge, serve

ENGINE = "highs"
WORKLOADS_COUNTED_MAX = 60
"""With counted work instead of time: what larger ones find depends on how fast the machine is."""
DUST = 1e-9
SHORT_LEAST = 50.0
"""However little is short of a workload, or for however short a time: it counts so many of the dearest devices."""
CLAIM_USD = 1e-4
"""What a standing replica ends for is never nothing."""
SURE = 1e-6
"""Of what is asked, beside it: engines round."""
WORK_UNITS = 400.0
"""Nodes that are looked at where work is counted."""
GROUPS_MAX = 2_000
"""With more pairs of pool and network than this there is no telling how long it takes."""
SHORT_DUST = 1e-6
GAP = 1e-4
"""What is so near to the best is not looked at any longer: these programmes are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gentle:
    """A layout that interrupts as few as can be. Interruptions were weighed as if a plan stood for `period_s`."""

    layout: Layout
    period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A layout, and what serving every workload costs at least."""

    layout: Layout
    bound_usd_per_h: float | None
    gentle: Gentle | None = None
    """Where something stands."""


def counted(problem: JointProblem, deadline: Deadline, gap: float) -> Counted | None:
    """None where it is no matter of counting."""
    if not _is_counting(problem) or (deadline.work_units is not None and _large(problem)):
        return None
    options = options_of(problem)
    if not options:
        return None
    found = cover(_covers(problem, options), create(ENGINE), deadline, gap=gap)
    counts: Counter[Pattern] = Counter()
    for option, count in zip(options, found.counts.tolist(), strict=True):
        if count:
            counts[option] += count
    layout = Layout(patterns=tuple(counts), counts=tuple(counts.values()))
    if not _within_replicas(problem, layout):
        return None
    spared = _energy_spared(problem, options)
    proven = found.bound - spared if np.isfinite(found.bound) and not found.unserved_least else None
    return Counted(layout=layout, bound_usd_per_h=proven)


def _large(problem: JointProblem) -> bool:
    return len(problem.workloads) > WORKLOADS_COUNTED_MAX


def _is_counting(problem: JointProblem) -> bool:
    """Whether nothing shares a device and nothing but the number of devices limits a plan."""
    if problem.caps or problem.quotas or problem.by_replica or not problem.kinds:
        return False
    if any(
        work.replicas_min > 1 or work.domains_min > 1 or np.isfinite(work.budget_usd_per_h) or not work.rate_least_rps
        for work in problem.workloads
    ):
        return False
    if any(pool.rest or pool.capped for pool in problem.pools):
        return False
    return problem.only_whole


def options_of(problem: JointProblem) -> list[Pattern]:
    """What a whole device of every kind serves of every variant, by workload."""
    found = [
        pattern
        for kind in range(problem.kinds)
        for variant in np.flatnonzero(problem.allowed[int(problem.kind_pool[kind])]).tolist()
        if (pattern := judge(problem, kind, (variant,), (WHOLE_PCT,))) is not None
    ]
    return sorted(found, key=lambda item: (problem.variants[item.variants[0]].workload, item.key))


def _covers(problem: JointProblem, options: list[Pattern]) -> Covers:
    return Covers(
        demand=problem.rate_rps,
        unserved_usd=problem.unserved_usd,
        option_demand=problem.variant_workload[[item.variants[0] for item in options]],
        option_rate=np.array([item.capacity_rps[0] for item in options]),
        option_usd=np.array([item.usd_per_h for item in options]),
        option_resource=problem.kind_pool[[item.kind for item in options]],
        option_units=np.ones(len(options), dtype=np.int64),
        units=problem.pool_devices,
    )


def _energy_spared(problem: JointProblem, options: list[Pattern]) -> float:
    """The most that all devices together could save with smaller batches than those of most capacity, $/h."""
    if not problem.usd_per_wh:
        return 0.0
    most: dict[int, float] = {}
    for item in options:
        table, variant = int(problem.kind_table[item.kind]), item.variants[0]
        mean, tail = (cells[table, variant, -1] for cells in (problem.mean_ms, problem.tail_ms))
        _, rate = serve(problem, variant, mean, tail)
        least_w = float(problem.power_w[table, variant, -1][rate > 0].min())
        pool = int(problem.kind_pool[item.kind])
        most[pool] = max(most.get(pool, 0.0), problem.usd_per_wh * max(0.0, item.power_w[0] - least_w))
    return sum(usd * problem.pools[pool].devices for pool, usd in most.items() if usd > DUST)


def _within_replicas(problem: JointProblem, layout: Layout) -> bool:
    replicas = np.zeros(len(problem.workloads), dtype=np.int64)
    for item, count in zip(layout.patterns, layout.counts, strict=True):
        replicas[problem.variants[item.variants[0]].workload] += count
    most = np.array([work.replicas_max for work in problem.workloads], dtype=np.int64)
    return bool((replicas <= most).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTerms:
    """What changes are weighed by: $/h per second of launching, the part of itself that a restarted replica counts,
    over how many seconds interruptions count, and for how many demand is remembered; how near to the best is near
    enough, and what is known of the best.
    """

    launch_usd_per_s: float
    restart_part: float
    period_s: float
    remembered_s: float
    gap: float
    bound_usd_per_h: float | None = None


def gentle(floor: Floor, terms: ChangeTerms, deadline: Deadline) -> Gentle | None:
    """For a problem that is a matter of counting; None where nothing stands, or not in whole devices,
    where what stands is good enough, or nothing was found in time.
    """
    groups = _groups(floor)
    if groups is None or len(groups.pool) > GROUPS_MAX or groups.good_enough(terms):
        return None
    found = _solved(groups, terms, terms.period_s, deadline)
    if found is None:
        return None
    if found.short and terms.period_s < terms.remembered_s and not deadline.over:
        other = _solved(groups, terms, terms.remembered_s, deadline)
        if other is not None:
            return Gentle(layout=other.layout, period_s=terms.remembered_s)
    return Gentle(layout=found.layout, period_s=terms.period_s)


def slights_usd(seats: Seats) -> float:
    """What it counts beside the demand itself that workloads are short: as in the programme, $/h."""
    dearest = max(pool.usd_per_h for pool in seats.floor.problem.pools)
    short = sum(seats.short_rps(number) > 0 for number in range(len(seats.floor.problem.workloads)))
    return SHORT_LEAST * dearest * short


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """Options, and the groups (a network on a pool) that they belong to, with what stands of each."""

    problem: JointProblem
    options: tuple[Pattern, ...]
    group: Whole
    """Of each option."""
    pool: Whole
    workload: Whole
    launch_s: Floats
    usd: Floats
    """Of one replica; 0 where there is no option any more."""
    stands: Whole
    stands_rps: Floats
    """Of one standing replica."""

    @property
    def before_rps(self) -> Floats:
        """What stands of each workload."""
        works = len(self.problem.workloads)
        return np.bincount(self.workload, weights=self.stands * self.stands_rps, minlength=works).astype(np.float64)

    def good_enough(self, terms: ChangeTerms) -> bool:
        """Whether what stands serves all at hardly more than it costs at least."""
        least = np.array([work.rate_least_rps for work in self.problem.workloads])
        if terms.bound_usd_per_h is None or (self.before_rps < least * (1 - SHORT_DUST)).any():
            return False
        return float(self.stands @ self.usd) * (1 - terms.gap) <= terms.bound_usd_per_h


def _groups(floor: Floor) -> _Groups | None:
    problem, options = floor.problem, options_of(floor.problem)
    held: Counter[tuple[int, int]] = Counter()
    rps: dict[tuple[int, int], float] = defaultdict(float)
    for device, stands in floor.held.items():
        if len(stands) != 1 or stands[0].share_pct != WHOLE_PCT:
            return None
        key = int(floor.pool_of[device]), stands[0].variant
        held[key] += 1
        rps[key] += stands[0].capacity_rps
    if not options or not held:
        return None
    keys = [(int(problem.kind_pool[item.kind]), item.variants[0]) for item in options]
    known = sorted({*keys, *held})
    place = {key: number for number, key in enumerate(known)}
    usd = np.zeros(len(known))
    for key, item in zip(keys, options, strict=True):
        usd[place[key]] = max(usd[place[key]], item.usd_per_h)
    return _Groups(
        problem=problem,
        options=tuple(options),
        group=np.array([place[key] for key in keys], dtype=np.int64),
        pool=np.array([pool for pool, _ in known], dtype=np.int64),
        workload=problem.variant_workload[[variant for _, variant in known]],
        launch_s=np.array([problem.variants[variant].launch_s for _, variant in known]),
        usd=usd,
        stands=np.array([held[key] for key in known], dtype=np.int64),
        stands_rps=np.array([rps[key] / held[key] if held[key] else 0.0 for key in known]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    layout: Layout
    short: bool
    """Whether a workload is short of what must be served once all have launched."""


def _solved(groups: _Groups, terms: ChangeTerms, period_s: float, deadline: Deadline) -> _Found | None:
    work = None if deadline.work_units is None else WORK_UNITS
    program = _Programme(groups, terms, period_s)
    limits = Limits(time_s=deadline.left_s, work=work, gap=min(GAP, terms.gap))
    answer = create(ENGINE).solve(program.rows.program(), limits)
    if answer.values is None:
        return None
    counts = np.round(answer.values[program.take]).astype(np.int64)
    chosen = np.flatnonzero(counts > 0)
    layout = Layout(patterns=tuple(groups.options[number] for number in chosen), counts=tuple(counts[chosen].tolist()))
    least = np.array([work.rate_least_rps for work in groups.problem.workloads])
    return _Found(layout=layout, short=bool((layout.served_rps(groups.problem) < least * (1 - SHORT_DUST)).any()))


class _Programme:
    """The programme with the columns that are read again."""

    def __init__(self, groups: _Groups, terms: ChangeTerms, period_s: float) -> None:
        self.groups, self.rows = groups, ProgrammeRows()
        problem = groups.problem
        usd = np.array([item.usd_per_h for item in groups.options])
        devices = problem.pool_devices[groups.pool]
        self.take = self.rows.add_columns(usd, devices[groups.group].astype(np.float64))
        starting = terms.launch_usd_per_s * groups.launch_s + terms.restart_part * groups.usd
        self.new = self.rows.add_columns(np.maximum(starting, CLAIM_USD), devices.astype(np.float64))
        self.ends = self.rows.add_columns(np.full(len(groups.pool), CLAIM_USD), groups.stands.astype(np.float64))
        self._devices()
        self._served(period_s)

    def _devices(self) -> None:
        """What starts needs a device on which nothing stands, or one whose replica ends for it."""
        groups, rows = self.groups, self.rows
        stays = rows.add_rows(np.full(len(groups.pool), -np.inf), groups.stands.astype(np.float64))
        rows.enter(stays[groups.group], self.take, 1.0)
        rows.enter(stays, self.new, -1.0)
        rows.enter(stays, self.ends, 1.0)
        units = groups.problem.pool_devices
        idle = units - np.bincount(groups.pool, weights=groups.stands, minlength=len(units))
        room = rows.add_rows(np.full(len(units), -np.inf), idle.astype(np.float64))
        rows.enter(room[groups.pool], self.new, 1.0)
        rows.enter(room[groups.pool], self.ends, -1.0)

    def _served(self, period_s: float) -> None:
        groups, rows, works = self.groups, self.rows, self.groups.problem.workloads
        before, rate = groups.before_rps, groups.problem.rate_rps
        least = np.array([work.rate_least_rps for work in works])
        must = np.minimum(least, before)
        # What is short is sized anew; what stands is enough for the others, as long as it covers what must be served.
        asked = np.where(before < least, rate, np.maximum(least, np.minimum(rate, before)))
        usd_each = groups.problem.unserved_usd / rate
        launch_s = np.zeros(len(works))
        np.maximum.at(launch_s, groups.workload, groups.launch_s)
        dearest = max(pool.usd_per_h for pool in groups.problem.pools)
        spare = rows.add_columns(usd_each, asked - least, integer=False)
        short = rows.add_columns(groups.problem.unserved_usd / least, least * (1 + 2 * SURE), integer=False)
        broken = rows.add_columns(groups.problem.unserved_usd / least * launch_s / period_s, must, integer=False)
        slight = np.full(len(works), SHORT_LEAST * dearest)
        told = ((short, slight), (broken, slight * np.minimum(1.0, launch_s / period_s)))
        for column, usd_slight in told:
            flag = rows.add_columns(usd_slight, np.ones(len(works)))
            none = rows.add_rows(np.full(len(works), -np.inf), np.zeros(len(works)))
            rows.enter(none, column, 1 / least)
            rows.enter(none, flag, -1 - 2 * SURE)
        served = rows.add_rows(np.full(len(works), 1 + SURE), np.full(len(works), np.inf))
        rates = np.array([item.capacity_rps[0] for item in groups.options])
        whose = groups.workload[groups.group]
        rows.enter(served[whose], self.take, rates / asked[whose])
        rows.enter(served, spare, 1 / asked)
        rows.enter(served, short, 1 / asked)
        goes_on = rows.add_rows(must - before, np.full(len(works), np.inf))
        rows.enter(goes_on, broken, 1.0)
        rows.enter(goes_on[groups.workload], self.ends, -groups.stands_rps)
        most = np.array([work.replicas_max for work in works], dtype=np.float64)
        replicas = rows.add_rows(np.zeros(len(works)), most)
        rows.enter(replicas[whose], self.take, 1.0)
