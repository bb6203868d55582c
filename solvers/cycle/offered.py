"""How much was asked of services, by what edges counted: the mean of late, and the busiest bin of a longer time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.cycle.memory import Past
from solvers.domain.telemetry import DEMAND_COUNT_S, DEMAND_JUMP_SIGMAS


class CountedLoads:
    """What edges counted, a row for each report: when it came, how many requests, in how many seconds. `edge` says
    whose each is (an edge's of another service is another's), and `of_edge` of which service that is.

    A rate inside a bin is what an edge counted over the time it counted, or over `DEMAND_COUNT_S` if that is longer, so
    that bins need not match its intervals; only they may not be shorter, or a bin would miss the edges that report less
    often than it lasts.
    """

    def __init__(
        self, of_edge: NDArray[Any], edge: NDArray[Any], reports: NDArray[Any], *, now_s: float, bin_s: float
    ) -> None:
        self._of_edge, self._edge, self._service = of_edge, edge, of_edge[edge]
        self._at_s, self._arrived, self._interval_s = reports.T
        self._now_s, self._age_s = now_s, now_s - self._at_s
        self._bin_s = np.full(int(of_edge.max()) + 1, bin_s)
        np.maximum.at(self._bin_s, self._service, self._interval_s)

    def ages_s(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of each service's oldest and newest report."""
        oldest, newest = np.zeros_like(self._bin_s), np.full_like(self._bin_s, np.inf)
        np.maximum.at(oldest, self._service, self._age_s)
        np.minimum.at(newest, self._service, self._age_s)
        return oldest, newest

    def newest(self, window_s: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Each service's mean rate in its window, not a number where nothing was counted, and the highest of it, the
        newest bin's, and what is sure of half of that.
        """
        counted, mean_rps, _ = self._rates(window_s[self._service])
        _, bin_rps, _ = self._rates(self._bin_s[self._service])
        _, _, half_rps = self._rates(self._bin_s[self._service] / 2.0)
        return np.where(counted, mean_rps, np.nan), np.maximum(mean_rps, np.maximum(bin_rps, half_rps))

    def _rates(self, younger_s: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Whether a service was counted so lately, its rate, and what is sure of it."""
        lately = self._age_s < younger_s
        edges = len(self._of_edge)
        arrived = np.bincount(self._edge[lately], self._arrived[lately], edges)
        lasted_s = np.bincount(self._edge[lately], self._interval_s[lately], edges)
        counted, lasted_s = lasted_s > 0.0, np.maximum(lasted_s, DEMAND_COUNT_S)
        rate_rps = arrived[counted] / lasted_s[counted]
        return self._sums(self._of_edge[counted], rate_rps, lasted_s[counted], len(self._bin_s))

    def busiest(self, lookback_s: NDArray[Any]) -> NDArray[Any]:
        """Each service's busiest bin of so long."""
        found = np.zeros_like(self._bin_s)
        for service, _, rates_rps in self._bins(lookback_s):
            np.maximum.at(found, service, rates_rps)
        return found

    def past(self, lookback_s: float) -> list[Past]:
        """What was asked of each service at the end of every half bin, those left out in which nobody counted."""
        half_s = self._bin_s / 2.0
        rates = np.full((len(half_s), int(lookback_s / half_s.min()) + 1), np.nan)
        for service, ago, rates_rps in self._bins(np.full_like(half_s, lookback_s)):
            np.fmax.at(rates, (service, ago - 1), rates_rps)
        return [
            Past(half_s=seconds, rates_rps=row[~np.isnan(row)][::-1])
            for seconds, row in zip(half_s.tolist(), rates, strict=True)
        ]

    def _bins(self, lookback_s: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Services, how many half bins ago, and rates. Whole bins begin every half bin by the clock: counted back from
        now they would cut a burst elsewhere at every look, and its rate would fall and rise again while it is
        remembered. Of each half counts what chance does not explain.
        """
        last = np.floor(2.0 * self._now_s / self._bin_s).astype(np.int64)
        before = np.floor(2.0 * (self._now_s - lookback_s) / self._bin_s).astype(np.int64)
        many = last - before
        half = np.floor(2.0 * self._at_s / self._bin_s[self._service]).astype(np.int64) - before[self._service]
        whole = (half > 0) & (half < many[self._service])
        across = int(many.max()) + 1
        keys, place = np.unique(self._edge[whole] * across + half[whole], return_inverse=True)
        arrived, lasted_s = np.bincount(place, self._arrived[whole]), np.bincount(place, self._interval_s[whole])
        follows = np.concatenate(([False], np.diff(keys) == 1))[: len(keys)]
        edge, half = keys // across, keys % across
        service = self._of_edge[edge]
        at = service * across + half
        both, both_s = (each + np.where(follows, np.roll(each, 1), 0.0) for each in (arrived, lasted_s))
        both_rps = both / np.maximum(both_s, DEMAND_COUNT_S)
        # An edge that counted in the first half of a bin alone has its rate there.
        single = ~np.roll(follows, -1) & (half + 1 < many[service])
        lasted_s = np.maximum(lasted_s, DEMAND_COUNT_S)
        rate_rps = arrived / lasted_s
        bins = np.concatenate((at[half > 1], at[single] + 1))
        bin_rps = np.concatenate((both_rps[half > 1], rate_rps[single]))
        for held, rates, seconds in ((bins, bin_rps, np.ones_like(bin_rps)), (at, rate_rps, lasted_s)):
            places, inside = np.unique(held, return_inverse=True)
            _, all_rps, sure_rps = self._sums(inside, rates, seconds, len(places))
            service, half = places // across, places % across
            yield service, many[service] - half, all_rps if held is bins else sure_rps

    @staticmethod
    def _sums(
        of: NDArray[Any], rate_rps: NDArray[Any], lasted_s: NDArray[Any], count: int
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Which have a rate, its sum over edges, and that less what a Poisson count's chance may add."""
        sums = np.bincount(of, rate_rps, count)
        sure = sums - DEMAND_JUMP_SIGMAS * np.sqrt(np.bincount(of, rate_rps / lasted_s, count))
        return np.bincount(of, minlength=count) > 0, sums, sure
