"""What is done with spare capacity: contents of devices that serve more, beside the cheapest plan or instead of it.

`fill`: a service whose demand is not counted and whose promise says nothing of waiting is open-ended: its declared rate
is a floor, and whatever more it serves counts by its priority. On devices that carry nothing but such services, and on
which nothing stands yet, contents are exchanged for contents that serve more in all; declared rates come first, and no
cap is exceeded. Whole devices are never added. Services with budgets, quotas or spread are left alone.

`pursued`, for operators whose policy names capacity before cost: of every pool, sets of workloads in partings of the
device that leave less than a step, each judged twice, with the batches of the highest granted rate and with the largest
that keep the promise. An integer programme over whole devices then leaves least of what must be served unserved and
carries most in full batches, with a bonus for devices that stay. Where devices are coupled, with training jobs and with
very many workloads, the cheapest layout is all there is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import comb
from types import MappingProxyType

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.domain.ids import WorkloadId
from solvers.domain.policy import Term
from solvers.domain.workload import WorkloadKind
from solvers.engines.base import Limits, Program, ProgrammeRows, create
from solvers.engines.deadline import Deadline
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seats import DUST, DUST_W, Move, Seats
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.write import CEILING_PART
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Judged, Layout, Pattern, Patterns, Standing

MEMBERS_MAX = 4
JUDGED_MAX = 4000
"""Contents that are looked at, over all kinds of a pool."""
LOOK_S_PER_WORKLOAD = 0.01
"""What one look at the contents of a pool may take: with less left nobody begins one."""
EXCHANGED_MAX = 1_000_000
"""Devices times workloads: one look at more would take longer than any deadline."""
PAIRS_MAX = 8
"""Devices of a pool up to which two are exchanged at a time."""
KEPT_MAX = 250
"""Contents of a pool that are remembered."""
GAIN_PART_MIN = 1e-3
DECLARED_FACTOR = 20.0
"""What is declared counts so many times as much as what comes on top."""
ROWS_MAX = 12_000
"""Contents of one size and pool that are looked at."""
SHORT_FULL_RPS = 20_000.0
"""Full requests/s that one request/s is worth that must be served and is not: a tenth outweighs what stays."""
HEADROOM_FULL_RPS = 3.0
"""The same, of what is only sized for."""
STAY_PART = 0.15
"""Of what a device carries: so much more it counts where it stays as it is."""
WORKLOADS_MAX = 100
"""Beyond, contents of more than one replica are too many to look at."""
COLUMNS_MAX, ENTER_MAX = 1600, 50
SHAKES = 30
SHAKE = 0.5
"""How often, and how far, the relaxed prices are shaken."""
NODES = 400.0
GAP = 2e-3
ENGINE = "highs"
_NOTHING: Mapping[int, Pattern] = MappingProxyType({})


def fill(
    seats: Seats, open_to: Collection[WorkloadId], deadline: Deadline, stood: Mapping[int, Pattern] = _NOTHING
) -> bool:
    """Keep what was filled before, and exchange other contents until nothing serves more or the time has ended; whether
    anything changed. `stood`: what stands, by device.
    """
    problem = seats.floor.problem
    mine = frozenset(number for number, item in enumerate(problem.workloads) if item.id in open_to)
    changed = _keep_standing(seats, mine, stood)
    look_s = LOOK_S_PER_WORKLOAD * len(problem.workloads)
    for pool in range(len(problem.pools) if mine else 0):
        devices = [
            device
            for device in seats.floor.devices(pool)
            if device not in seats.floor.held and _all_of(problem, seats.patterns[device], mine)
        ]
        if deadline.left_s > look_s and 0 < len(devices) * len(problem.workloads) <= EXCHANGED_MAX:
            table = _best(seats, _contents(seats.floor.judge, pool, sorted(mine), deadline))
            while not deadline.over and _improve(seats, table, devices):
                changed = True
    return changed


def _all_of(problem: JointProblem, pattern: Pattern | None, mine: Collection[int]) -> bool:
    return pattern is not None and all(problem.variants[item].workload in mine for item in pattern.variants)


def _contents(judge_all: Judge, pool: int, mine: Sequence[int], deadline: Deadline) -> Contents:
    """Few replicas first, in as many partings as there is time for, at the highest clock that is borne."""
    problem, made = judge_all.problem, [judge_all.judge(Patterns.none(MEMBERS_MAX))]
    variants = np.flatnonzero(problem.allowed[pool] & np.isin(problem.variant_workload, mine)).tolist()
    clocks = sorted({int(clock) for clock in problem.kind_clock_mhz[problem.kind_pool == pool]}, reverse=True)
    kinds = [kind for clock in clocks for kind in problem.like(pool, clock)]
    left = JUDGED_MAX
    for size in range(1, MEMBERS_MAX + 1):
        count = comb(len(variants) + size - 1, size)
        if not 0 < count <= left or deadline.over:
            break
        partings = problem.partings(size, left // count)
        left -= count * len(partings)
        if len(partings):
            groups = np.array(list(combinations_with_replacement(variants, size)), dtype=np.int64)
            judged = judge_all.judge(_crossed(kinds, groups, partings, MEMBERS_MAX))
            lawful = judged.lawful.reshape(len(kinds), -1)
            each = np.flatnonzero(lawful.any(axis=0))
            made.append(judged.take(lawful.argmax(axis=0)[each] * lawful.shape[1] + each))
    judged = Judged.chained(made)
    return Contents.of(problem, judged, np.zeros(len(judged), dtype=bool))


def _keep_standing(seats: Seats, mine: Collection[int], stood: Mapping[int, Pattern]) -> bool:
    """Give devices their standing contents back, as far as these are of such workloads alone; whether anything changed.
    A solve sees declared rates alone, so it would take away what fills a device, for its energy, cycle after cycle.
    """
    changed = False
    for device, before in sorted(stood.items()):
        now, move = seats.patterns[device], Move(device=device, after=before)
        other = now is not None and before.key != now.key
        ours = other and all(_all_of(seats.floor.problem, at, mine) for at in (now, before))
        if ours and seats.powers(move) and _keeps_bounds(seats, move):
            seats.put(move.device, move.after)
            changed = True
    return changed


def _keeps_bounds(seats: Seats, move: Move) -> bool:
    """Whether no workload falls short by it, or below or above its numbers of replicas, further than it is."""
    works, counts = seats.floor.problem.workloads, seats.replicas
    return not seats.lowers(move, np.minimum(seats.floor.problem.least_rps, seats.served_rps)) and all(
        min(works[number].replicas_min, counts[number])
        <= counts[number] + delta.replicas
        <= max(works[number].replicas_max, counts[number])
        for number, delta in seats.change(move).items()
    )


@dataclass(frozen=True, slots=True)
class Contents(Parallel):
    """Rows that keep every promise, with what is granted at the batches chosen; the others are row x workload."""

    judged: Judged
    fixed: Flags
    """What was not drawn here but handed in."""
    granted_rps: Floats
    replicas: Floats

    @staticmethod
    def of(problem: JointProblem, judged: Judged, fixed: Flags) -> Contents:
        rates, replicas = (np.zeros((len(judged), len(problem.workloads))) for _ in range(2))
        for place, variants in enumerate(judged.rows.variants.T):
            stands = np.flatnonzero(variants >= 0)
            number = problem.variant_workload[variants[stands]]
            np.add.at(rates, (stands, number), judged.capacity_rps[stands, place])
            np.add.at(replicas, (stands, number), 1.0)
        return Contents(judged, fixed, rates, replicas)

    def dynamic_w(self, judge: Judge) -> Floats:
        """What each draws above idle."""
        return self.judged.draw_w - judge.idle_w[judge.problem.kind_pool[self.judged.rows.kind]]


def _best(seats: Seats, found: Contents) -> Contents:
    """The best of what was found, the most valuable first, none worse than another in everything."""
    rates, watts, kept = found.granted_rps, found.dynamic_w(seats.floor.judge), list[int]()
    merits = np.column_stack([rates, -watts]) if len(seats.floor.room_w) else rates
    for index in np.argsort(-rates @ seats.floor.problem.weight, kind="stable").tolist():
        if len(kept) == KEPT_MAX:
            break
        if not kept or not (merits[kept] >= merits[index] - DUST).all(axis=1).any():
            kept.append(index)
    return found.take(np.array(kept, dtype=np.int64))


def _improve(seats: Seats, table: Contents, devices: Sequence[int]) -> bool:
    """The one exchange, on one device or else on two, that gains most."""
    for size in (1, 2) if len(devices) <= PAIRS_MAX else (1,):
        best: tuple[float, tuple[int, ...], Judged] | None = None
        seen: set[tuple[object, ...]] = set()
        for at in combinations(devices, size):
            # Devices that are equal in this need be tried once.
            now = [seats.patterns[device] for device in at]
            key = (*(item and item.key for item in now), *seats.floor.domain_of[list(at)].ravel().tolist())
            if key in seen:
                continue
            seen.add(key)
            found = _exchange(seats, table, at)
            if found is not None and (best is None or found[0] > best[0] + DUST):
                best = found[0], at, found[1]
        if best is not None:
            for device, made in zip(best[1], seats.floor.judge.patterns(best[2]), strict=True):
                seats.put(device, made)
            return True
    return False


def _exchange(seats: Seats, contents: Contents, at: tuple[int, ...]) -> tuple[float, Judged] | None:
    """What the best contents of these devices gain, and which they are."""
    problem, weights = seats.floor.problem, seats.floor.problem.weight
    rates, replicas = np.zeros((2, len(problem.workloads)))
    for device in at:
        for number, delta in seats.change(Move(device=device, after=None)).items():
            rates[number] -= delta.rps
            replicas[number] -= delta.replicas
    served, count = seats.served_rps, np.array(seats.replicas, dtype=np.float64)
    worth, watts = contents.granted_rps @ weights, contents.dynamic_w(seats.floor.judge)
    floors = problem.least_rps
    # A replica under a controller begins with a batch that serves a little less than the best.
    least = np.minimum(floors / CEILING_PART, served) * (1 - DUST) - served + rates
    fewest = np.minimum(np.array([item.replicas_min for item in problem.workloads]), count) - count + replicas
    most = np.maximum(np.array([item.replicas_max for item in problem.workloads]), count) - count + replicas
    fits = [watts <= seats.left_at(device) + seats.dynamic_w(device) + DUST_W for device in at]
    if len(at) == 1:
        made_rates, made_count, value = contents.granted_rps, contents.replicas, worth
        able = fits[0]
    else:
        made_rates = contents.granted_rps[:, None] + contents.granted_rps[None]
        made_count = contents.replicas[:, None] + contents.replicas[None]
        # Each fits alone; who shares a power domain has to fit together.
        shared = np.intersect1d(*seats.floor.domain_of[list(at)])
        left_w = np.append(seats.left_w, np.inf)[shared].min(initial=np.inf)
        more_w = [watts - seats.dynamic_w(device) for device in at]
        together = more_w[0][:, None] + more_w[1][None] <= left_w + DUST_W
        value, able = worth[:, None] + worth[None], fits[0][:, None] & fits[1][None] & together
    able = able & (made_rates >= least).all(axis=-1) & (made_count >= fewest).all(axis=-1)
    able = able & (made_count <= most).all(axis=-1)
    short = np.maximum(0.0, floors - served + rates - made_rates) @ weights
    short_now = float(np.maximum(0.0, floors - served) @ weights)
    gain = np.where(able, value - float(rates @ weights) + DECLARED_FACTOR * (short_now - short), -np.inf)
    chosen = int(np.argmax(gain)) if gain.size else 0
    if not gain.size or gain.flat[chosen] <= GAIN_PART_MIN * float(rates @ weights):
        return None
    return float(gain.flat[chosen]), contents.judged.take(np.array(np.unravel_index(chosen, gain.shape)))


def pursues(reading: Reading) -> bool:
    """Whether capacity counts before cost, and `pursued` may choose."""
    problem, first = reading.problem, reading.snapshot.policy.before_cost(Term.CAPACITY)
    coupled = problem.coupled or any(need.kind is WorkloadKind.JOB for need in reading.needs)
    return first and 0 < len(problem.workloads) <= WORKLOADS_MAX and not coupled


def pursued(reading: Reading, cheapest: Layout, deadline: Deadline) -> Layout | None:
    """What carries most, the cheapest layout for a beginning; None: not in time. Raises EngineError as engines do."""
    if deadline.over:
        return None
    problem, standing = reading.problem, reading.standing_patterns
    given = (*(item.pattern for item in standing), *cheapest.patterns)
    found = contents_of(problem, given)
    stays = _stays(found, standing)
    rows = np.concatenate([np.arange(len(found)), np.array(sorted(stays), dtype=np.int64)])
    pool = problem.kind_pool[found.judged.rows.kind[rows]]
    most = np.concatenate([problem.pool_devices[pool[: len(found)]], [float(stays[row]) for row in sorted(stays)]])
    worth = found.judged.full_rps.sum(axis=1)[rows]
    worth[len(found) :] *= 1 + STAY_PART
    sheet = _Sheet(problem, found.take(rows), most, worth)
    fixed = np.concatenate([found.fixed, np.ones(len(stays), dtype=bool)])
    chosen = _promising(sheet, fixed, pool, deadline)
    limits = Limits(time_s=deadline.time_left_s, work=NODES, gap=GAP)
    answer = create(ENGINE).solve(sheet.program(chosen, integer=True), limits)
    if answer.values is None:
        return None
    counts = np.rint(answer.values[sheet.slacks :]).astype(np.int64)
    kept = np.flatnonzero(counts)
    patterns = Judge(problem).patterns(found.judged.take(rows[chosen[kept]]))
    return Layout(patterns=tuple(patterns), counts=tuple(counts[kept].tolist()))


def _promising(sheet: _Sheet, fixed: Flags, pool: Whole, deadline: Deadline) -> Whole:
    """The best columns at the relaxed prices and at prices shaken, for few whole devices decide more than those see."""
    every, pools = np.arange(len(pool)), np.unique(pool)
    if len(every) <= COLUMNS_MAX or (duals := _prices(sheet, fixed, pool, deadline)) is None:
        return every
    rng, chosen = np.random.default_rng(1), [np.flatnonzero(fixed)]
    each = max(1, COLUMNS_MAX // ((1 + SHAKES) * len(pools)))
    for shake in range(1 + SHAKES):
        factor = np.exp(rng.normal(0.0, SHAKE * (shake > 0), len(duals)))
        chosen += _best_of(sheet.reduced(duals * factor), pool, each)
    return np.unique(np.concatenate(chosen))


def _prices(sheet: _Sheet, fixed: Flags, pool: Whole, deadline: Deadline) -> Floats | None:
    """Of the relaxed optimum, from few columns and those that are worth more at its prices; None: not in time."""
    chosen, missing = np.flatnonzero(fixed), np.ones(len(pool), dtype=bool)
    while True:
        missing[chosen] = False
        relaxed = create(ENGINE).solve(sheet.program(chosen, integer=False), Limits(time_s=deadline.left_s))
        if relaxed.row_duals is None:
            return None
        reduced = np.where(missing, sheet.reduced(relaxed.row_duals), np.inf)
        better = np.concatenate(_best_of(reduced, pool, ENTER_MAX))
        better = better[reduced[better] < -DUST]
        if not len(better):
            return relaxed.row_duals
        chosen = np.concatenate([chosen, better])


def _best_of(reduced: Floats, pool: Whole, most: int) -> list[Whole]:
    """Of every pool the columns that cost least, so many at most."""
    mine = (np.flatnonzero(pool == number) for number in np.unique(pool).tolist())
    return [at[np.argsort(reduced[at], kind="stable")[:most]] for at in mine]


def _stays(found: Contents, standing: Sequence[Standing]) -> dict[int, int]:
    """Of those rows that stand, on how many devices."""
    held = Patterns.of([item.pattern for item in standing], found.judged.rows.variants.shape[1])
    devices = {key.tobytes(): item.devices for key, item in zip(held.keys, standing, strict=True)}
    keys = enumerate(key.tobytes() for key in found.judged.rows.keys)
    return {row: devices[key] for row, key in keys if key in devices}


class _Sheet:
    """Contents as columns. Rows: what must be served, what is sized for, fewest replicas, most of them, devices."""

    def __init__(self, problem: JointProblem, found: Contents, most: Floats, worth: Floats) -> None:
        work = problem.workloads
        self.slacks = 3 * len(work)
        self.problem, self.most, self.worth = problem, most, worth
        self.fewest = np.array([float(item.replicas_min) for item in work])
        self.highest = np.array([float(item.replicas_max) for item in work])
        pools = np.eye(len(problem.pools))[problem.kind_pool[found.judged.rows.kind]]
        granted, replicas = found.granted_rps, found.replicas
        self.cells = np.concatenate([granted, granted, replicas, replicas, pools], axis=1)
        weight = problem.weight / problem.weight.mean()
        self.price = np.concatenate([SHORT_FULL_RPS * weight, HEADROOM_FULL_RPS * weight, SHORT_FULL_RPS * weight])

    def reduced(self, duals: Floats) -> Floats:
        """What columns cost at these prices."""
        return np.asarray(-self.worth - self.cells @ duals)

    def program(self, chosen: Whole, *, integer: bool) -> Program:
        """The programme over some of the contents."""
        rows, cells = ProgrammeRows(), self.cells[chosen]
        slack = rows.add_columns(self.price, np.full(self.slacks, np.inf), integer=False)
        take = rows.add_columns(-self.worth[chosen], self.most[chosen], integer=integer)
        free = np.full(len(self.highest) + len(self.problem.pools), -np.inf)
        sides = rows.add_rows(
            np.concatenate([self.problem.least_rps, self.problem.rate_rps, self.fewest, free]),
            np.concatenate([np.full(self.slacks, np.inf), self.highest, self.problem.pool_devices]),
        )
        rows.enter(sides[: self.slacks], slack, 1.0)
        column, row = np.nonzero(cells)
        rows.enter(row, take[column], cells[column, row])
        return rows.program()


def contents_of(problem: JointProblem, given: tuple[Pattern, ...]) -> Contents:
    """Everything that is looked at, what is handed in first."""
    width = max(MEMBERS_MAX, max((len(item.variants) for item in given), default=0))
    rows = Patterns.chained([Patterns.of(given, width), *_rows(problem, width)])
    both = [Judge(problem, eager=eager).judge(rows) for eager in (True, False)]
    lawful = [np.flatnonzero(item.lawful) for item in both]
    judged = Judged.chained([item.take(chosen) for item, chosen in zip(both, lawful, strict=True)])
    return Contents.of(problem, judged, np.concatenate(lawful) < len(given))


def _rows(problem: JointProblem, width: int) -> Iterator[Patterns]:
    """Of every pool at its highest clock: few members first, in as many partings as there is room for."""
    for pool, place in enumerate(problem.pools):
        clock = int(problem.kind_clock_mhz[problem.kind_pool == pool].max(initial=0))
        kinds = problem.like(pool, clock)
        able = np.flatnonzero(problem.allowed[pool])
        for size in range(1, min(MEMBERS_MAX, place.clients, len(able)) + 1):
            most = ROWS_MAX // max(1, comb(len(able), size) * len(kinds))
            partings = problem.partings(size, most)
            if not len(partings):
                break
            groups = np.array(list(combinations(able.tolist(), size)), dtype=np.int64)
            yield _crossed(kinds, groups, partings, width)


def _crossed(kinds: list[int], groups: Whole, partings: Whole, width: int) -> Patterns:
    return Patterns(
        kind=np.repeat(np.array(kinds, dtype=np.int64), len(groups) * len(partings)),
        variants=np.tile(np.repeat(groups, len(partings), axis=0), (len(kinds), 1)),
        shares_pct=np.tile(partings, (len(kinds) * len(groups), 1)),
    ).widened(width)
