"""What InSS believes of a replica beside others, and that its plans go by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.traits import limit_ms
from solvers.policies.inss.batching import size
from solvers.policies.inss.belief import InssBelief, Member
from solvers.policies.inss.models import CACHE
from tests import builders

L2 = 0.3
"""Of a model whose use nobody measured, on the whole device."""
PRESSED = Interference(pressure=0.25, sensitivity=1.2, exponent=1.0)


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
    belief = InssBelief.of(case, interference=True)
    assert belief.slowdown(0, together) == pytest.approx(1.0 + CACHE * L2 * 0.6)
    assert belief.slowdown(1, together) == pytest.approx(1.0 + CACHE * L2 * 0.4)
    assert belief.slowdown(0, together[:1]) == 1.0
    assert [InssBelief.of(case, interference=False).slowdown(at, together) for at in range(3)] == [1.0] * 3


def test_columns_are_listed_with_usual_neighbours_on_the_rest() -> None:
    case, together = members(picture())
    fifth, more, _ = (InssBelief.of(case, interference=True).slowdown_borne(*each) for each in together)
    assert (fifth, more) == (pytest.approx(1.0 + CACHE * L2 * 0.8), pytest.approx(1.0 + CACHE * L2 * 0.6))
    assert InssBelief.of(case, interference=False).slowdown_borne(*together[0]) == 1.0


def test_alpha_cache_is_fitted_to_how_a_model_suffers() -> None:
    """Pressure rises with the share as L2 use does: excess 1.2 x 0.25 of the whole device over its use of 0.3."""
    case, together = members(picture(PRESSED))
    belief = InssBelief.of(case, interference=True)
    assert belief.cache(together[0][0].model, together[0][1].gpu_type) == pytest.approx(1.2 * 0.25 / L2)
    assert belief.slowdown(0, together) == pytest.approx(1.0 + 1.2 * 0.25 * 0.6)


def test_times_alone_follow_batch_and_share_and_rates_the_slowdown() -> None:
    case, together = members(picture())
    belief = InssBelief.of(case, interference=True)
    for need, option in together:
        alone = belief.alone_ms(need, option)
        assert alone == pytest.approx(builders.latency_ms("t4", 4, option.share_pct), rel=0.15)
        assert belief.alone_ms(need, option, 8) > alone
        assert belief.throughput_rps(need, option, 1.25) == pytest.approx(1000.0 * 4 / (1.25 * alone))
    assert belief.alone_ms(*together[1]) < 0.7 * belief.alone_ms(*together[0])


def test_in_time_is_two_executions_within_the_limit_where_batches_fill_at_once() -> None:
    case, together = members(picture())
    belief, (need, option) = InssBelief.of(case, interference=True), together[0]
    alone, limit = belief.alone_ms(need, option), limit_ms(need)
    assert belief.in_time(need, option, 0.45 * limit / alone, 1e9)
    assert not belief.in_time(need, option, 0.55 * limit / alone, 1e9)
    # Three more requests have to come before a batch of four is full.
    waits_ms = belief.latency_ms(need, option, 4, (1.0, 10.0))
    assert waits_ms == pytest.approx(300.0 + alone)


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
    belief, need = InssBelief.of(case, interference=True), together[0][0]
    request = builders.request(case.snapshot)
    draft = Draft.of(request, case)
    options = draft.options(need)
    mine = np.flatnonzero((options.device_class == 0) & (options.share_pct == SHARES[0]))
    choices = sorted((draft.option(need, int(row)) for row in mine), key=lambda item: item.batch)
    alone, beside = (size(belief, 0, others, 20.0, choices) for others in (together[:1], together))
    assert alone.serves
    assert alone.option is not None
    slowdown = belief.slowdown(0, together)
    assert slowdown > 2.0
    assert beside.answer.batch is not None
    assert alone.answer.batch is not None
    assert beside.answer.batch < alone.answer.batch
