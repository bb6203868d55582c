"""What edges counted, added up at once, is what it is when added up bin by bin."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.cycle.offered import CountedLoads

NOW_S = 1_700_000_003.0
BIN_S = 10.0
Report = tuple[int, int, float, int, float]
"""Service, edge, age in s, requests, in how many seconds."""


def _loads(reports: list[Report]) -> CountedLoads:
    edges = sorted({report[:2] for report in reports})
    return CountedLoads(
        np.array([service for service, _ in edges]),
        np.array([edges.index(report[:2]) for report in reports]),
        np.array([(NOW_S - age_s, count, lasted_s) for _, _, age_s, count, lasted_s in reports]),
        now_s=NOW_S,
        bin_s=BIN_S,
    )


def _rates(parts: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Of what each edge counted in which time, a second at least: the rate of all, and what is sure of it."""
    counted = [(count, max(lasted_s, 1.0)) for count, lasted_s in parts.values()]
    rate_rps = sum(count / lasted_s for count, lasted_s in counted)
    return rate_rps, rate_rps - 3.0 * math.sqrt(sum(count / lasted_s**2 for count, lasted_s in counted))


def _counted(reports: list[Report], from_s: float, until_s: float) -> dict[int, tuple[float, float]]:
    """Of each edge, what came from one instant until before another."""
    found: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for _, edge, age_s, count, lasted_s in reports:
        if from_s <= NOW_S - age_s < until_s:
            found[edge] = (found[edge][0] + count, found[edge][1] + lasted_s)
    return found


def _younger(reports: list[Report], age_s: float) -> dict[int, tuple[float, float]]:
    """Of each edge, what came since."""
    return _counted([report for report in reports if NOW_S - (NOW_S - report[2]) < age_s], -math.inf, math.inf)


def _slowly(reports: list[Report], lookback_s: float) -> tuple[float, float, float]:
    """Mean of the last minute, highest of late, and busiest bin of one service, each bin for itself."""
    bin_s = max(BIN_S, *(lasted_s for *_, lasted_s in reports))
    mean_rps = _rates(_younger(reports, 60.0))[0]
    newest_rps = _rates(_younger(reports, bin_s))[0]
    sure_rps = _rates(_younger(reports, bin_s / 2.0))[1]
    half_s, busiest_rps = bin_s / 2.0, 0.0
    # Whole halves of the time that is looked back on, by the clock; a bin is two of them.
    first, last = math.floor((NOW_S - lookback_s) / half_s) + 1, math.floor(NOW_S / half_s) - 1
    for half in range(first, last + 1):
        here = _counted(reports, half * half_s, (half + 1) * half_s)
        busiest_rps = max(busiest_rps, _rates(here)[1])
        if half > first:
            busiest_rps = max(busiest_rps, _rates(_counted(reports, (half - 1) * half_s, (half + 1) * half_s))[0])
    return mean_rps, max(mean_rps, newest_rps, sure_rps), busiest_rps


def _halves(reports: list[Report], lookback_s: float) -> int:
    """How many whole halves of the time that is looked back on somebody counted in, or an edge only in the one before:
    that has its rate there, too.
    """
    half_s = max(BIN_S, *(lasted_s for *_, lasted_s in reports)) / 2.0
    first, last = math.floor((NOW_S - lookback_s) / half_s) + 1, math.floor(NOW_S / half_s) - 1
    counted = {math.floor((NOW_S - age_s) / half_s) for _, _, age_s, _, _ in reports}
    counted &= set(range(first, last + 1))
    return len((counted | {half + 1 for half in counted}) & set(range(first, last + 1)))


REPORTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.floats(0.25, 179.75),
        st.integers(0, 5000),
        st.sampled_from((0.5, 1.0, 5.0, 7.0, 25.0)),
    ),
    min_size=1,
    max_size=60,
)


@given(reports=REPORTS, lookback_s=st.sampled_from((60.0, 180.0)))
@settings(max_examples=300, deadline=None)
def test_what_edges_counted_is_added_up_as_bin_by_bin(reports: list[Report], lookback_s: float) -> None:
    services = sorted({report[0] for report in reports})
    placed = [
        (services.index(service), edge, age_s, count, lasted_s) for service, edge, age_s, count, lasted_s in reports
    ]
    loads = _loads(placed)
    mean_rps, newest_rps = loads.newest(np.full(len(services), 60.0))
    busiest_rps = loads.busiest(np.full(len(services), lookback_s))
    oldest_s, youngest_s = loads.ages_s()
    pasts = loads.past(lookback_s)
    for index in range(len(services)):
        mine = [report for report in placed if report[0] == index]
        ages_s = [age_s for _, _, age_s, _, _ in mine]
        assert (oldest_s[index], youngest_s[index]) == pytest.approx((max(ages_s), min(ages_s)), abs=1e-5)
        slowly = _slowly(mine, lookback_s)
        assert busiest_rps[index] == pytest.approx(slowly[2])
        assert pasts[index].rates_rps.max(initial=0.0) == pytest.approx(slowly[2])
        assert len(pasts[index].rates_rps) == _halves(mine, lookback_s)
        if _younger(mine, 60.0):
            assert (mean_rps[index], newest_rps[index]) == pytest.approx(slowly[:2])
        else:
            assert math.isnan(mean_rps[index])


def test_an_edge_that_counted_in_one_half_of_a_bin_has_its_rate_there() -> None:
    """Another counts on: both are in the bin that begins where the first stopped."""
    loads = _loads([(0, 0, 27.0, 500, 5.0), (0, 1, 27.0, 250, 5.0), (0, 1, 22.0, 750, 5.0)])
    assert loads.busiest(np.array([180.0])).tolist() == pytest.approx([100.0 + 100.0])


def test_what_was_counted_outside_of_whole_halves_is_in_no_bin() -> None:
    """The half that lasts still, and the one that is partly longer ago."""
    assert _loads([(0, 0, 1.0, 500, 5.0), (0, 0, 60.0, 500, 5.0)]).busiest(np.array([60.0])).tolist() == [0.0]


def test_a_past_tells_of_every_half_the_oldest_first() -> None:
    """Counted in the half 28 s ago, which the bin after it holds, too, then in two halves, and in the one that lasts
    still; of those between nothing is known.
    """
    loads = _loads([(0, 0, 28.0, 500, 5.0), (0, 0, 12.0, 100, 5.0), (0, 0, 7.0, 200, 5.0), (0, 0, 1.0, 900, 5.0)])
    (past,) = loads.past(60.0)
    sure_rps = (200.0 - 3.0 * math.sqrt(200.0)) / 5.0
    assert past.half_s == 5.0
    assert past.rates_rps.tolist() == pytest.approx([100.0, 100.0, 20.0, sure_rps])


def test_what_was_counted_in_less_than_a_second_is_taken_for_that_of_one() -> None:
    loads = _loads([(0, 0, 12.0, 1, 0.001), (1, 0, 12.0, 3, 0.1), (1, 0, 7.0, 10, 5.0)])
    mean_rps, newest_rps = loads.newest(np.array([60.0, 60.0]))
    assert mean_rps.tolist() == pytest.approx([1.0, 13 / 5.1])
    assert newest_rps.tolist() == pytest.approx([1.0, 13 / 5.1])
    assert loads.busiest(np.array([60.0, 60.0])).tolist() == pytest.approx([1.0, 3.0])
