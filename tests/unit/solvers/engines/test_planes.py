"""Planes over whole numbers: what they say together is what looking at every point finds, and boxes lose no point."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from solvers.domain.arrays import Floats
from solvers.engines.planes import Box


def points(box: Box) -> set[tuple[int, ...]]:
    sides = zip(box.least.tolist(), box.most.tolist(), strict=True)
    return set(product(*(range(int(low), int(high) + 1) for low, high in sides)))


def drawn(seed: int) -> tuple[Box, Floats, Floats]:
    """A box with planes, some of them as steep as what is unserved is dear."""
    rng = np.random.default_rng(seed)
    places, planes = int(rng.integers(1, 5)), int(rng.integers(1, 12))
    least = rng.integers(0, 3, places).astype(np.float64)
    box = Box(least=least, most=least + rng.integers(0, 5, places))
    steep = np.where(rng.random((planes, 1)) < 0.3, 1e4, 1.0)
    return box, rng.uniform(0, 60, planes) * steep[:, 0], rng.uniform(-5, 1, (planes, places)) * steep


@pytest.mark.parametrize("seed", range(40))
def test_what_is_least_is_what_every_point_finds(seed: int) -> None:
    box, rest, each = drawn(seed)
    every = {at: max(0.0, float((rest + each @ np.array(at)).max())) for at in points(box)}
    usd, at = box.lowest(rest, each, 10.0)
    truth = min(every.values())
    assert truth * (1 - 1e-5) - 1e-5 <= usd <= truth + 1e-5
    assert every[tuple(at.astype(int).tolist())] <= truth * (1 + 1e-5) + 1e-5


def test_without_planes_nothing_is_known() -> None:
    box = Box(least=np.zeros(2), most=np.ones(2))
    assert box.lowest(np.zeros(0), np.zeros((0, 2)), 1.0)[0] == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_a_point_and_the_boxes_beside_it_are_the_box(seed: int) -> None:
    box, _, _ = drawn(seed)
    every = sorted(points(box))
    at = every[seed % len(every)]
    beside = [points(item) for item in box.beside(np.array(at, dtype=np.float64))]
    assert set().union(*beside) == set(every) - {at}
    assert sum(map(len, beside)) == len(every) - 1
    assert Box(least=np.array(at), most=np.array(at)).point
