"""Curves alone, beside measured company, beside known pressure, and beside networks that nobody measured.

Targets and least shares.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.arrays import Floats, Whole
from solvers.domain.ids import ModelName
from solvers.domain.profile import Interference, Profile
from solvers.domain.snapshot import Snapshot
from solvers.engines.least_share import least_shares
from solvers.errors import EngineError
from solvers.models.base import Groups, Queries
from solvers.models.parts.curves import Rows
from solvers.planners.case import Case
from solvers.policies.mudi.curves import (
    MudiCurves,
    MudiParameters,
    Rounding,
    ShareEngine,
    least_share,
    least_shares_of,
    programme,
    targets_ms,
)
from solvers.policies.mudi.models import MudiSlopes, Piecewise, learn_alone
from solvers.problems.needs import Need
from tests import builders

CURVE = Piecewise(k1=-200.0, k2=-20.0, knee=0.4, l0=30.0)
BENT = Piecewise(k1=-20.0, k2=-200.0, knee=0.4, l0=130.0)
CONVEX = MudiParameters(share_engine=ShareEngine.CONVEX)


@pytest.mark.parametrize(
    ("limit", "waiting", "target", "share"), [(100, 16, 50, 0.3), (120, 32, 30, 0.4), (100, 32, 25, 0.65)]
)
def test_the_fixture(limit: float, waiting: float, target: float, share: float) -> None:
    for parameters in (MudiParameters(), MudiParameters(rounding=Rounding.RATIO), CONVEX):
        seen = float(targets_ms(limit, 1000.0 * waiting / limit, 8, parameters))
        assert seen == pytest.approx(target)
        assert least_share(CURVE, seen, parameters) == pytest.approx(share, abs=1e-6)


def test_parts_of_a_batch_count_as_a_batch_unless_printed_otherwise() -> None:
    assert targets_ms(100.0, 90.0, 8, MudiParameters()) == pytest.approx(50.0)
    assert targets_ms(100.0, 90.0, 8, MudiParameters(rounding=Rounding.RATIO)) == pytest.approx(800.0 / 9.0)


def test_a_batch_is_never_slower_than_its_limit_or_than_requests_come() -> None:
    assert targets_ms(100.0, 1.0, 64, MudiParameters()) == 100.0
    assert targets_ms(100.0, 1.0, 64, MudiParameters(window_part=10.0)) == 100.0
    assert targets_ms(2200.0, 60.0, 8, MudiParameters(window_part=10.0)) == pytest.approx(22000.0 / 165)
    assert targets_ms(math.inf, 50.0, 8, MudiParameters()) == pytest.approx(160.0)
    assert math.isinf(targets_ms(math.inf, 0.0, 8, MudiParameters()))
    assert targets_ms(100.0, 0.0, 8, MudiParameters()) == 100.0


def test_targets_of_many_are_those_of_each() -> None:
    limits, rates, batches = [100.0, math.inf, 40.0], [90.0, 50.0, 0.0], [1, 8, 32]
    many = targets_ms(np.array(limits)[:, None], np.array(rates)[:, None], batches, MudiParameters())
    each = [
        [targets_ms(limit, rate, batch, MudiParameters()) for batch in batches]
        for limit, rate in zip(limits, rates, strict=True)
    ]
    assert many.tolist() == each


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


RESNET, BERT = ModelName("resnet50"), ModelName("bert")
DEVICE = builders.device("a", 0, "a100")


def curves(picture: Snapshot) -> tuple[MudiCurves, Need]:
    case = Case.of(builders.request(picture))
    return MudiCurves(beliefs=case.beliefs, models=case.snapshot.models_by_name()), case.needs[0]


def room() -> Snapshot:
    return builders.snapshot((DEVICE,), [builders.service("vision")])


def with_profile(picture: Snapshot, made: Profile) -> Snapshot:
    others = tuple(item for item in picture.profiles if (item.model, item.gpu_type) != (made.model, made.gpu_type))
    return replace(picture, profiles=tuple(sorted((*others, made), key=lambda item: (item.model, item.gpu_type))))


def own(picture: Snapshot) -> Profile:
    return next(item for item in picture.profiles if (item.model, item.gpu_type) == (RESNET, DEVICE.gpu_type))


def test_a_curve_for_every_batch_that_falls_steeply_and_then_less() -> None:
    made, need = curves(room())
    alone = made.beside(need, 0, ())
    assert len(alone) >= 3
    assert all(curve.k1 <= curve.k2 <= 0.0 for curve in alone.values())


def test_company_that_nobody_knows_counts_the_margin_each() -> None:
    picture = room()
    made, need = curves(picture)
    margin = picture.policy.interference_margin
    alone, beside = made.beside(need, 0, ()), made.beside(need, 0, (BERT, BERT))
    for batch, curve in alone.items():
        assert beside[batch].k1 == pytest.approx(curve.k1 * (1 + 2 * (margin - 1)))
        assert beside[batch].l0 == pytest.approx(curve.l0 * (1 + 2 * (margin - 1)))


def test_measured_company_speaks_for_itself() -> None:
    picture = room()
    profile = own(picture)
    batch = profile.points[0].batch
    solo = [point for point in profile.points if point.batch == batch and not point.neighbours]
    beside = tuple(
        replace(point, latency_ms_mean=3 * point.latency_ms_mean, latency_ms_p99=None, neighbours=(BERT,))
        for point in solo
    )
    made, need = curves(with_profile(picture, replace(profile, points=(*profile.points, *beside))))
    alone, met = made.beside(need, 0, ()), made.beside(need, 0, (BERT,))
    assert met[batch].l0 > 2 * alone[batch].l0
    other = next(item for item in alone if item != batch)
    assert met[other].l0 < 2 * alone[other].l0


def strangers(sizes: tuple[float, ...] = (12.0, 700.0)) -> tuple[MudiCurves, Need]:
    """Five networks that press the more the larger they are, and others that nobody measured."""
    picture = room()
    profile = own(picture)
    names = [ModelName(f"net-{number}") for number in range(5)]
    models = [builders.model(name, parameters_million=10.0 * 3**number) for number, name in enumerate(names)]
    unknown = [builders.model(f"strange-{number}", parameters_million=size) for number, size in enumerate(sizes)]
    profiles = [
        replace(
            profile,
            model=name,
            points=tuple(replace(point, model=name) for point in profile.points),
            interference=Interference(pressure=0.2 + 0.2 * number, sensitivity=1.0),
        )
        for number, name in enumerate(names)
    ]
    mine = replace(profile, interference=Interference(pressure=0.3, sensitivity=1.0))
    known = (*picture.profiles, *profiles)
    picture = replace(
        picture,
        models=tuple(sorted((*picture.models, *models, *unknown), key=lambda item: item.name)),
        profiles=tuple(sorted(known, key=lambda item: (item.model, item.gpu_type))),
    )
    return curves(with_profile(picture, mine))


SMALL, LARGE = ModelName("strange-0"), ModelName("strange-1")


def test_slopes_beside_a_strange_network_follow_from_what_it_is_made_of() -> None:
    made, need = strangers()
    assert made.slowing(need, made.beliefs.classes[0], (SMALL,)) is None
    alone, slight, strong = (made.beside(need, 0, company) for company in ((), (SMALL,), (LARGE,)))
    worst = 1.0 + 1.0 * 2 * (0.2 + 0.2 * 4) * 0.3**0.5
    for batch, curve in alone.items():
        assert curve.l0 < slight[batch].l0 < strong[batch].l0 <= worst * curve.l0 + 1e-9
        assert strong[batch].k1 < slight[batch].k1 <= curve.k1
        assert strong[batch].k1 <= strong[batch].k2 <= 0.0
        assert strong[batch].knee == curve.knee
        # The less of the device is left to the jobs, the less they slow.
        almost = np.array([0.99])
        assert strong[batch](almost) / curve(almost) < 0.9 * strong[batch].l0 / curve.l0
    two = made.beside(need, 0, (SMALL, SMALL))
    assert all(two[batch].l0 >= slight[batch].l0 * 0.9 for batch in alone)


def test_curves_of_many_companies_at_once_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the regression is asked once."""
    (together, need), (apart, _) = strangers(), strangers()
    companies = [(SMALL,), (LARGE,), (SMALL, LARGE), (SMALL, SMALL, LARGE), (BERT,)]
    asked, slowed = list[int](), MudiSlopes.slowed

    def counted(slopes: MudiSlopes, groups: Groups, rows: Whole) -> Floats:
        asked.append(len(rows))
        return slowed(slopes, groups, rows)

    monkeypatch.setattr(MudiSlopes, "slowed", counted)
    together.know([(need, 0, company) for company in companies])
    # That of BERT was measured.
    assert asked == [3 * (len(companies) - 1) * len(together.beside(need, 0, ()))]
    for company in companies:
        many, one = (made.beside(need, 0, company) for made in (together, apart))
        assert list(many) == list(one)
        for batch, curve in one.items():
            parts = [(each.k1, each.k2, each.knee, each.l0) for each in (many[batch], curve)]
            assert parts[0] == pytest.approx(parts[1], rel=1e-12, abs=1e-12)


def test_plans_steepen_by_the_regression_that_is_judged() -> None:
    made, need = strangers()
    alone, beside, slopes = made.beside(need, 0, ()), made.beside(need, 0, (LARGE,)), made.slopes(0)
    assert slopes.ridge is not None
    for batch, curve in alone.items():
        queries = Queries.of([need.model, LARGE], DEVICE.gpu_type, batch, [100 * curve.knee, 100 * (1 - curve.knee)])
        judged = slopes.slowdown(Groups(members=queries, group=np.zeros(2, dtype=np.int64)), np.ones(2))[0]
        assert beside[batch].l0 == pytest.approx(curve.l0 * min(judged, slopes.worst))
        assert judged > 1.05


def test_curves_alone_are_those_that_are_judged() -> None:
    """A batch that was measured at few shares has the shape of all, at its own level."""
    picture = room()
    profile = own(picture)
    batch = profile.points[-1].batch
    few = tuple(p for p in profile.points if p.batch != batch or p.share_pct_sm >= 60)
    made, need = curves(with_profile(picture, replace(profile, points=few)))
    solo = [point for point in few if not point.neighbours]
    rows = Rows(
        batch=np.array([float(point.batch) for point in solo]),
        share_pct=np.array([float(point.share_pct_sm) for point in solo]),
        cycle=np.ones(len(solo)),
        value=np.array([point.latency_ms_p99 or point.latency_ms_mean for point in solo]),
    )
    judged = learn_alone(rows)
    planned = made.beside(need, 0, ())
    for size, curve in zip(judged.batches, judged.curves, strict=True):
        assert planned[int(size)](np.array([0.2, 0.5, 1.0])) == pytest.approx(
            curve(np.array([0.2, 0.5, 1.0])), rel=1e-6
        )
    lowest = float(planned[batch](np.array([0.2]))[0])
    assert lowest > 2.0 * float(planned[batch](np.array([0.8]))[0])


def test_company_of_known_pressure_slows_by_its_sum_each_on_its_part_of_a_half() -> None:
    picture = room()
    mine = replace(own(picture), interference=Interference(pressure=0.3, sensitivity=2.0))
    made, need = curves(with_profile(picture, mine))
    kind = made.beliefs.classes[0]
    assert made.slowing(need, kind, ()) == 0.0
    for count in (1, 2, 3):
        slowed = made.slowing(need, kind, (RESNET,) * count)
        assert slowed == pytest.approx(2.0 * count * 0.3 * math.sqrt(0.5 / count))
