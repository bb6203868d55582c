"""The ratio of the 99th percentile to the mean."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.models.belief.knowledge import Tail


def test_many_ratios_are_believed() -> None:
    found = Tail().after(np.full(50, np.log(1.4)) + np.random.default_rng(1).normal(0, 0.02, 50))
    assert found.ratio == pytest.approx(1.4, rel=0.01)
    assert found.log_std < Tail().log_std


def test_a_wild_ratio_moves_little() -> None:
    settled = Tail().after(np.full(50, np.log(1.4)))
    assert settled.after(np.array([np.log(20.0)])).ratio == pytest.approx(1.4, rel=0.02)


def test_a_percentile_is_never_below_the_mean() -> None:
    assert Tail().after(np.full(50, np.log(0.8))).ratio == 1.0
