"""Ruin and recreate: a few related devices are packed anew, again and again, until the deadline.

Devices are taken out that share workloads with one that lacks something or was drawn; what they carried and what lacks
is asked of candidates (what was there, its neighbours, random packs priced by the programme's own duals), within what
the rest of the solution leaves of every rule, as a small linear programme that is made whole device by device.
Acceptance is annealing on worth, and the best so far is returned: never worse than what it began with. It ends when
nothing better was found for long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.engines.highs import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.planners.joint.solve.solution import SERVED, Entries, Rules, Solution, neighbours
from solvers.planners.joint.solve.trim import descend
from solvers.problems.patterns import Layout, Prices

_CROWDED = 0.4
"""Pressure of the others that items are valued at."""
_STEPS = (10, 3)
_ROUNDS = 5
_DRAWN = 160
_KEPT = 60
"""Packs kept of each draw, best first."""
_BROKEN = 1e-6
_DUST = 1e-9
_DEVICES = 8
"""Taken out at once."""
_SHORT_FIRST = 0.7
"""How often the search begins at a workload that lacks something, while there is any."""
_LACKING = 300
"""Workloads that lack something elsewhere and are looked after in the same ruin."""
_HEAT = 2e-5
"""Part of the worth that a step may lose at the beginning."""
_LEAST_GAIN = 1e-7
_UNITS = 25
"""Of work that one trial takes."""
_PATIENCE = 20
"""Trials in a row without anything better after which it ends by itself, and one more for every so many devices:"""
_PATIENCE_DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to pack: variants, and by workload what a part of the rate is worth and how much is still asked."""

    variants: Whole
    usd: Floats
    part: Floats


class Packs:
    """Values of items are kept by kind and variant as they are needed."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._known: dict[int, tuple[Floats, Floats]] = {}

    def draw(self, wanted: Wanted, kinds: Whole, rng: np.random.Generator) -> Patterns:
        """One pack for each of these kinds."""
        problem, width = self.judge.problem, self.judge.width
        shares = problem.shares_pct
        variants = np.full((len(kinds), width), -1, dtype=np.int64)
        held = np.zeros((len(kinds), width), dtype=np.int64)
        if not len(wanted.variants):
            return Patterns(kind=kinds, variants=variants, shares_pct=held)
        names, place = np.unique(kinds, return_inverse=True)
        value, memory = self._values(names, wanted)
        owner = self.judge.workload[wanted.variants]
        count = len(wanted.variants)
        noise = rng.uniform(0.3, 1.0, (len(kinds), count))
        free = np.full(len(kinds), 100)
        room = self.judge.room_mib[problem.kind_pool[kinds]]
        taken = np.zeros((len(kinds), count), dtype=bool)
        clients = self.judge.clients[problem.kind_pool[kinds]]
        for step in range(width):
            score = value[place] / shares[None, None, :] * noise[:, :, None]
            fits = (shares[None, None, :] <= free[:, None, None]) & (memory[place] <= room[:, None, None])
            fits &= ~taken[:, :, None] & (step < clients)[:, None, None]
            score = np.where(fits, score, 0.0).reshape(len(kinds), -1)
            best = np.argmax(score, axis=1)
            packed = np.flatnonzero(score[np.arange(len(kinds)), best] > 0)
            if not len(packed):
                break
            item, size = best[packed] // len(shares), best[packed] % len(shares)
            variants[packed, step], held[packed, step] = wanted.variants[item], shares[size]
            free[packed] -= shares[size]
            room[packed] -= memory[place[packed], item, size]
            taken[packed] |= owner[None, :] == owner[item][:, None]
        return Patterns(kind=kinds, variants=variants, shares_pct=held)

    def _values(self, kinds: Whole, wanted: Wanted) -> tuple[Floats, Floats]:
        """Kind x variant x share: worth and memory of an item."""
        rate = self.judge.problem.rate_rps[self.judge.workload[wanted.variants]][:, None]
        work = self.judge.workload[wanted.variants]
        values, memories = [], []
        for kind in kinds.tolist():
            if kind not in self._known:
                self._known[kind] = self._items(kind)
            capacity, memory = (item[wanted.variants] for item in self._known[kind])
            part = np.minimum(capacity / np.maximum(rate, 1e-12), wanted.part[work][:, None])
            values.append(part * wanted.usd[work][:, None])
            memories.append(memory)
        return np.array(values), np.array(memories)

    def _items(self, kind: int) -> tuple[Floats, Floats]:
        """Variant x share: capacity beside some neighbours and memory."""
        problem = self.judge.problem
        table, shares = int(problem.kind_table[kind]), problem.shares_pct
        variants = np.repeat(np.arange(len(problem.variants)), len(shares))
        slow = problem.crowd[table] * (1 + problem.sensitivity[table] * _CROWDED)
        rows = Patterns(
            kind=np.full(len(variants), kind),
            variants=variants[:, None],
            shares_pct=np.tile(shares, len(problem.variants))[:, None],
        )
        served = self.judge.judge_slowed(rows, slow[variants][:, None])
        shape = (len(problem.variants), len(shares))
        capacity = np.where(served.lawful, served.capacity_rps[:, 0], 0.0).reshape(shape)
        return capacity, served.memory_mib[:, 0].reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruin:
    """What is left when some devices of a solution (row numbers, one device each) are taken out."""

    rest: Solution
    rows: Patterns
    workloads: Whole
    asked: Floats
    """Part of each such workload's rate that the rest does not serve."""
    room: Floats
    """Of every rule."""
    floors: Floats
    """Replicas that the rest lacks, by floor."""
    usd: float
    """What the devices cost, and what of these workloads lacks while they stand."""


def ruin_of(solution: Solution, devices: Whole, lacking: Whole) -> Ruin:
    """Take devices out; of what lacks elsewhere, these workloads are looked after too."""
    rules = solution.rules
    problem = rules.judge.problem
    counts = solution.counts.copy()
    np.subtract.at(counts, devices, 1)
    rest = Solution(rules=rules, judged=solution.judged, counts=counts)
    rows = solution.judged.rows.take(devices)
    variants = rows.variants[rows.variants >= 0]
    rate = problem.rate_rps
    part = np.where(rate > 0, np.maximum(0.0, 1 - rest.served_rps() / np.where(rate > 0, rate, 1.0)), 0.0)
    workloads = np.union1d(rules.judge.workload[variants], lacking)
    usage = rules.usage(rest.judged, counts)
    lack = solution.lacking()
    looked_after = np.union1d(workloads, rules.floors.workload)
    limit = np.maximum(rules.upper, rules.usage(solution.judged, solution.counts))
    return Ruin(
        rest=rest,
        rows=rows,
        workloads=workloads,
        asked=part[workloads],
        room=limit - usage,
        floors=np.maximum(0.0, rules.floors.least - rest.replicas()),
        usd=float(solution.judged.usd_per_h[devices].sum() + lack[looked_after] @ problem.unserved_usd[looked_after]),
    )


class Recreation:
    def __init__(self, rules: Rules, packs: Packs, usd: Floats) -> None:
        self.rules, self.packs, self.usd = rules, packs, usd

    def recreate(self, ruin: Ruin, most_usd: float, rng: np.random.Generator) -> Solution | None:
        """The solution with the ruin filled for at most so much, unserved demand priced in; None when no filling was
        found or none can be had.
        """
        problem, rules = self.rules.judge.problem, self.rules
        near, _ = neighbours(problem, ruin.rows, _STEPS)
        some = self._judged(Patterns.chained([ruin.rows, near]))
        rows, counts, spent = [ruin.rest.judged.rows], [ruin.rest.counts], 0.0
        left, rounds = ruin, _ROUNDS
        while True:
            some, parts, value = self._relaxed(left, some, rounds, rng)
            if parts is None or spent + value > most_usd:
                return None
            number = self._decided(left, some, parts, rng)
            if not number.any():
                break
            chosen = np.flatnonzero(number)
            picked, times = some.take(chosen), number[chosen]
            rows.append(picked.rows)
            counts.append(times)
            spent += float(picked.usd_per_h @ times)
            left = _less(rules, left, picked, times)
            rounds = 1
        return Solution.of_rows(rules, Patterns.chained(rows), np.concatenate(counts))

    def _relaxed(
        self, ruin: Ruin, some: Judged, rounds: int, rng: np.random.Generator
    ) -> tuple[Judged, Floats | None, float]:
        """Candidates with packs added, how many devices carry each, and the worth of that."""
        sides, slack = self._sides(ruin)
        master = ColumnMaster(*sides)
        master.add(slack)
        master.add(self._columns(ruin, some))
        relaxed = master.solve()
        for _ in range(rounds):
            if relaxed is None:
                break
            usd = self.usd.copy()
            usd[ruin.workloads] = np.maximum(relaxed.row_duals[: len(ruin.workloads)], 0.0)
            packs = self._packs(ruin, usd, rng)
            if packs is None:
                break
            master.add(self._columns(ruin, packs))
            some = Judged.chained([some, packs])
            relaxed = master.solve()
        if relaxed is None:
            return some, None, np.inf
        return some, relaxed.values[len(slack) :], relaxed.value

    def _decided(self, ruin: Ruin, some: Judged, parts: Floats, rng: np.random.Generator) -> Whole:
        """Whole parts, or one device of the largest fraction that no rule forbids; nothing when nothing is used."""
        number = np.floor(parts + _BROKEN).astype(np.int64)
        if number.any():
            return number
        order = np.argsort(-parts * rng.uniform(0.7, 1.0, len(parts)), kind="stable")
        for column in order[: np.count_nonzero(parts > _BROKEN)].tolist():
            usage = self.rules.usage(some.take(np.array([column])), np.ones(1, dtype=np.int64))
            if np.all(usage <= ruin.room + _BROKEN * np.maximum(1.0, np.abs(ruin.room))):
                number[column] = 1
                break
        return number

    def _judged(self, rows: Patterns) -> Judged:
        judged = self.rules.judge.judge(rows)
        _, first = np.unique(judged.rows.keys, axis=0, return_index=True)
        first = np.sort(first)
        return judged.take(first[judged.lawful[first] & (judged.rows.variants[first, 0] >= 0)])

    def _packs(self, ruin: Ruin, usd: Floats, rng: np.random.Generator) -> Judged | None:
        """Those random packs that are worth most for what they cost."""
        problem = self.rules.judge.problem
        asked = np.zeros(len(problem.workloads))
        asked[ruin.workloads] = ruin.asked
        work = problem.variant_workload
        able = np.flatnonzero((asked[work] > _DUST) & (usd[work] > 0))
        open_kinds = np.flatnonzero(ruin.room[: len(problem.pools)][problem.kind_pool] >= 1)
        if not len(able) or not len(open_kinds):
            return None
        wanted = Wanted(variants=able, usd=usd, part=asked)
        packs = self._judged(self.packs.draw(wanted, rng.choice(open_kinds, _DRAWN), rng))
        at, place = np.nonzero(packs.rows.variants >= 0)
        owner = work[packs.rows.variants[at, place]]
        part = np.minimum(packs.capacity_rps[at, place] / np.maximum(problem.rate_rps[owner], 1e-12), asked[owner])
        gain = np.bincount(at, weights=part * usd[owner], minlength=len(packs.rows)) - packs.usd_per_h
        best = np.argsort(-gain, kind="stable")[:_KEPT]
        return packs.take(best)

    def _sides(self, ruin: Ruin) -> tuple[tuple[Floats, Floats], Columns]:
        """Sides of the rows (demand, rules, least replicas), and what may lack at its price."""
        problem, rules = self.rules.judge.problem, self.rules
        demands, floors = len(ruin.workloads), len(ruin.floors)
        lower = np.concatenate([ruin.asked, np.full(rules.size, -np.inf), ruin.floors])
        upper = np.concatenate([np.full(demands, np.inf), ruin.room, np.full(floors, np.inf)])
        short = problem.unserved_usd[rules.floors.workload] * rules.floors.weight / rules.floors.least
        row = np.concatenate([np.arange(demands), demands + rules.size + np.arange(floors)])
        cost = np.concatenate([problem.unserved_usd[ruin.workloads], short])
        slack = Columns.of(cost, column=np.arange(len(row)), row=row, value=np.ones(len(row)))
        return (lower, upper), slack

    def _columns(self, ruin: Ruin, judged: Judged) -> Columns:
        """Candidates; nothing counts for more than is asked."""
        problem, rules = self.rules.judge.problem, self.rules
        demands = len(ruin.workloads)
        place_of = np.full(len(problem.workloads), -1, dtype=np.int64)
        place_of[ruin.workloads] = np.arange(demands)
        at, place = np.nonzero(judged.rows.variants >= 0)
        owner = rules.judge.workload[judged.rows.variants[at, place]]
        number = place_of[owner]
        rate = problem.rate_rps[owner]
        part = judged.capacity_rps[at, place] / np.where(rate > 0, rate, np.inf)
        part = np.where(number >= 0, np.minimum(part, ruin.asked[number]), 0.0)
        asks = np.flatnonzero(part > _DUST)
        own = Entries(row=number[asks], pattern=at[asks], value=part[asks])
        return rules.columns(judged, own, demands, np.ones(len(ruin.floors)))


def _less(rules: Rules, ruin: Ruin, picked: Judged, times: Whole) -> Ruin:
    """What is still asked once these devices stand."""
    part = Solution(rules=rules, judged=picked, counts=times)
    rate = rules.judge.problem.rate_rps[ruin.workloads]
    served = part.served_rps()[ruin.workloads] / np.where(rate > 0, rate, np.inf)
    asked = ruin.asked - served
    return replace(
        ruin,
        asked=np.where(asked > SERVED, asked, 0.0),
        room=ruin.room - rules.usage(picked, times),
        floors=np.maximum(0.0, ruin.floors - part.replicas()),
    )


def repair(
    rules: Rules,
    layout: Layout,
    prices: Prices | None,
    deadline: Deadline,
    rng: np.random.Generator,
    *,
    until_served: bool = False,
) -> Layout:
    """A layout worth at least as much. `until_served`: done as soon as nothing lacks that must be served."""
    solution = Solution.of_layout(rules, layout)
    usd = prices.demand_usd if prices is not None else _guessed(solution)
    recreation = Recreation(rules, Packs(rules.judge), usd)
    best = current = descend(solution, deadline)
    worth = best_worth = current.worth()
    must, in_vain, patience = (
        rules.judge.problem.must_serve,
        0,
        _PATIENCE + int(current.counts.sum()) // _PATIENCE_DEVICES,
    )
    while not deadline.over and in_vain < patience:
        lacking = rng.permutation(np.flatnonzero(current.lacking() > 0))[:_LACKING]
        if not (must[lacking].any() if until_served else len(lacking) or len(current.counts)):
            break
        deadline.spend(_UNITS)
        in_vain += 1
        ruin = ruin_of(current, _related(current, rng), lacking)
        bearable = _HEAT * deadline.left_part * best_worth * rng.random()
        tried = recreation.recreate(ruin, ruin.usd + bearable - _LEAST_GAIN, rng)
        if tried is None or (current.kept() and not tried.kept()):
            continue
        tried_worth = tried.worth()
        if tried_worth > worth + bearable:
            continue
        current, worth = tried, tried_worth
        if worth < best_worth - _LEAST_GAIN:
            in_vain = 0
        if worth < best_worth:
            best, best_worth = current, worth
    return best.layout(layout)


def _guessed(solution: Solution) -> Floats:
    """What each whole rate is worth, by what its replicas' share of the devices costs."""
    at, place, work = solution.members()
    rows = solution.judged.rows
    part = rows.shares_pct[at, place] / np.maximum(rows.shares_pct.sum(axis=1)[at], 1)
    usd = part * solution.judged.usd_per_h[at] * solution.counts[at]
    problem = solution.rules.judge.problem
    total = np.bincount(work, weights=usd, minlength=len(problem.workloads))
    return np.asarray(np.where(total > 0, total, problem.unserved_usd))


def _related(solution: Solution, rng: np.random.Generator) -> Whole:
    """Patterns of the solution, as often as devices of theirs are taken out."""
    at, _, work = solution.members()
    lacking = np.flatnonzero(solution.lacking() > 0)
    hosted = np.unique(work)
    if not len(hosted):
        return hosted
    short = np.intersect1d(lacking, hosted)
    names = short if len(short) and rng.random() < _SHORT_FIRST else hosted
    first = int(rng.choice(names))
    taken = np.zeros(len(solution.counts), dtype=np.int64)
    ring = np.zeros(len(solution.rules.judge.problem.workloads), dtype=bool)
    ring[first] = True
    for turn in range(_DEVICES):
        # Devices that share the most with what is taken out already, chance deciding among them.
        near = np.bincount(at, weights=ring[work], minlength=len(taken))
        score = np.where(solution.counts > taken, near * rng.uniform(0.5, 1.0, len(near)), 0.0)
        row = int(np.argmax(score))
        if score[row] <= 0:
            break
        taken[row] += 1
        if turn:
            ring[work[at == row]] = True
    return np.repeat(np.arange(len(taken)), taken)
