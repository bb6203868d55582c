"""What InSS believes of a replica beside others, and that its plans go by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.models.base import Groups, Queries
from solvers.planners import registry
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.traits import limit_ms
from solvers.policies.inss.batching import size
from solvers.policies.inss.belief import CompanyEffect, InssBelief, Member
from solvers.policies.inss.models import CACHE
from tests import builders

L2 = 0.3
"""Of a model whose use nobody measured, on the whole device."""
PRESSED = Interference(pressure=0.25, sensitivity=1.2, exponent=1.0)
STEEP = Interference(pressure=0.25, sensitivity=1.2, exponent=0.5)


def picture(interference: Interference | None = None, **changes: object) -> Snapshot:
    services = [
        builders.service(name, model=name, slo=builders.slo(400.0), **changes) for name in ("bert", "resnet50", "yolo")
    ]
    made = builders.snapshot([builders.device("a", 0, "t4")], services)
    return replace(made, profiles=tuple(replace(item, interference=interference) for item in made.profiles))


SHARES = (20, 40, 20)


def members(made: Snapshot) -> tuple[Case, list[Member]]:
    request = builders.request(made)
    case = Case.of(request)
    draft, found = Draft.of(request, case), list[Member]()
    for need, share in zip(draft.needs, SHARES, strict=True):
        options = draft.options(need)
        row = int(np.flatnonzero((options.share_pct == share) & (options.batch == 4))[0])
        found.append((need, draft.option(need, row)))
    return case, found


def test_neighbours_slow_by_their_use_of_l2_and_nobody_by_its_own() -> None:
    case, together = members(picture())
    belief = InssBelief(case=case, interference=True)
    assert belief.beside(0, together) == CompanyEffect(factor=pytest.approx(1.0 + CACHE * L2 * 0.6))
    assert belief.beside(1, together) == CompanyEffect(factor=pytest.approx(1.0 + CACHE * L2 * 0.4))
    assert belief.beside(0, together[:1]) == CompanyEffect()
    assert [InssBelief(case=case, interference=False).beside(at, together) for at in range(3)] == [CompanyEffect()] * 3


def test_columns_are_listed_with_a_usual_neighbour_on_the_rest() -> None:
    case, together = members(picture())
    fifth, more, _ = (InssBelief(case=case, interference=True).beside_usual(*each).factor for each in together)
    assert (fifth, more) == (pytest.approx(1.0 + CACHE * L2 * 0.8), pytest.approx(1.0 + CACHE * L2 * 0.6))
    assert InssBelief(case=case, interference=False).beside_usual(*together[0]) == CompanyEffect()
    pressed = InssBelief(case=members(picture(STEEP))[0], interference=True)
    assert pressed.beside_usual(*together[0]).launch_ms == pressed.beside(0, together[:2]).launch_ms > 0.0
    need, option = together[0]
    assert pressed.beside_usual(need, replace(option, share_pct=100)) == CompanyEffect()


def test_the_rest_of_a_slice_is_no_more_than_the_slice() -> None:
    """Who would fill it, and the usual neighbour, do the same to a replica."""
    services = [builders.service(name, model=name, slo=builders.slo(400.0)) for name in ("bert", "resnet50")]
    slice_ = builders.mig_slice("a", 1, "v100", 3)
    made = builders.snapshot([builders.device("a", 0, "v100"), slice_], services)
    made = replace(made, profiles=tuple(replace(item, interference=None) for item in made.profiles))
    case = Case.of(builders.request(made))
    draft, belief = Draft.of(builders.request(made), case), InssBelief(case=case)
    number = int(draft.fleet.class_of[draft.fleet.index[slice_.id]])
    first, second = (
        (need, draft.option(need, int(np.flatnonzero(draft.options(need).device_class == number)[0])))
        for need in draft.needs
    )
    filling = second[0], replace(second[1], share_pct=100 - first[1].share_pct)
    assert belief.beside_usual(*first).factor == pytest.approx(belief.beside(0, [first, filling]).factor)


def test_sensitivity_is_learned_from_how_a_model_suffers() -> None:
    """Pressure rises with the share as L2 use does: excess 1.2 x 0.25 of the whole device over its use of 0.3, but for
    the few rows that the usual weighs. No neighbour costs anything by being there.
    """
    case, together = members(picture(PRESSED))
    belief = InssBelief(case=case, interference=True)
    found = belief.terms(together[0][1].gpu_type).coefficients(("bert", "t4"))
    assert (found.cache, found.launch_ms) == (pytest.approx(1.2 * 0.25 / L2, rel=0.05), pytest.approx(0.0, abs=0.1))
    alone = belief.alone_ms(*together[0])
    assert belief.beside(0, together).took_ms(alone) / alone == pytest.approx(1.0 + 1.2 * 0.25 * 0.6, rel=0.02)


def test_many_small_neighbours_launch_more_than_one_large_one() -> None:
    """Where pressure rises with the root of a share, who is there costs something whatever its share: that is what
    launching takes, in milliseconds of every batch, so that small batches suffer most.
    """
    case, together = members(picture(STEEP))
    belief = InssBelief(case=case, interference=True)
    need, option = together[0]
    two, one = belief.beside(0, together), belief.beside(0, together[:2])
    assert two.launch_ms > 1.5 * one.launch_ms > 0.0
    alone = [belief.alone_ms(need, option, batch) for batch in (1, 32)]
    small, great = (two.took_ms(took) / took for took in alone)
    assert small > great + 0.05
    told = 1.0 + 1.2 * 0.25 * (0.4**0.5 + 0.2**0.5)
    middle = belief.alone_ms(need, option, 8)
    assert two.took_ms(middle) / middle == pytest.approx(told, rel=0.1)


def test_plans_go_by_the_formula_that_is_judged() -> None:
    """What a member takes beside its neighbours is what the model that claims judge answers for the same company."""
    case, together = members(picture(STEEP))
    belief = InssBelief(case=case, interference=True)
    names, shares = [need.model for need, _ in together], [float(option.share_pct) for _, option in together]
    members_ = Queries.of(names, "t4", 4, shares)
    groups = Groups(members=members_, group=np.zeros(3, dtype=np.int64))
    alone = np.array([belief.alone_ms(*each) for each in together])
    judged = belief.terms(together[0][1].gpu_type).slowdown(groups, alone)
    planned = [belief.beside(at, together).took_ms(alone[at]) / alone[at] for at in range(3)]
    assert planned == pytest.approx(judged, rel=1e-12)
    assert min(planned) > 1.1


def test_times_alone_follow_batch_and_share_and_rates_the_company() -> None:
    case, together = members(picture())
    belief = InssBelief(case=case, interference=True)
    for need, option in together:
        alone = belief.alone_ms(need, option)
        assert alone == pytest.approx(builders.latency_ms("t4", 4, option.share_pct), rel=0.15)
        assert belief.alone_ms(need, option, 8) > alone
        beside = CompanyEffect(factor=1.25, launch_ms=2.0)
        assert belief.throughput_rps(need, option, beside) == pytest.approx(1000.0 * 4 / (1.25 * alone + 2.0))
    assert belief.alone_ms(*together[1]) < 0.7 * belief.alone_ms(*together[0])


def test_in_time_is_two_executions_within_the_limit_where_batches_fill_at_once() -> None:
    case, together = members(picture())
    belief, (need, option) = InssBelief(case=case, interference=True), together[0]
    alone, limit = belief.alone_ms(need, option), limit_ms(need)
    assert belief.in_time(need, option, CompanyEffect(factor=0.45 * limit / alone), 1e9)
    assert not belief.in_time(need, option, CompanyEffect(factor=0.55 * limit / alone), 1e9)
    # Three more requests have to come before a batch of four is full.
    assert belief.latency_ms(need, option, 4, CompanyEffect(), 10.0) == pytest.approx(300.0 + alone)


def test_a_queue_is_waited_for_by_whole_batches() -> None:
    """The next of nine behind the running batch of four is in the third after it; alone it waits for others still."""
    case, together = members(picture())
    belief, (need, option) = InssBelief(case=case, interference=True), together[0]
    alone = belief.alone_ms(need, option)
    assert belief.latency_ms(need, option, 4, CompanyEffect(), 1e9, 8.0) == pytest.approx((1 + 3) * alone)
    assert belief.latency_ms(need, option, 4, CompanyEffect(), 1.0, 8.0) == pytest.approx(3000.0 + alone)
    limit = limit_ms(need)
    assert belief.in_time(need, option, CompanyEffect(), 1e9, 4 * (limit // alone - 1) - 1)
    assert not belief.in_time(need, option, CompanyEffect(), 1e9, 4 * (limit // alone - 1))


def test_plans_go_by_what_neighbours_do() -> None:
    """With models that hurt each other much, the same planner that knows nothing of it plans otherwise."""
    hurt = replace(picture(Interference(pressure=2.0, sensitivity=2.0), rate_rps_declared=25.0))
    plans = [
        registry.create(name).propose(builders.request(hurt), b"", SilentReporter()).plan
        for name in ("inss", "inss_ni")
    ]
    told = [
        sorted((item.workload, item.batch, item.share_pct_sm) for item in plan.assignments) if plan is not None else []
        for plan in plans
    ]
    assert told[0] != told[1]


def test_a_batch_is_sized_beside_its_neighbours() -> None:
    case, together = members(picture(Interference(pressure=2.0, sensitivity=2.0, exponent=1.0)))
    belief, need = InssBelief(case=case, interference=True), together[0][0]
    request = builders.request(case.snapshot)
    draft = Draft.of(request, case)
    options = draft.options(need)
    mine = np.flatnonzero((options.device_class == 0) & (options.share_pct == SHARES[0]))
    choices = sorted((draft.option(need, int(row)) for row in mine), key=lambda item: item.batch)
    alone, beside = (size(belief, 0, others, 20.0, choices) for others in (together[:1], together))
    assert alone.serves
    assert alone.option is not None
    assert belief.beside(0, together).factor > 2.0
    assert beside.answer.batch is not None
    assert alone.answer.batch is not None
    assert beside.answer.batch < alone.answer.batch


@pytest.mark.parametrize(
    ("waiting", "batch", "serves"), [(0.0, 32, True), (32.0, 32, True), (64.0, 8, True), (100.0, 32, False)]
)
def test_a_batch_is_sized_behind_its_queue(waiting: float, batch: int, serves: bool) -> None:
    """Sixty-four waiting are three batches of 32 with the running one and the next's, too late; smaller ones get there.
    Behind a hundred nothing does: batch and rate are what suits once they are dropped, and batches alone do not serve.
    """
    case, together = members(picture())
    belief, need = InssBelief(case=case, interference=True), together[1][0]
    draft = Draft.of(builders.request(case.snapshot), case)
    options = draft.options(need)
    mine = np.flatnonzero((options.device_class == 0) & (options.share_pct == SHARES[1]))
    choices = sorted((draft.option(need, int(row)) for row in mine), key=lambda item: item.batch)
    found = size(belief, 1, together, 150.0, choices, waiting)
    assert found.option is not None
    assert (found.option.batch, found.serves, found.rate_rps) == (batch, serves, 150.0)
