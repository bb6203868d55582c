"""Mudi: a curve for every batch, and slopes from what the company is made of.

Two lines with a knee: the fixtures of the catalogue (A5), the fit, and that the minimal share is minimal.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.models.base import Facts, Groups, GroupSamples, Queries
from solvers.models.parts import static
from solvers.models.parts.curves import Rows
from solvers.policies.mudi import models
from solvers.policies.mudi.models import BatchCurves, Piecewise, fitted
from tests import laws

TWO_LINES = Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0)


def test_latency_at_the_fixtures_shares() -> None:
    assert TWO_LINES(np.array([0.2, 0.4, 0.9, 1.0])) == pytest.approx([70.0, 30.0, 20.0, 18.0])


@pytest.mark.parametrize(
    ("slo_ms", "window", "batch", "share"),
    [(100, 16, 8, 0.30), (120, 32, 8, 0.40), (100, 32, 8, 0.65), (60, 32, 8, None)],
)
def test_the_minimal_share_of_the_fixtures(slo_ms: float, window: int, batch: int, share: float | None) -> None:
    found = TWO_LINES.minimal_share(slo_ms * batch / window)
    assert found == (None if share is None else pytest.approx(share))


@given(
    steep=st.floats(1.0, 500.0),
    part=st.floats(0.0, 1.0),
    knee=st.floats(0.1, 0.9),
    l0=st.floats(50.0, 100.0),
    target=st.floats(10.0, 400.0),
)
def test_the_share_is_minimal(steep: float, part: float, knee: float, l0: float, target: float) -> None:
    curve = Piecewise(k1=-steep, k2=-part * steep, knee=knee, l0=l0)
    share = curve.minimal_share(target, 0.02)
    if share is None:
        assert float(curve(np.array([1.0]))[0]) > target
        return
    assert 0.02 <= share <= 1.0
    assert float(curve(np.array([share]))[0]) <= target * (1.0 + 1e-9) + 1e-9
    if share > 0.03 and part > 0.01:
        assert float(curve(np.array([share - 0.01]))[0]) > target


def test_a_flat_curve_is_met_by_the_least_share_or_never() -> None:
    flat = Piecewise(k1=0.0, k2=0.0, knee=0.4, l0=30.0)
    assert flat.minimal_share(31.0, 0.05) == 0.05
    assert flat.minimal_share(29.0) is None


def test_the_fit_finds_its_own_form() -> None:
    share = np.arange(0.1, 1.01, 0.05)
    found = fitted(share, TWO_LINES(share))
    assert found(share) == pytest.approx(TWO_LINES(share), rel=0.03)
    assert found.knee == pytest.approx(0.4, abs=0.04)
    assert found.k1 <= found.k2 <= 0.0


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=12))
def test_any_fit_is_steep_then_flat_and_positive(latency: list[float]) -> None:
    share = np.linspace(0.1, 1.0, len(latency))
    found = fitted(share, np.array(latency))
    assert found.k1 <= found.k2 <= 0.0
    assert (found(np.linspace(0.05, 1.0, 20)) >= 0.0).all()


def test_fits_of_work_over_share_are_within_five_percent() -> None:
    share = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0])
    latency = 2.0 + 10.0 / share
    assert float(np.mean(np.abs(fitted(share, latency)(share) / latency - 1.0))) <= 0.05


CURVE = Piecewise(k1=-20.0, k2=-2.0, knee=0.4, l0=3.0)


def rows(batches: list[float], shares: list[float]) -> Rows:
    batch, share = (column.ravel() for column in np.meshgrid(batches, shares, indexing="ij"))
    value = (1.0 + batch) * CURVE(share / 100.0)
    return Rows(batch=batch, share_pct=share, cycle=np.ones(len(batch)), value=value)


def test_between_batches_latency_is_straight() -> None:
    curve = models.learn_alone(rows([1.0, 4.0, 8.0], [10, 20, 30, 40, 60, 80, 100]))
    found = curve(np.array([1.0, 2.5, 6.0]), np.array([30.0, 30.0, 80.0]), np.ones(3))
    truth = np.array([2.0 * 5.0, 3.5 * 5.0, 7.0 * 2.2])
    assert found == pytest.approx(truth, rel=0.03)


def test_beyond_the_batches_it_grows_as_all_of_them_say() -> None:
    curve = models.learn_alone(rows([1.0, 4.0, 8.0], [10, 20, 30, 40, 60, 80, 100]))
    assert curve(np.array([16.0]), np.array([40.0]), np.ones(1)) == pytest.approx([17.0 * 3.0], rel=0.05)


def test_a_batch_with_few_shares_takes_the_shape_of_the_others() -> None:
    known = rows([1.0, 8.0], [10, 20, 30, 40, 60, 80, 100])
    lone = rows([4.0], [40.0])
    mixed = Rows(
        **{
            name: np.concatenate([getattr(known, name), getattr(lone, name)])
            for name in ("batch", "share_pct", "cycle", "value")
        }
    )
    curve = models.learn_alone(mixed)
    assert isinstance(curve, BatchCurves)
    assert curve(np.full(2, 4.0), np.array([20.0, 100.0]), np.ones(2)) == pytest.approx(
        [5.0 * 7.0, 5.0 * 1.8], rel=0.05
    )


def test_parts_make_up_the_latency() -> None:
    curve = models.learn_alone(rows([1.0, 4.0], [10, 20, 40, 60, 100]))
    batch, share = np.array([1.0, 4.0, 4.0]), np.array([0.2, 0.2, 0.9])
    parts, knee = curve.parts(batch)
    total = parts[:, 0] + parts[:, 1] * (1.0 - share) + parts[:, 2] * np.maximum(knee - share, 0.0)
    assert total == pytest.approx(curve(batch, 100.0 * share, np.ones(3)))


def company(names: list[tuple[str, str]], facts: Facts) -> models.MudiSlopes:
    groups = laws.pairs(names)
    solo = static.make(facts, 0).fit(laws.solo())
    # More layers beside, slower: a law that only architecture can tell.
    layers = np.array([laws.LAYERS[name] for name in groups.members.models], dtype=np.float64)[groups.members.model]
    slower = 1.0 + 0.05 * np.log1p(groups.sum_of_others(layers))
    measured = GroupSamples(groups=groups, latency_ms=laws.latency_ms(groups.members) * slower)
    formula = models.BESIDE.make(facts).fit(measured, solo, laws.solo()).formula
    assert isinstance(formula, models.MudiSlopes)
    return formula


def asked() -> Groups:
    return Groups.pairs(Queries.of("res", laws.GPU, 8, 40), Queries.of("ssd", laws.GPU, 8, 60))


def test_layers_tell_of_company_never_met() -> None:
    formula = company([("res", "alex"), ("res", "vgg"), ("alex", "vgg"), ("vgg", "ssd"), ("alex", "ssd")], laws.facts())
    assert formula.architecture.kinds == ("conv",)
    slower = formula.slowdown(asked(), laws.latency_ms(asked().members))
    assert slower == pytest.approx(1.0 + 0.05 * np.log1p([93.0, 80.0]), abs=0.02)


def test_without_layers_sizes_speak() -> None:
    formula = company([("res", "alex"), ("res", "vgg"), ("alex", "vgg")], laws.facts(layers=False))
    assert formula.architecture.kinds == ()
    assert (formula.slowdown(asked(), np.ones(2)) > 1.0).all()


def test_of_unknown_networks_only_batch_and_share_are_known() -> None:
    formula = company([("res", "alex"), ("res", "vgg")], Facts())
    assert np.isfinite(formula.slowdown(asked(), np.ones(2))).all()


def test_weights_of_parts_add_to_one() -> None:
    formula = company([("res", "vgg")], laws.facts())
    weights = models.part_weights(asked().members, formula.curves)
    assert weights[:, :3].sum(axis=1) == pytest.approx([1.0, 1.0])
    assert models.part_weights(asked().members, {})[:, 0].tolist() == [1.0, 1.0]
