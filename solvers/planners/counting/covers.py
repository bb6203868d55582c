"""Covering many demands with counted replicas under few limited resources.

A column is one demand's whole mixture of replicas, a master programme chooses among them, and because it has only a row
per resource beside the demands, hardly more demands are split than there are resources. So the bound of the relaxation
is tight and an integer master over the same columns finds plans close to it. Two stages where not everything can be
served: first the fewest demands that must go without, proven, then the least cost. Callers bring a deadline; no clock
is read here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import Engine, Limits, ProgrammeRows
from solvers.engines.deadline import Deadline
from solvers.engines.highs import ColumnMaster, Columns
from solvers.planners.counting.demands import DUST, Covers, one_by_one

# --- The cheapest mixture of options that covers one demand, exactly, and cheap mixtures of two for many demands at
# once
#
# Options have a price and a rate, whole numbers of them must cover the demand. The search branches on counts, cheapest
# price per rate first, and gives up branches by the fractional bound; its answer comes with a bound that holds even
# when it is cut off.


NODES_MAX = 4000
NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Mixture:
    """Options (by place in the list given) and how many of each; `bound` is proven for every mixture."""

    places: tuple[int, ...]
    counts: tuple[int, ...]
    price: float
    bound: float


def cheapest(price: list[float], rate: list[float], demand: float) -> Mixture:
    order = sorted(range(len(price)), key=lambda place: (price[place] / rate[place], -rate[place]))
    search = _Search(
        price=[max(0.0, price[place]) for place in order],
        rate=[rate[place] for place in order],
        demand=demand * (1 - DUST),
    )
    search.run()
    chosen = [(order[place], count) for place, count in enumerate(search.best_counts) if count]
    return Mixture(
        places=tuple(place for place, _ in chosen),
        counts=tuple(count for _, count in chosen),
        price=search.best,
        bound=search.best if search.nodes < NODES_MAX else min(search.best, search.fractional),
    )


class _Search:
    """Depth first over counts of options in falling worth."""

    def __init__(self, price: list[float], rate: list[float], demand: float) -> None:
        self.price, self.rate, self.demand = price, rate, demand
        self.ratio = [cost / speed for cost, speed in zip(price, rate, strict=True)]
        self.fractional = self.ratio[0] * demand
        self.best = math.inf
        self.best_counts = [0] * len(price)
        self.counts = [0] * len(price)
        self.nodes = 0

    def run(self) -> None:
        self._down(0, self.demand, 0.0)

    def _down(self, place: int, missing: float, spent: float) -> None:
        """Counts of the option at `place` from the most that makes sense down to none."""
        self.nodes += 1
        cost, speed = self.price[place], self.rate[place]
        last = place + 1 == len(self.price)
        next_ratio = math.inf if last else self.ratio[place + 1]
        for count in range(math.ceil(missing / speed), -1, -1):
            rest, paid = missing - count * speed, spent + count * cost
            if rest <= 0:
                self._keep(place, count, paid)
                continue
            # Fewer of this option only leave more to the dearer ones.
            if last or paid + rest * next_ratio >= self.best * (1 - NEAR) or self.nodes >= NODES_MAX:
                break
            self.counts[place] = count
            self._down(place + 1, rest, paid)
        self.counts[place] = 0

    def _keep(self, place: int, count: int, paid: float) -> None:
        if paid < self.best:
            self.best = paid
            self.counts[place] = count
            self.best_counts = list(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duos:
    """For every demand a few cheap mixtures of at most two options: arrays of demand x rank."""

    first: Whole
    first_count: Whole
    second: Whole
    second_count: Whole
    price: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackBoard:
    """Options laid out demand x place, padded with what is never chosen."""

    option: Whole
    rate: Floats
    """Of one replica, as a part of the demand."""

    @staticmethod
    def of(problem: Covers) -> KnapsackBoard:
        """Lay out a problem's options."""
        demands = len(problem.demand)
        counts = np.bincount(problem.option_demand, minlength=demands)
        width = int(counts.max(initial=1))
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        place = np.arange(problem.options) - first[problem.option_demand]
        option = np.full((demands, width), -1, dtype=np.int64)
        option[problem.option_demand, place] = np.arange(problem.options)
        rate = np.zeros((demands, width))
        rate[problem.option_demand, place] = problem.option_rate / problem.demand[problem.option_demand]
        return KnapsackBoard(option=option, rate=rate)

    def duos(self, price: Floats, keep: int) -> Duos:
        """Many of one option and what then lacks of another, with one or two fewer of the first than would do alone."""
        with np.errstate(divide="ignore", invalid="ignore"):
            alone = np.where(self.rate > 0, np.ceil(1 / self.rate - DUST), np.inf)
            single = np.where(self.rate > 0, alone * price, np.inf)
            parts = [(single[:, :, None], np.zeros((*self.rate.shape, 1)), alone[:, :, None])]
            for fewer in (1, 2):
                count = alone - fewer
                lacking = 1 - count * self.rate
                second = np.ceil(lacking[:, :, None] / self.rate[:, None, :] - DUST)
                cost = (count * price)[:, :, None] + second * price[:, None, :]
                valid = (count >= 1)[:, :, None] & (self.rate > 0)[:, None, :] & np.isfinite(count)[:, :, None]
                parts.append((np.where(valid, cost, np.inf), second, count[:, :, None] + 0 * second))
        return self._ranked(parts, keep)

    def _ranked(self, parts: list[tuple[Floats, Floats, Floats]], keep: int) -> Duos:
        demands, width = self.rate.shape
        own = np.tile(np.arange(width), (demands, 1))
        costs = np.concatenate([cost.reshape(demands, -1) for cost, _, _ in parts], axis=1)
        seconds = np.concatenate([second.reshape(demands, -1) for _, second, _ in parts], axis=1)
        counts = np.concatenate([count.reshape(demands, -1) for _, _, count in parts], axis=1)
        pairs = np.repeat(own, width, axis=1)
        firsts = np.concatenate([own, pairs, pairs], axis=1)
        partners = np.tile(own, (1, width))
        others = np.concatenate([own, partners, partners], axis=1)
        keep = min(keep, costs.shape[1])
        best = np.argpartition(costs, keep - 1, axis=1)[:, :keep]
        best = np.take_along_axis(best, np.argsort(np.take_along_axis(costs, best, axis=1), axis=1), axis=1)

        def whole(values: Floats | Whole) -> Whole:
            taken = np.take_along_axis(values, best, axis=1)
            return np.asarray(np.where(np.isfinite(taken), taken, 0), dtype=np.int64)

        return Duos(
            first=whole(firsts),
            first_count=whole(counts),
            second=whole(others),
            second_count=whole(seconds),
            price=np.take_along_axis(costs, best, axis=1),
        )


ROUNDS_MAX = 60
KEPT_EACH_ROUND = 2
SMALL = 1e-7
DEAR = 1e30
"""Price of an option that is not there."""
COLUMNS_MAX = 12_000
WIDEST = 80
FIRST_PART = 0.4
"""Part of the time left for the columns that the relaxation asked for, before others are looked at."""
CLOSE_ENOUGH = 1e-5
"""Relative distance of bound and master at which no more mixtures are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """Counts by option, what they cost with unserved demand priced in, and what no plan can go below."""

    counts: Whole
    objective: float
    bound: float
    unserved_least: int
    """No plan leaves fewer demands unserved."""
    columns: int


@dataclass(slots=True)
class _Pool:
    """All mixtures so far: `entries` are (option, count) pairs."""

    demand: list[int] = field(default_factory=list)
    entries: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    known: set[tuple[tuple[int, int], ...]] = field(default_factory=set)

    def add(self, demand: int, entries: tuple[tuple[int, int], ...]) -> bool:
        """Whether it is new."""
        if entries in self.known:
            return False
        self.known.add(entries)
        self.demand.append(demand)
        self.entries.append(entries)
        return True


class MixtureSearch:
    """Column generation for one cost per option; columns are shared by both stages."""

    def __init__(self, problem: Covers) -> None:
        self.problem = problem
        self.board = KnapsackBoard.of(problem)
        self.pool = _Pool()
        for option in range(problem.options):
            self.pool.add(int(problem.option_demand[option]), ((option, int(problem.replicas_alone[option])),))
        self.places = [row[row >= 0] for row in self.board.option]

    def cost(self, usd: Floats) -> Floats:
        return np.array([sum(usd[option] * count for option, count in entries) for entries in self.pool.entries])

    def units(self) -> tuple[Whole, Whole, Floats]:
        """Sparse units: column, resource, units; one entry for each resource a column takes."""
        problem = self.problem
        sizes = [len(entries) for entries in self.pool.entries]
        column = np.repeat(np.arange(len(sizes)), sizes)
        flat = np.array([pair for entries in self.pool.entries for pair in entries], dtype=np.int64).reshape(-1, 2)
        resource = problem.option_resource[flat[:, 0]]
        units = (problem.option_units[flat[:, 0]] * flat[:, 1]).astype(np.float64)
        keys, places = np.unique(column * len(problem.units) + resource, return_inverse=True)
        total = np.asarray(np.bincount(places, weights=units), dtype=np.float64)
        columns, resources = np.divmod(keys.astype(np.int64), len(problem.units))
        return columns, resources, total

    def widen(self, price: Floats, keep: int) -> int:
        """Add the `keep` cheapest mixtures of each demand, worth their price or not; how many were new."""
        return self._take(self._duos(price, keep), np.full(len(self.places), np.inf))

    def _duos(self, price: Floats, keep: int) -> Duos:
        return self.board.duos(np.where(self.board.option >= 0, price[self.board.option], DEAR), keep)

    def _take(self, duos: Duos, worth: Floats) -> int:
        found = 0
        cheap = np.isfinite(duos.price) & (duos.price < DEAR) & (duos.price < worth[:, None] - SMALL)
        for demand, rank in zip(*np.nonzero(cheap), strict=True):
            counts: dict[int, int] = {}
            for place, count in (
                (duos.first[demand, rank], int(duos.first_count[demand, rank])),
                (duos.second[demand, rank], int(duos.second_count[demand, rank])),
            ):
                option = int(self.board.option[demand, place])
                counts[option] = counts.get(option, 0) + count
            entries = tuple(sorted((option, count) for option, count in counts.items() if count))
            found += self.pool.add(int(demand), entries)
        return found

    def drop(self, price: Floats, each: Floats, slack: float) -> None:
        """Forget the columns that no plan better by `slack` than the bound can hold."""
        keep = np.nonzero(self.cost(price) - each[np.array(self.pool.demand)] <= slack)[0]
        demand, entries = self.pool.demand, self.pool.entries
        self.pool.demand = [demand[index] for index in keep]
        self.pool.entries = [entries[index] for index in keep]

    def improve(self, price: Floats, worth: Floats) -> tuple[int, Floats]:
        """Add mixtures worth more than their price; how many, and for every demand the least price proven. With quick
        finds nothing is proven for those demands (-inf).
        """
        found = self._take(self._duos(price, KEPT_EACH_ROUND), worth)
        if found:
            return found, np.full(len(worth), -np.inf)
        return self._prove(price, worth)

    def _prove(self, price: Floats, worth: Floats) -> tuple[int, Floats]:
        problem, found = self.problem, 0
        least = np.full(len(worth), np.inf)
        for demand, options in enumerate(self.places):
            if not len(options):
                continue
            mixture = cheapest(
                price[options].tolist(), problem.option_rate[options].tolist(), float(problem.demand[demand])
            )
            least[demand] = mixture.bound
            if mixture.price < worth[demand] - SMALL:
                pairs = zip(mixture.places, mixture.counts, strict=True)
                found += self.pool.add(demand, tuple(sorted((int(options[place]), count) for place, count in pairs)))
        return found, least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    bound: float
    left: float
    """Demands that the relaxation leaves unserved, parts summed."""
    price: Floats
    """Of every option, scarcity included, at the bound."""
    each: Floats
    """The least price of serving each demand or leaving it."""


def _relax(search: MixtureSearch, usd: Floats, unserved: Floats, least: int, deadline: Deadline) -> _Stage:
    """Column generation; the bound is Lagrange's at the best prices seen."""
    problem = search.problem
    demands, resources = len(problem.demand), len(problem.units)
    master = ColumnMaster(
        np.concatenate([np.ones(demands), np.full(resources, -np.inf), [float(least)]]),
        np.concatenate([np.full(demands, np.inf), problem.units.astype(np.float64), [np.inf]]),
    )
    leave = np.arange(demands)
    master.add(
        Columns.of(
            unserved,
            column=np.tile(leave, 2),
            row=np.concatenate([leave, np.full(demands, demands + resources)]),
            value=np.ones(2 * demands),
            upper=np.ones(demands),
        )
    )
    best, added = _Stage(bound=-np.inf, left=0.0, price=usd, each=np.zeros(demands)), 0
    for _ in range(ROUNDS_MAX):
        master.add(_columns(search, usd, added))
        added = len(search.pool.entries)
        relaxed = master.solve()
        if relaxed is None:
            break
        worth = relaxed.row_duals[:demands]
        scarcity = -np.minimum(0.0, relaxed.row_duals[demands : demands + resources])
        forced = max(0.0, float(relaxed.row_duals[-1]))
        price = usd + scarcity[problem.option_resource] * problem.option_units
        found, cheap = search.improve(price, worth)
        # Every demand is either served by its cheapest mixture or left at its price less the forced part.
        each = np.minimum(cheap, unserved - forced)
        proven = float(each.sum() - scarcity @ problem.units + forced * least)
        if proven > best.bound:
            left = float(relaxed.values[:demands].sum())
            best = _Stage(bound=proven, left=left, price=price, each=each)
        if not found or relaxed.value - best.bound <= CLOSE_ENOUGH * abs(relaxed.value) or deadline.over:
            break
    return best


def _columns(search: MixtureSearch, usd: Floats, first: int) -> Columns:
    """The pool's columns from `first` on, for the master's rows."""
    demands = len(search.problem.demand)
    column, resource, units = search.units()
    new = column >= first
    column, resource, units = column[new] - first, resource[new], units[new]
    count = len(search.pool.entries) - first
    return Columns.of(
        search.cost(usd)[first:],
        column=np.concatenate([np.arange(count), column]),
        row=np.concatenate([np.array(search.pool.demand[first:], dtype=np.int64), resource + demands]),
        value=np.concatenate([np.ones(count), units]),
    )


def cover(problem: Covers, engine: Engine, deadline: Deadline, *, gap: float = 1e-4) -> Covered:
    """The best plan found by the deadline."""
    counts = one_by_one(problem)
    if deadline.over:
        objective = problem.objective(counts)
        return Covered(counts=counts, objective=objective, bound=-np.inf, unserved_least=0, columns=0)
    search = MixtureSearch(problem)
    stage, least = _relax(search, problem.option_usd, problem.unserved_usd, 0, deadline), 0
    if stage.left > SMALL:
        # Parts of demands go without: how many whole ones must, at least?
        counting = _relax(search, np.zeros(problem.options), np.ones(len(problem.demand)), 0, deadline)
        least = max(0, int(np.ceil(counting.bound - 1e-6)))
        stage = _relax(search, problem.option_usd, problem.unserved_usd, least, deadline)
    found = _whole(search, engine, least, Limits(time_s=FIRST_PART * deadline.left_s, gap=gap))
    counts = min(found, counts, key=problem.objective)
    objective = problem.objective(counts)
    if objective - stage.bound > gap * abs(objective) and not deadline.over:
        search.widen(stage.price, min(WIDEST, max(KEPT_EACH_ROUND, COLUMNS_MAX // len(problem.demand))))
        search.drop(stage.price, stage.each, objective - stage.bound)
        other = _whole(search, engine, least, Limits(time_s=deadline.left_s, gap=gap))
        counts = min(counts, other, key=problem.objective)
    return Covered(
        counts=counts,
        objective=problem.objective(counts),
        bound=stage.bound,
        unserved_least=least,
        columns=len(search.pool.entries),
    )


def _whole(search: MixtureSearch, engine: Engine, least: int, limits: Limits) -> Whole:
    """The integer master over the columns so far; everything is left unserved where the engine has nothing."""
    problem = search.problem
    nothing = np.zeros(problem.options, dtype=np.int64)
    demands, resources = len(problem.demand), len(problem.units)
    column, resource, units = search.units()
    demand = np.array(search.pool.demand)
    rows = ProgrammeRows()
    leave = rows.add_columns(problem.unserved_usd, np.ones(demands))
    take = rows.add_columns(search.cost(problem.option_usd), np.ones(len(demand)))
    once = rows.add_rows(np.ones(demands), np.ones(demands))
    rows.enter(once, leave, 1.0)
    rows.enter(once[demand], take, 1.0)
    room = rows.add_rows(np.full(resources, -np.inf), problem.units.astype(np.float64))
    rows.enter(room[resource], take[column], units)
    (forced,) = rows.add_rows(np.array([float(least)]), np.array([np.inf]))
    rows.enter(forced, leave, 1.0)
    answer = engine.solve(rows.program(), limits)
    if answer.values is None:
        return nothing
    counts = nothing.copy()
    for index in np.nonzero(answer.values[take] > 0.5)[0]:
        for option, count in search.pool.entries[index]:
            counts[option] += count
    return counts if problem.feasible(counts) else nothing
