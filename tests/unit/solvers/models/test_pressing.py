"""Pressure and sensitivity read off a belief about pairs: never below what is believed, and of whom something is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, ProfileOrigin
from solvers.models import believed
from solvers.models.base import Groups, Queries
from solvers.models.believed import alike, interference_of
from solvers.models.suite import Suite
from tests import laws

GPU = GpuTypeName(laws.GPU)
NAMES = tuple(ModelName(name) for name in laws.WORK_MS)
FRESH = Suite.fresh("headroom", laws.facts())


@pytest.fixture(scope="module")
def learned() -> Suite:
    """All pairs but those with `ssd` were measured."""
    known = [("alex", "res"), ("alex", "vgg"), ("res", "vgg")]
    groups = laws.measured(laws.pairs(known, batches=(2, 8), shares=(20, 50, 80)))
    return FRESH.fit(laws.solo(batches=(1, 8), shares=(20, 100)), groups)


def added(suite: Suite, rows: list[tuple[str, str, float, float]], caution_std: float) -> np.ndarray:
    """What the belief says the second adds to the latency of the first, carefully."""
    first = Queries.of([row[0] for row in rows], GPU, [row[3] for row in rows], [100 - row[2] for row in rows])
    second = Queries.of([row[1] for row in rows], GPU, [row[3] for row in rows], [row[2] for row in rows])
    answer = suite.interference.predict(Groups.pairs(first, second), suite.solo)
    return np.asarray(answer.mean + caution_std * answer.std - 1)[::2]


def told(found: dict[ModelName, Interference], rows: list[tuple[str, str, float, float]]) -> np.ndarray:
    return np.array(
        [found[ModelName(row[0])].sensitivity * found[ModelName(row[1])].pressure_at(row[2]) for row in rows]
    )


def test_nobody_knows_of_models_that_were_never_measured_beside_others(learned: Suite) -> None:
    assert interference_of(FRESH, GPU, NAMES, 1.0) == {}
    assert interference_of(learned, GPU, (), 1.0) == {}
    assert set(interference_of(learned, GPU, NAMES, 1.0)) == {"alex", "res", "vgg"}
    assert interference_of(learned, GpuTypeName("t4"), NAMES, 1.0) == {}


@pytest.mark.parametrize("caution_std", [0.0, 1.0, 3.0])
def test_it_is_nowhere_asked_below_what_is_believed(learned: Suite, caution_std: float) -> None:
    found = interference_of(learned, GPU, NAMES, caution_std)
    rows = [
        (one, two, share, batch)
        for one in sorted(found)
        for two in sorted(found)
        if one != two
        for share in (20.0, 40.0, 60.0, 80.0)
        for batch in (1.0, 8.0, 32.0)
    ]
    assert np.all(told(found, rows) >= added(learned, rows, caution_std) * (1 - 1e-4))
    assert all(item.origin is ProfileOrigin.FITTED for item in found.values())


def test_each_model_is_asked_about_itself_among_however_many(learned: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of one service share devices more often than any other two."""
    monkeypatch.setattr(believed, "PARTNERS", 1)
    found = interference_of(learned, GPU, NAMES, 1.0)
    rows = [(name, name, share, batch) for name in sorted(found) for share in (20.0, 60.0) for batch in (1.0, 32.0)]
    assert len(found) > believed.PARTNERS
    assert np.all(told(found, rows) >= added(learned, rows, 1.0) * (1 - 1e-4))


def test_it_tells_who_presses_hard_and_is_not_careful_without_measure(learned: Suite) -> None:
    found = interference_of(learned, GPU, NAMES, 0.0)
    # The law of these tests: everybody suffers alike, and alex uses most of L2.
    assert found[ModelName("alex")].pressure > found[ModelName("res")].pressure
    truth = np.array([laws.L2[name] * 0.5 / 3 for name in ("alex", "res", "vgg")])
    rows = [(other, name, 50.0, 8.0) for name, other in (("alex", "res"), ("res", "vgg"), ("vgg", "alex"))]
    assert np.all(told(found, rows) > 0.8 * truth)
    assert np.all(told(found, rows) < 3 * truth)


def test_more_caution_is_more_slowdown(learned: Suite) -> None:
    rows = [("alex", "res", 50.0, 8.0), ("res", "vgg", 50.0, 8.0)]
    plain, careful = (told(interference_of(learned, GPU, NAMES, std), rows) for std in (0.0, 2.0))
    assert np.all(careful > plain)


def test_one_model_alone_is_asked_about_itself(learned: Suite) -> None:
    (found,) = interference_of(learned, GPU, NAMES[:1], 1.0).values()
    assert found.sensitivity > 0


def test_little_differences_are_alike() -> None:
    old = {ModelName("a"): Interference(pressure=0.3, sensitivity=0.5)}
    assert alike(old, old)
    assert alike(old, {ModelName("a"): Interference(pressure=0.31, sensitivity=0.52)})
    assert not alike(old, {ModelName("a"): replace(old[ModelName("a")], sensitivity=0.6)})
    assert not alike(old, {ModelName("a"): replace(old[ModelName("a")], exponent=1.0)})
    assert not alike(old, {})
