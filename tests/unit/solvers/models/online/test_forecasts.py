"""What a belief says of conditions as they were, and what points teach it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from solvers.models.online.forecasts import forecasts, lessons, taught
from solvers.models.online.outcomes import Neighbour, Outcome, Point, begun, with_value
from tests.unit.solvers.models.told import Formula, outcome, suite_of

BUSY = Neighbour(model="bert-base", batch=4.0, share_pct_sm=50, busy=1.0)
HALF = Neighbour(model="bert-base", batch=4.0, share_pct_sm=50, busy=0.5)


def point_of(first: Outcome, values: int = 5) -> Point:
    point = begun(first)
    for index in range(values):
        point = with_value(point, math.log(first.latency_ms), float(index))
    return point


def test_neighbours_count_by_how_busy_they_are() -> None:
    alone, beside, half, unknown = forecasts(
        (
            outcome(batch=8.0),
            outcome(batch=8.0, neighbours=(BUSY,)),
            outcome(batch=8.0, neighbours=(HALF,)),
            outcome(model="nobody"),
        ),
        Formula(),
    )
    assert alone is not None
    assert beside is not None
    assert half is not None
    assert (alone.mean_ms, beside.mean_ms, half.mean_ms) == pytest.approx((20.0, 24.0, 22.0))
    assert alone.std_relative < half.std_relative < beside.std_relative
    assert unknown is None
    assert forecasts((), Formula()) == ()


def test_a_point_alone_teaches_what_was_measured() -> None:
    taught = lessons([point_of(outcome(latency_ms=31.0)), point_of(outcome(batch=1.0), values=2)], Formula())
    assert taught.alone.latency_ms.tolist() == pytest.approx([31.0])
    assert len(taught.beside.groups) == 0


def test_a_surprise_beside_neighbours_is_split_by_doubt() -> None:
    """24 ms were expected and 30 measured: who is to blame depends on what the belief is unsure of."""
    point = point_of(outcome(batch=8.0, latency_ms=30.0, neighbours=(BUSY,)))
    sure_of_neighbours = lessons([point], Formula(alone_relative=0.2, beside_relative=0.01))
    assert sure_of_neighbours.alone.latency_ms.tolist() == pytest.approx([25.0], rel=0.01)
    assert len(sure_of_neighbours.beside.groups) == 0
    sure_of_model = lessons([point], Formula(alone_relative=0.001, beside_relative=0.2))
    assert sure_of_model.alone.latency_ms.tolist() == pytest.approx([20.0], rel=0.01)
    measured = sure_of_model.beside.latency_ms
    assert measured[0] == pytest.approx(30.0)
    assert np.isnan(measured[1])
    both = lessons([point], Formula(alone_relative=0.1, beside_relative=0.1))
    assert both.alone.latency_ms.tolist() == pytest.approx([20.0 * math.sqrt(1.25)])
    assert both.beside.latency_ms[0] == pytest.approx(30.0)


def test_half_busy_neighbours_are_taught_as_if_they_never_rested() -> None:
    point = point_of(outcome(batch=8.0, latency_ms=22.0, neighbours=(HALF,)))
    taught = lessons([point], Formula())
    assert taught.alone.latency_ms.tolist() == pytest.approx([20.0])
    assert taught.beside.latency_ms[0] == pytest.approx(24.0)


def test_where_nothing_is_known_the_value_stands() -> None:
    alone = point_of(outcome(model="nobody", latency_ms=7.0))
    beside = point_of(outcome(model="nobody", latency_ms=9.0, neighbours=(BUSY,)))
    taught = lessons([alone, beside], Formula())
    assert taught.alone.latency_ms.tolist() == pytest.approx([7.0])
    assert taught.beside.latency_ms[0] == pytest.approx(9.0)
    nothing = lessons([], Formula())
    assert (len(nothing.alone), len(nothing.beside.groups)) == (0, 0)


def test_a_suite_learns_what_points_teach() -> None:
    """The replica alone takes half of a surprise of 25 %, its neighbour the other half; together they say what was."""
    suite = suite_of(Formula(alone_relative=0.1, beside_relative=0.1))
    first = outcome(batch=8.0, latency_ms=30.0, neighbours=(BUSY,))
    wise = taught(suite, [point_of(first)])
    alone, beside = forecasts((replace(first, neighbours=()), first), wise)
    assert alone is not None
    assert beside is not None
    assert alone.mean_ms == pytest.approx(20.0 * math.sqrt(1.25))
    assert beside.mean_ms == pytest.approx(30.0)
    assert taught(suite, []) == suite
