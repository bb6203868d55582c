"""Targets and least shares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.engines.least_share import least_shares
from solvers.errors import EngineError
from solvers.policies.mudi.curves import (
    MudiParameters,
    Rounding,
    ShareEngine,
    least_share,
    least_shares_of,
    programme,
    target_ms,
)
from solvers.policies.mudi.models import Piecewise

CURVE = Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0)
BENT = Piecewise(k1=-20.0, k2=-200.0, knee=0.4, l0=130.0)
CONVEX = MudiParameters(share_engine=ShareEngine.CONVEX)


@pytest.mark.parametrize(
    ("limit", "waiting", "target", "share"), [(100, 16, 50, 0.3), (120, 32, 30, 0.4), (100, 32, 25, 0.65)]
)
def test_the_fixture(limit: float, waiting: float, target: float, share: float) -> None:
    for parameters in (MudiParameters(), MudiParameters(rounding=Rounding.RATIO), CONVEX):
        seen = target_ms(limit, 1000.0 * waiting / limit, 8, parameters)
        assert seen == pytest.approx(target)
        assert least_share(CURVE, seen, parameters) == pytest.approx(share, abs=1e-6)


def test_parts_of_a_batch_count_as_a_batch_unless_printed_otherwise() -> None:
    assert target_ms(100.0, 90.0, 8, MudiParameters()) == pytest.approx(50.0)
    assert target_ms(100.0, 90.0, 8, MudiParameters(rounding=Rounding.RATIO)) == pytest.approx(800.0 / 9.0)


def test_a_batch_is_never_slower_than_its_limit_or_than_requests_come() -> None:
    assert target_ms(100.0, 1.0, 64, MudiParameters()) == 100.0
    assert target_ms(2200.0, 60.0, 8, MudiParameters(window_part=10.0)) == pytest.approx(22000.0 / 165)
    assert target_ms(math.inf, 50.0, 8, MudiParameters()) == pytest.approx(160.0)
    assert math.isinf(target_ms(math.inf, 0.0, 8, MudiParameters()))


def test_no_share_where_the_whole_device_is_too_slow() -> None:
    assert least_share(CURVE, 17.0, MudiParameters()) is None
    assert least_share(CURVE, 17.0, CONVEX) is None
    assert least_share(CURVE, 1e6, CONVEX) == pytest.approx(0.01)


def test_what_is_not_convex_goes_to_the_closed_form() -> None:
    with pytest.raises(EngineError):
        least_shares(programme([BENT], [100.0], 0.01))
    assert least_shares_of([BENT], [100.0], CONVEX) == [BENT.minimal_share(100.0, 0.01)]


def test_rows_do_not_touch_each_other() -> None:
    found = least_shares(programme([CURVE, CURVE, CURVE], [50.0, 17.0, 25.0], 0.01))
    assert np.isinf(found[1])
    assert found[[0, 2]] == pytest.approx([0.3, 0.65], abs=1e-6)
