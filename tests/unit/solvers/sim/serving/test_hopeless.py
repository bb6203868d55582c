"""What a server with a limit drops: exact for single requests, steady through capacity, right at its ends."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.sim.serving.hopeless import dropping, exponent, interpolated

CURVE = tuple(10.0 + 5.0 * size for size in range(1, 9))
CAPACITY = len(CURVE) / CURVE[-1]


def test_single_requests_are_told_exactly() -> None:
    """M/D/1 with patience, at half load and a wait of up to one and a half executions; worked out by hand."""
    rate, each_ms, limit_ms = 0.05, 10.0, 25.0
    kept = math.exp(0.75) - 0.25 * math.exp(0.25)
    assert dropping(rate, (each_ms,), limit_ms).lost == pytest.approx(1.0 - kept / (1.0 + 0.5 * kept))


def test_far_below_capacity_nothing_is_dropped_and_far_above_it_what_exceeds_capacity() -> None:
    assert dropping(0.3 * CAPACITY, CURVE, 500.0).lost < 1e-9
    for load in (1.5, 3.0, 50.0):
        walk = dropping(load * CAPACITY, CURVE, 500.0)
        assert walk.lost == pytest.approx(1.0 - 1.0 / load, abs=0.01)
        assert walk.part_short < 0.05


def test_capacity_is_no_edge() -> None:
    losses = [dropping(load * CAPACITY, CURVE, 200.0).lost for load in (0.97, 0.9999, 1.0, 1.0001, 1.03)]
    assert losses == sorted(losses)
    assert losses[3] - losses[1] < 1e-3


@given(
    load=st.floats(0.05, 20.0),
    batch=st.integers(1, 64),
    serial=st.floats(0.0, 1.0),
    limit=st.floats(1.0, 200.0),
)
def test_parts_are_parts(load: float, batch: int, serial: float, limit: float) -> None:
    curve = tuple(40.0 * (serial + (1.0 - serial) * size / batch) for size in range(1, batch + 1))
    walk = dropping(load * batch / 40.0, curve, 40.0 * limit)
    assert 0.0 <= walk.lost < 1.0
    assert 0.0 <= walk.part_short <= 1.0
    assert 0.0 <= walk.part_top <= 1.0
    assert walk.part_short + walk.part_top <= 1.0 + 1e-9
    assert 0.5 <= walk.batch <= batch
    levels = [walk.left_behind(level) for level in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all(lower <= higher + 1e-9 for lower, higher in pairwise(levels))
    assert levels[0] == pytest.approx(0.0, abs=1e-9)
    assert levels[-1] <= walk.room * (1.0 + 1e-6) + 1e-9


def test_a_tight_limit_shrinks_the_batch_that_can_be_gathered() -> None:
    rate = 0.9 * CAPACITY
    tight, roomy = dropping(rate, CURVE, 1.3 * CURVE[-1]), dropping(rate, CURVE, 4.0 * CURVE[-1])
    assert tight.batch < roomy.batch == len(CURVE)
    assert rate * (1.3 * CURVE[-1] - interpolated(CURVE, tight.batch)) == pytest.approx(tight.batch, abs=0.01)
    assert tight.lost > roomy.lost


@given(during=st.floats(0.1, 200.0), batch=st.floats(1.0, 64.0))
def test_the_exponent_balances_steps_up_and_down(during: float, batch: float) -> None:
    decay = exponent(during, batch)
    if abs(during / batch - 1.0) > 1e-3:
        assert (decay > 0.0) == (during < batch)
        assert abs(decay) > 1e-4
        assert during * math.expm1(decay) == pytest.approx(decay * batch, rel=1e-6)
