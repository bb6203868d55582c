"""From profiles to options, and standing replicas seen with today's beliefs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import GpuTypeName
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.models.options import Beliefs, memory_limit_mib
from solvers.problems.fleet import open_fleet
from solvers.problems.needs import Need, needs_of
from tests import builders

T4 = builders.device("a", 0, "t4")
GOOD = builders.assignment("demo/vision#0", T4, share_pct_sm=50, batch=4, memory_mib_limit=1216)
GOOD = replace(GOOD, envelope=replace(GOOD.envelope, batch_max=4))


def known(picture: Snapshot | None = None, **service: object) -> tuple[Beliefs, Need]:
    picture = picture or builders.snapshot([T4], [builders.service(**service)])
    need, *_ = needs_of(picture, builders.everything_movable(picture))
    return Beliefs.of(picture, open_fleet(picture, {}).classes), need


def assessed(standing: Assignment, **service: object) -> float | None:
    beliefs, need = known(**service)
    option = beliefs.assess(need, 0, standing)
    return None if option is None else option.capacity_rps


def test_options_are_measured_points_that_keep_the_promise() -> None:
    beliefs, need = known()
    options, refusals = beliefs.options(need)
    assert refusals == {}
    assert len(options) > 10
    measured = {(share, batch) for share in builders.SHARES for batch in builders.BATCHES}
    assert set(zip(options.share_pct.tolist(), options.batch.tolist(), strict=True)) <= measured
    assert (options.latency_ms <= 60.0 * (1 + 1e-9)).all()
    assert (options.batch_min <= options.batch).all()
    assert (options.batch <= options.batch_max).all()
    assert (options.memory_mib % 64 == 0).all()


def test_the_interference_margin_counts_unless_alone() -> None:
    shared, need = known()
    (options, _), at = shared.options(need), 5
    law_ms = builders.latency_ms("t4", int(options.batch[at]), int(options.share_pct[at]))
    assert options.latency_ms[at] >= 2 * 1.25 * law_ms * (1 - 1e-9)
    alone, need = known(affinity=builders.DEDICATED)
    options, _ = alone.options(need)
    assert set(options.share_pct.tolist()) == {100}
    at = int(options.batch.argmin())
    law_ms = builders.latency_ms("t4", int(options.batch[at]), 100)
    backlog = math.log(100) * 0.7 / (2 * 0.3 * int(options.batch[at]))
    assert options.latency_ms[at] == pytest.approx(law_ms * (2 + backlog))


def test_who_has_all_of_a_device_pays_for_no_neighbours() -> None:
    """So a promise that a device to oneself keeps is in reach, although none is beside others."""
    slo = builders.slo(2.4 * builders.latency_ms("t4", 1, 100))
    beliefs, need = known(slo=slo)
    options, refusals = beliefs.options(need)
    assert refusals == {}
    assert set(options.share_pct.tolist()) == {100}
    standing = replace(GOOD, share_pct_sm=100, batch=1, envelope=replace(GOOD.envelope, batch_max=1))
    assert assessed(standing, slo=slo) == pytest.approx(float(options.capacity_rps[options.batch == 1][0]))
    assert assessed(replace(standing, share_pct_sm=90), slo=slo) is None


def test_neighbours_are_paid_for_where_no_limit_of_shares_keeps_them_off() -> None:
    beliefs, need = known(slo=builders.slo(2.4 * builders.latency_ms("t4", 1, 100)))
    beliefs.classes[0] = replace(beliefs.classes[0], unlimited=True)
    assert [reason.code for reason in beliefs.options(need)[1].values()] == [ReasonCode.SLO_UNREACHABLE]


def test_shares_are_rounded_up_to_the_policys_step() -> None:
    profile = builders.profile(shares=(33, 52))
    picture = builders.snapshot([T4], [builders.service()], profiles=[profile])
    beliefs, need = known(picture)
    options, _ = beliefs.options(need)
    assert set(options.share_pct.tolist()) == {35, 55}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"gpu_types_allowed": (GpuTypeName("v100"),)}, ReasonCode.TYPE_NOT_ALLOWED),
        ({"slo": builders.slo(2.0)}, ReasonCode.SLO_UNREACHABLE),
    ],
)
def test_a_class_without_options_has_a_reason(change: dict[str, object], code: ReasonCode) -> None:
    beliefs, need = known(**change)
    options, refusals = beliefs.options(need)
    assert len(options) == 0
    assert [reason.code for reason in refusals.values()] == [code]


def test_a_device_that_is_too_small_says_how_much_is_needed() -> None:
    small = builders.device("a", 0, "t4", memory_mib=1200)
    beliefs, need = known(builders.snapshot([small], [builders.service()]))
    _, refusals = beliefs.options(need)
    assert refusals[0].code is ReasonCode.NO_MEMORY_LEFT
    # What there is to plan with: the margin is free on every device.
    numbers = {fact.name: fact.value for fact in refusals[0].facts}
    needed, room = memory_limit_mib(builders.memory_mib(1)), 1200 - builders.policy().memory_margin_mib
    assert numbers == {"memory_mib_needed": needed, "memory_mib_device": room}
    assert room < needed < 1200


def test_unmeasured_power_is_the_shares_part_of_the_way_to_the_limit() -> None:
    profile = builders.profile(shares=(50,), batches=(4,))
    profile = replace(profile, points=tuple(replace(point, power_w=None) for point in profile.points))
    beliefs, need = known(builders.snapshot([T4], [builders.service()], profiles=[profile]))
    options, _ = beliefs.options(need)
    assert options.power_w.tolist() == [pytest.approx(30.0)]


class TestStanding:
    def test_it_is_worth_what_a_fresh_one_would_be(self) -> None:
        beliefs, need = known()
        options, _ = beliefs.options(need)
        same = (options.share_pct == 50) & (options.batch == 4)
        assert assessed(GOOD) == pytest.approx(float(options.capacity_rps[same][0]))

    def test_a_share_between_measured_ones_counts_as_the_lower(self) -> None:
        assert assessed(replace(GOOD, share_pct_sm=55)) == assessed(GOOD)

    @pytest.mark.parametrize(
        "change",
        [
            {"share_pct_sm": 5},
            {"batch": 64},
            {"memory_mib_limit": 900},
            {"model": "bert"},
            {"envelope": replace(GOOD.envelope, batch_max=32)},
            {"envelope": replace(GOOD.envelope, clock_mhz_sm_min=990)},
        ],
        ids=["share", "batch", "memory", "model", "envelope", "clock"],
    )
    def test_it_is_worth_nothing_when_it_cannot_keep_its_promise(self, change: dict[str, object]) -> None:
        assert assessed(GOOD) is not None
        assert assessed(replace(GOOD, **change)) is None  # type: ignore[arg-type]

    def test_a_tighter_slo_makes_it_worthless(self) -> None:
        assert assessed(GOOD, slo=builders.slo(20.0)) is None

    def test_a_service_that_became_dedicated_wants_the_whole_device(self) -> None:
        assert assessed(GOOD, affinity=builders.DEDICATED) is None
        assert assessed(replace(GOOD, share_pct_sm=100), affinity=builders.DEDICATED) is not None
