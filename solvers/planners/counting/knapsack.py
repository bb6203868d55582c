"""The cheapest mixture of options that covers one demand, exactly, and cheap mixtures of two for many demands at once.

Options have a price and a rate, whole numbers of them must cover the demand. The search branches on counts, cheapest
price per rate first, and gives up branches by the fractional bound; its answer comes with a bound that holds even when
it is cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.problems.counts import DUST, Covers

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
    """The best mixture for one demand."""
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
