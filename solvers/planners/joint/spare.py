"""What is done with spare capacity: contents of devices that serve more, beside the cheapest plan or instead of it.

`fill`: a service whose demand is not counted and whose promise says nothing of waiting is open-ended: its declared rate
is a floor, and whatever more it serves counts by its priority. On devices that carry nothing but such services, and on
which nothing stands yet, contents are exchanged for contents that serve more in all; declared rates come first, and no
cap is exceeded. Whole devices are never added. Services with budgets, quotas or spread are left alone.

`pursued`, for operators whose policy names capacity before cost: of every pool, sets of workloads in partings of the
device that leave less than a step, judged with the batches of the highest granted rate and with the largest ones; and
of what carries something, parts of that with others beside them. Of whole devices least of what must be served is then
left unserved or interrupted while replacements launch, and most is carried in full batches. Beside the busiest moments
of before there is a margin for what is asked now alone: what rises is served before it is short, and nothing is kept
idle for what has passed. Where devices are coupled, with jobs and very many workloads the cheapest layout is all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, combinations, combinations_with_replacement
from math import comb

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole, unbeaten
from solvers.domain.ids import ServiceId, WorkloadId
from solvers.domain.policy import Term
from solvers.domain.workload import WorkloadKind
from solvers.engines.base import Limits, Program, create
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Columns
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seating import match
from solvers.planners.joint.seat.seats import DUST, DUST_W, Floor, Move, Seats, members_of
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.prospects import GroupTurnover, Prospects, StandingGroups
from solvers.planners.joint.write import CEILING_PART
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.needs import sized_for_rps
from solvers.problems.patterns import EMPTY, Judged, Layout, Pattern, Patterns

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
"""Full requests/s that one request/s is worth that must be served and is not."""
HEADROOM_FULL_RPS = 100.0
"""The same, of what is only sized for."""
WORKLOADS_MAX = 100
"""Beyond, contents of more than one replica are too many to look at."""
COLUMNS_MAX, ENTER_MAX = 1600, 50
GROUPS_MAX, CROSSED_MAX, NEAR_MAX = 8, 2400, 100
"""Groups of devices that carry the same up to which each is looked at; their contents, and those that leave some."""
SHAKES, SHAKE = 30, 0.5
"""How often, and how far, the relaxed prices are shaken."""
NODES, GAP, ENGINE = 100.0, 2e-3, "highs"


def fill(seats: Seats, open_to: Collection[WorkloadId], deadline: Deadline, stood: Mapping[int, Pattern]) -> bool:
    """Keep what was filled before, and exchange other contents until nothing serves more or the time has ended; whether
    anything changed. `stood`: what stands, by device.
    """
    problem = seats.floor.problem
    mine = frozenset(number for number, item in enumerate(problem.workloads) if item.id in open_to)
    changed = _keep_standing(seats, mine, stood)
    look_s = LOOK_S_PER_WORKLOAD * len(problem.workloads)
    for pool in range(len(problem.pools) if mine else 0):
        free = (device for device in seats.floor.devices(pool) if device not in seats.floor.held)
        devices = [device for device in free if _all_of(problem, seats.patterns[device], mine)]
        if deadline.left_s > look_s and 0 < len(devices) * len(problem.workloads) <= EXCHANGED_MAX:
            table = _best(seats, _contents(seats.floor.judge, pool, sorted(mine), deadline))
            known: Known = {}
            while not deadline.over and _improve(seats, table, devices, known):
                changed = True
    return changed


def _all_of(problem: JointProblem, pattern: Pattern | None, mine: Collection[int]) -> bool:
    return pattern is not None and all(problem.variants[item].workload in mine for item in pattern.variants)


def _contents(judge_all: Judge, pool: int, mine: Sequence[int], deadline: Deadline) -> Contents:
    """Few replicas first, in as many partings as there is time for, at the highest clock that is borne."""
    problem, made = judge_all.problem, [judge_all.judge(Patterns.none(MEMBERS_MAX))]
    variants = np.flatnonzero(problem.allowed[pool] & np.isin(problem.variant_workload, mine)).tolist()
    kinds = [kind for clock in reversed(problem.clocks_mhz(pool)) for kind in problem.like(pool, clock)]
    left = JUDGED_MAX
    for size in range(1, MEMBERS_MAX + 1):
        count = comb(len(variants) + size - 1, size)
        if not 0 < count <= left or deadline.over:
            break
        partings = problem.partings(size, left // count)
        left -= count * len(partings)
        if len(partings):
            groups = np.array(list(combinations_with_replacement(variants, size)), dtype=np.int64)
            judged = judge_all.judge(Patterns.crossed(kinds, groups, partings).widened(MEMBERS_MAX))
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
        rates = judged.by_workload(problem, judged.capacity_rps)
        return Contents(judged, fixed, rates, judged.by_workload(problem, judged.rows.variants >= 0))

    def dynamic_w(self, judge: Judge) -> Floats:
        """What each draws above idle."""
        return self.judged.draw_w - judge.idle_w[judge.problem.kind_pool[self.judged.rows.kind]]


def _best(seats: Seats, found: Contents) -> Contents:
    """The best of what was found, the most valuable first, none worse than another in everything."""
    rates, watts = found.granted_rps, found.dynamic_w(seats.floor.judge)
    sums = np.column_stack([-rates, watts]) if len(seats.floor.room_w) else -rates
    order = np.argsort(-rates @ seats.floor.problem.weight, kind="stable")
    return found.take(unbeaten(sums, order, DUST, KEPT_MAX))


Known = dict[tuple[object, ...], tuple[tuple[object, ...], tuple[float, Judged] | None]]
"""By what devices carry and share: what the best exchange was, and by which numbers."""


def _improve(seats: Seats, table: Contents, devices: Sequence[int], known: Known) -> bool:
    """The one exchange, on one device or else on two, that gains most."""
    for size in (1, 2) if len(devices) <= PAIRS_MAX else (1,):
        best: tuple[float, tuple[int, ...], Judged] | None = None
        seen: set[tuple[object, ...]] = set()
        of_all = _of_all(seats, table, size)
        for at in combinations(devices, size):
            # Devices that are equal in this need be tried once.
            now = [seats.patterns[device] for device in at]
            key = (*(item and item.key for item in now), *seats.floor.domain_of[list(at)].ravel().tolist())
            if key in seen:
                continue
            seen.add(key)
            numbers = (*of_all, *_of_own(seats, table, at))
            if key not in known or known[key][0] != numbers:
                known[key] = numbers, _exchange(seats, table, at)
            found = known[key][1]
            if found is not None and (best is None or found[0] > best[0] + DUST):
                best = found[0], at, found[1]
        if best is not None:
            for device, made in zip(best[1], seats.floor.judge.patterns(best[2]), strict=True):
                seats.put(device, made)
            return True
    return False


def _of_all(seats: Seats, table: Contents, size: int) -> tuple[bytes, bytes]:
    """What an exchange on any devices depends on: who is short by how much, and who may have only so many more."""
    count = np.array(seats.replicas, dtype=np.float64)
    more = np.maximum(np.array([item.replicas_max for item in seats.floor.problem.workloads]), count) - count
    bound = more < size * table.replicas.max(axis=0, initial=0.0)
    short_rps = np.maximum(0.0, seats.floor.problem.least_rps - seats.served_rps)
    return short_rps.tobytes(), np.where(bound, more, np.inf).tobytes()


def _of_own(seats: Seats, table: Contents, at: tuple[int, ...]) -> Iterator[object]:
    """What an exchange on these devices depends on besides."""
    of = seats.floor.problem.variant_workload
    for device in at:
        works = of[[variant for variant, _ in members_of(seats.patterns[device])]]
        yield seats.served_rps[works].tobytes()
        yield tuple(seats.replicas[work] for work in works.tolist())
        yield _borne(seats, table, device).tobytes()
    yield _left_together_w(seats, at) if len(at) > 1 else None


def _borne(seats: Seats, table: Contents, device: int) -> Flags:
    """Of these contents those that the power domains bear on the device alone."""
    most_w = seats.left_at(device) + seats.dynamic_w(device) + DUST_W
    return np.asarray(table.dynamic_w(seats.floor.judge) <= most_w)


def _left_together_w(seats: Seats, at: tuple[int, ...]) -> float:
    """What the domains leave that two devices share."""
    shared = np.intersect1d(*seats.floor.domain_of[list(at)])
    return float(np.append(seats.left_w, np.inf)[shared].min(initial=np.inf))


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
    fits = [_borne(seats, contents, device) for device in at]
    # All others keep their bounds, whatever is exchanged here.
    low, few, lack = (np.flatnonzero(side > 0.0) for side in (least, fewest, floors - served + rates))
    many = np.flatnonzero(most < len(at) * contents.replicas.max(axis=0, initial=0.0))

    def made(table: Floats, works: Whole) -> Floats:
        one = table.take(works, axis=1)
        return one if len(at) == 1 else one[:, None] + one[None]

    value, able = reduce(np.add.outer, [worth] * len(at)), reduce(np.logical_and.outer, fits)
    if len(at) > 1:
        # Each fits alone; who shares a power domain has to fit together.
        more_w = reduce(np.add.outer, [watts - seats.dynamic_w(device) for device in at])
        able = able & (more_w <= _left_together_w(seats, at) + DUST_W)
    able = able & (made(contents.granted_rps, low) >= least[low]).all(axis=-1)
    able = able & (made(contents.replicas, few) >= fewest[few]).all(axis=-1)
    able = able & (made(contents.replicas, many) <= most[many]).all(axis=-1)
    short = np.maximum(0.0, (floors - served + rates)[lack] - made(contents.granted_rps, lack)) @ weights[lack]
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


def pursued(
    reading: Reading, floor: Floor, warm: Layout, clock: Deadline
) -> tuple[Layout, dict[int, Pattern] | None] | None:
    """What carries most, and what of it has its devices; None: not in time. Raises EngineError as engines do."""
    problem, standing = reading.problem, reading.stands.patterns
    found = contents_of(problem, (*standing, *warm.patterns))
    relaxed = _of_pools(reading, found)
    if clock.over or (duals := _prices(relaxed, clock)) is None:
        return None
    some, each = found.take(_promising(relaxed, duals)), len(standing) <= GROUPS_MAX
    sheet = _of_groups(reading, some, duals) if each else _of_pools(reading, some)
    limits = Limits(time_s=clock.time_left_s, work=NODES, gap=GAP)
    answer = create(ENGINE).solve(sheet.program(np.arange(len(sheet.found)), integer=True), limits)
    if answer.values is None:
        return None
    counts = np.rint(answer.values[len(sheet.price) :]).astype(np.int64)
    kept = np.flatnonzero(counts)
    there, _ = match(floor, reading.stands if each else EMPTY)
    held = [[at for at in sorted(there) if there[at] == item] for item in standing] + [[] for _ in problem.pools]
    seated, loose = dict[int, Pattern](), Counter[Pattern]()
    for row, pattern in zip(kept, Judge(problem).patterns(sheet.found.judged.take(kept)), strict=True):
        mine = [held[sheet.place[row]].pop() for _ in range(counts[row]) if held[sheet.place[row]]]
        seated |= dict.fromkeys(mine, pattern)
        loose[pattern] += int(counts[row]) - len(mine)
    return Layout.of(+loose), seated if each else None


def _of_groups(reading: Reading, some: Contents, duals: Floats) -> _Sheet:
    """What each group of devices may carry next: these contents, and such as leave some of what it carries as it is."""
    problem, width = reading.problem, some.judged.rows.variants.shape[1]
    stands = StandingGroups.of(problem, reading.stands, len(reading.stands.patterns), width)
    # It has the largest batches that it bears, and holds their memory.
    stands = replace(stands, judged=Judge(problem, eager=True).judge(stands.judged.rows))
    pools, each = problem.kind_pool[some.judged.rows.kind], max(1, CROSSED_MAX // len(stands.devices))
    parts, groups = list[Contents](), list[Whole]()
    for number in np.flatnonzero(stands.devices).tolist():
        made = [_best_worth(reading, some.take(np.flatnonzero(pools == stands.pool[number])), duals, each)]
        if number < stands.count:
            held = stands.judged.rows.take(np.array([number]))
            beside = _beside(problem, int(stands.pool[number]), held.parts(), each)
            made.append(_best_worth(reading, _judged(problem, Patterns.chained([*beside])), duals, NEAR_MAX))
        parts += made
        groups.append(np.full(sum(map(len, made)), number))
    found, group = Contents.chained(parts), np.concatenate(groups)
    change = GroupTurnover.of(stands, Prospects(judged=found.judged, group=group))
    np.add.at(ends_rps := np.zeros_like(found.replicas), (change.column, change.work), change.ends_rps)
    before_rps = stands.judged.served_rps(problem, stands.devices[: stands.count])
    spare_rps = np.maximum(0.0, before_rps - problem.least_rps)
    return _Sheet(reading, found, group, stands.devices, ends_rps, spare_rps)


def _best_worth(reading: Reading, found: Contents, duals: Floats, most: int) -> Contents:
    return found.take(np.argsort(_of_pools(reading, found).reduced(duals), kind="stable")[:most])


def _sized_rps(reading: Reading) -> Floats:
    """What is asked now, with its margin: what was asked before, and may come again, has no other one."""
    policy, demands, problem = reading.snapshot.policy, reading.snapshot.demands_by_service(), reading.problem
    asked = (demands.get(ServiceId(work.id)) for work in problem.workloads)
    now_rps = [np.inf if item is None else sized_for_rps(item.rate_rps_mean, policy) for item in asked]
    return np.clip(now_rps, problem.least_rps, problem.rate_rps)


def _promising(sheet: _Sheet, duals: Floats) -> Whole:
    """The best columns at the relaxed prices and at prices shaken, for few whole devices decide more than those see."""
    if len(pool := sheet.place) <= COLUMNS_MAX:
        return np.arange(len(pool))
    rng, chosen = np.random.default_rng(1), [np.flatnonzero(sheet.found.fixed)]
    each = max(1, COLUMNS_MAX // ((1 + SHAKES) * len(np.unique(pool))))
    for shake in range(1 + SHAKES):
        factor = np.exp(rng.normal(0.0, SHAKE * (shake > 0), len(duals)))
        chosen += _best_of(sheet.reduced(duals * factor), pool, each)
    return np.unique(np.concatenate(chosen))


def _prices(sheet: _Sheet, deadline: Deadline) -> Floats | None:
    """Of the relaxed optimum, from few columns and those that are worth more at its prices; None: not in time."""
    chosen, missing = np.flatnonzero(sheet.found.fixed), np.ones(len(sheet.found), dtype=bool)
    while True:
        missing[chosen] = False
        relaxed = create(ENGINE).solve(sheet.program(chosen, integer=False), Limits(time_s=deadline.left_s))
        if relaxed.row_duals is None:
            return None
        reduced = np.where(missing, sheet.reduced(relaxed.row_duals), np.inf)
        better = np.concatenate(_best_of(reduced, sheet.place, ENTER_MAX))
        better = better[reduced[better] < -DUST]
        if not len(better):
            return relaxed.row_duals
        chosen = np.concatenate([chosen, better])


def _best_of(reduced: Floats, pool: Whole, most: int) -> list[Whole]:
    """Of every pool the columns that cost least, so many at most."""
    mine = (np.flatnonzero(pool == number) for number in np.unique(pool).tolist())
    return [at[np.argsort(reduced[at], kind="stable")[:most]] for at in mine]


class _Sheet:
    """Contents as columns. Rows: what must be served, what is sized for, fewest replicas, what may end before it is
    replaced, most replicas, devices.
    """

    def __init__(
        self, reading: Reading, found: Contents, place: Whole, devices: Whole, ends_rps: Floats, spare_rps: Floats
    ) -> None:
        problem, work = reading.problem, reading.problem.workloads
        self.found, self.place, self.devices = found, place, devices.astype(np.float64)
        fewest, highest = np.array([(item.replicas_min, item.replicas_max) for item in work], dtype=np.float64).T
        self.lower = np.concatenate([problem.least_rps, _sized_rps(reading), fewest, -spare_rps])
        self.upper = np.concatenate([highest, devices])
        self.worth = found.judged.full_rps.sum(axis=1)
        rates, replicas, places = found.granted_rps, found.replicas, np.eye(len(devices))[place]
        self.cells = np.concatenate([rates, rates, replicas, -ends_rps, replicas, places], axis=1)
        weight, period_s = problem.weight / problem.weight.mean(), reading.snapshot.policy.interruption_over_s
        each = (SHORT_FULL_RPS, HEADROOM_FULL_RPS, SHORT_FULL_RPS, SHORT_FULL_RPS * (problem.launch_s / period_s))
        self.price = np.concatenate([item * weight for item in each])

    def reduced(self, duals: Floats) -> Floats:
        """What columns cost at these prices."""
        return np.asarray(-self.worth - self.cells @ duals)

    def program(self, chosen: Whole, *, integer: bool) -> Program:
        """The programme over some of the contents."""
        cells, every = self.cells[chosen], np.arange(len(self.price))
        column, row = np.nonzero(cells)
        most, value = self.devices[self.place[chosen]], cells[column, row]
        slack = Columns.of(self.price, column=every, row=every, value=np.ones(len(every)))
        take = Columns.of(-self.worth[chosen], column=column, row=row, value=value, upper=most)
        return Columns.joined([slack, take]).programme(
            np.repeat([False, integer], [len(slack), len(take)]),
            np.concatenate([self.lower, np.full(len(self.upper), -np.inf)]),
            np.concatenate([np.full(len(every), np.inf), self.upper]),
        )


def _of_pools(reading: Reading, found: Contents) -> _Sheet:
    """Whatever stands where."""
    place, nothing = reading.problem.kind_pool[found.judged.rows.kind], np.zeros_like(found.replicas)
    return _Sheet(reading, found, place, reading.problem.pool_devices, nothing, nothing[:1].sum(axis=0))


def contents_of(problem: JointProblem, given: tuple[Pattern, ...]) -> Contents:
    """Everything that is looked at, what is handed in first."""
    width = max(MEMBERS_MAX, max((len(item.variants) for item in given), default=0))
    none = Patterns.singles(np.array([0]), np.array([-1]), np.array([0])).widened(width)
    every = (_beside(problem, pool, [none], ROWS_MAX) for pool in range(len(problem.pools)))
    return _judged(problem, Patterns.chained([Patterns.of(given, width), *chain.from_iterable(every)]), len(given))


def _judged(problem: JointProblem, rows: Patterns, given: int = 0) -> Contents:
    """With both choices of batches; the first ones are handed in."""
    both = [Judge(problem, eager=eager).judge(rows) for eager in (True, False)]
    lawful = [np.flatnonzero(item.lawful & (item.rows.variants[:, 0] >= 0)) for item in both]
    judged = Judged.chained([item.take(chosen) for item, chosen in zip(both, lawful, strict=True)])
    return Contents.of(problem, judged, np.concatenate(lawful) < given)


def _beside(problem: JointProblem, pool: int, parts: Iterable[Patterns], most: int) -> Iterator[Patterns]:
    """On a device of a pool each of these contents, and at its highest clock others in what it leaves: few members
    first, in as many partings as there is room for.
    """
    kinds = problem.like(pool, problem.clocks_mhz(pool)[-1])
    able = np.flatnonzero(problem.allowed[pool]).tolist()
    for part in parts:
        width = part.variants.shape[1]
        kept = int(np.count_nonzero(part.variants >= 0))
        free_pct, places = WHOLE_PCT - int(part.shares_pct.sum()), min(MEMBERS_MAX, problem.pools[pool].clients) - kept
        yield part
        for size in range(1, min(places, len(able)) + 1):
            groups = np.array(list(combinations(able, size)), dtype=np.int64)
            partings = problem.partings(size, most // max(1, len(groups) * len(kinds)), free_pct)
            if not len(partings):
                break
            yield Patterns.crossed(kinds, groups, partings, part.narrowed(kept)).widened(width)
