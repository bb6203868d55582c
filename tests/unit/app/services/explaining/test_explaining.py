"""What of an insight is told to whom, in which order and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.services.explaining.explaining import Types, WhyNot, WhyNotVerdict, told, why_not
from app.services.explaining.sentences import candidate_sentence, price_sentence, sentence, way_sentence
from app.services.explaining.solves import (
    PLANNING_S_MAX,
    ExplainQuestion,
    SloPoint,
    Solves,
    answered_anew,
    check_question,
)
from app.services.whatif.made import Wish
from solvers.cycle.attempts import Asking
from solvers.domain.evidence import (
    Candidate,
    Contender,
    Fact,
    Insight,
    Reason,
    ReasonCode,
    Relaxation,
    Resource,
    ShadowPrice,
    SilentReporter,
)
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Objective
from solvers.domain.workload import Service, Slo, SloKind
from solvers.errors import FieldError, InputError, NotFoundError
from solvers.models.easing import eased
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders, chats

VISION, OTHER = WorkloadId("demo/vision"), WorkloadId("other/speech")
TYPES = Types(known=frozenset({"t4", "l4", "a100", "h100"}), there=frozenset({"t4", "l4", "a100"}))


def candidate(gpu_type: str, *, workload: WorkloadId = VISION, **more: Any) -> Candidate:
    base = Candidate(
        workload=workload,
        gpu_type=GpuTypeName(gpu_type),
        model=ModelName("resnet50"),
        chosen=False,
        feasible=True,
        share_pct_sm=40,
        batch=8,
        clock_mhz_sm=1590,
        replicas=2.0,
        latency_ms=50.0,
        usd_per_h=0.7,
        usd_per_h_more=0.2,
    )
    return replace(base, **more)


def relaxation(resource: Resource, subject: str, *, way: int = 1, workload: WorkloadId | None = VISION) -> Relaxation:
    return Relaxation(resource=resource, subject=subject, workload=workload, value_now=2.0, value_needed=5.0, way=way)


RULED_OUT = Reason(code=ReasonCode.SLO_UNREACHABLE, subject="a100", facts=(Fact(name="latency_ms_best", value=70.0),))
INSIGHT = Insight(
    contenders=(Contender(name="joint", objective=Objective()),),
    prices=(
        ShadowPrice(resource=Resource.GPU, subject="t4", usd_per_h=0.3),
        ShadowPrice(resource=Resource.LATENCY_MS, subject=VISION, usd_per_h=0.01),
        ShadowPrice(resource=Resource.LATENCY_MS, subject=OTHER, usd_per_h=0.02),
        ShadowPrice(resource=Resource.POWER_W, subject="rack/r1", usd_per_h=0.0, binding=False),
        ShadowPrice(resource=Resource.QUOTA_GPU, subject="other", usd_per_h=1.0),
    ),
    candidates=(
        candidate("a100", feasible=False, usd_per_h_more=None, reasons=(RULED_OUT,)),
        candidate("l4"),
        candidate("t4", chosen=True, usd_per_h=0.5, usd_per_h_more=0.0),
        candidate("t4", workload=OTHER),
    ),
    relaxations=(
        relaxation(Resource.QUOTA_GPU, "demo", way=2),
        relaxation(Resource.GPU, "t4"),
        relaxation(Resource.REPLICA, VISION),
        relaxation(Resource.RATE_RPS, OTHER, way=3),
        relaxation(Resource.GPU, "t4", way=0, workload=None),
    ),
    facts=(Fact(name="columns", value=9.0),),
)


def plan() -> Plan:
    made = propose("greedy", builders.request(builders.lab([builders.service()]))).plan
    assert made is not None
    return made


def test_every_resource_has_words_of_its_own() -> None:
    priced = [price_sentence(ShadowPrice(resource=each, subject="x", usd_per_h=1.0)) for each in Resource]
    loose = [price_sentence(ShadowPrice(resource=each, subject="x", usd_per_h=0.0, binding=False)) for each in Resource]
    given = [way_sentence([relaxation(each, "x")]) for each in Resource]
    assert len(set(priced)) == len(set(given)) == len(Resource)
    assert all(text.endswith("does not bind.") for text in loose)


def test_prices_are_told_in_units_that_people_buy() -> None:
    cap = ShadowPrice(resource=Resource.POWER_W, subject="rack/r1", usd_per_h=0.02)
    assert price_sentence(cap) == "10 W more under the cap rack/r1 would save $0.2/h at shadow prices."
    assert (
        price_sentence(INSIGHT.prices[1]) == "10 ms more in the SLO of demo/vision would save $0.1/h at shadow prices."
    )


def test_a_way_out_tells_all_that_gives_together() -> None:
    ways = told(INSIGHT, None, VISION).ways_out
    assert [way.sentence for way in ways] == [
        "3 more t4 (2 now) and up to 5 replicas of demo/vision instead of 2",
        "a quota of 5 GPUs for project demo instead of 2",
        "other/speech, which has a lower priority, served 5 requests/s instead of 2",
    ]
    whole = told(INSIGHT, None, None).ways_out
    assert [way.workload for way in whole] == [None, VISION, VISION, VISION]


def test_candidates_are_told_best_first() -> None:
    mine = told(INSIGHT, None, VISION).candidates
    assert [item.candidate.gpu_type for item in mine] == ["t4", "l4", "a100"]
    assert "cost $0.2/h more" in mine[1].sentence
    assert "latency best 70 ms" in mine[2].sentence


def test_what_costs_no_more_by_its_own_price_is_scarce() -> None:
    facts = (Fact(name="usd_per_h_here", value=0.4), Fact(name="usd_per_h_chosen", value=0.5))
    scarce = candidate("l4", reasons=(Reason(code=ReasonCode.COSTLIER, subject="l4", facts=facts),))
    assert candidate_sentence(scarce).endswith("because what is scarce on l4 is worth more to others.")
    assert candidate_sentence(candidate("l4", usd_per_h_more=None)).endswith("nothing of it is free.")


def own_prices(here: float, chosen: float) -> tuple[Reason, ...]:
    facts = (
        Fact(name="usd_per_h_here", value=here),
        Fact(name="usd_per_h_chosen", value=chosen),
        Fact(name="usd_per_h_less_at_shadow_prices", value=0.1),
    )
    return (Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject="l4", facts=facts),)


@pytest.mark.parametrize(
    ("item", "ending"),
    [
        (
            candidate("l4", usd_per_h_more=-0.1423, replicas=1.13, usd_per_h=0.5554),
            "would keep the SLO and be cheaper by $0.1423/h at shadow prices, but only in parts: "
            "2 whole replicas would cost $0.983009/h.",
        ),
        (
            candidate("l4", usd_per_h_more=-0.1, replicas=0.5, usd_per_h=0.2),
            "cheaper by $0.1/h at shadow prices, but only in parts: 1 whole replica would cost $0.4/h.",
        ),
        (
            candidate("l4", usd_per_h_more=-0.1, reasons=own_prices(0.7, 0.8)),
            "cheaper by $0.1/h at shadow prices, "
            "but of whole devices, and from what stands, no plan was found that gains by it.",
        ),
        (
            candidate("l4", usd_per_h_more=-0.1, replicas=1.9, reasons=own_prices(0.7, 0.6)),
            "cheaper by $0.1/h at shadow prices, though dearer by its own price ($0.7/h instead of $0.6/h), "
            "but of whole devices, and from what stands, no plan was found that gains by it.",
        ),
        (candidate("l4", usd_per_h_more=0.0), "would keep the SLO and cost the same at shadow prices."),
        (candidate("l4", usd_per_h_more=-1e-6), "would keep the SLO and cost the same at shadow prices."),
        (candidate("l4", usd_per_h_more=1e-6), "would keep the SLO and cost the same at shadow prices."),
    ],
)
def test_what_is_no_dearer_is_told_with_what_speaks_against_it(item: Candidate, ending: str) -> None:
    assert candidate_sentence(item).endswith(ending)


@pytest.mark.parametrize(
    ("less", "words"), [(0.1, "no plan was found that gains by it"), (0.0, "it would cost the same")]
)
def test_a_rejected_type_is_called_cheaper_only_where_it_is(less: float, words: str) -> None:
    facts = (Fact(name="usd_per_h_less_at_shadow_prices", value=less),)
    reason = Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject="l4", facts=facts)
    assert words in sentence(reason)


def test_a_project_is_told_nothing_of_others() -> None:
    seen = told(INSIGHT, "demo", None)
    assert seen.contenders == seen.facts == ()
    assert [item.price.subject for item in seen.prices] == ["t4", VISION]
    assert {item.candidate.workload for item in seen.candidates} == {VISION}
    assert all("other" not in way.sentence for way in seen.ways_out)
    assert {way.workload for way in seen.ways_out} == {VISION}


def test_nothing_is_told_where_nothing_was_found_out() -> None:
    assert told(None, None, None).candidates == ()


@pytest.mark.parametrize(
    ("gpu_type", "verdict"),
    [("t4", WhyNotVerdict.CHOSEN), ("l4", WhyNotVerdict.DEARER), ("a100", WhyNotVerdict.RULED_OUT)],
)
def test_why_not_is_answered_from_the_candidates(gpu_type: str, verdict: WhyNotVerdict) -> None:
    answer = why_not(plan(), INSIGHT, (VISION, gpu_type), TYPES)
    assert answer.verdict is verdict
    assert answer.candidate is not None
    assert answer.sentence == candidate_sentence(answer.candidate)


@pytest.mark.parametrize("more", [-0.14, 0.0])
def test_what_costs_no_more_is_not_called_dearer(more: float) -> None:
    cheap = candidate("l4", usd_per_h_more=more)
    answer = why_not(plan(), Insight(candidates=(cheap,)), (VISION, "l4"), TYPES)
    assert answer.verdict is WhyNotVerdict.NOT_DEARER


def test_why_not_is_answered_from_the_plans_reasons_where_nobody_told_candidates() -> None:
    made = plan()
    chosen = made.assignments[0].reasons[0].subject
    others = {reason.subject for reason in made.assignments[0].reasons} - {chosen}
    answer = why_not(made, None, (VISION, min(others & TYPES.known)), TYPES)
    assert answer.verdict is WhyNotVerdict.RULED_OUT
    assert answer.candidate is None
    none = why_not(made, None, (VISION, "h100"), TYPES)
    assert none.sentence == "the fleet has no usable device of type h100."
    blank = why_not(replace(made, assignments=()), None, (VISION, "t4"), TYPES)
    assert blank.verdict is WhyNotVerdict.NOT_LOOKED_AT
    with pytest.raises(NotFoundError, match="no GPU type zx81"):
        why_not(made, None, (VISION, "zx81"), TYPES)


ASKING = Asking(propose=propose, verify=verify, reporter=SilentReporter())
WISH = Wish(planner="greedy", work_units=1000)
LAB = builders.lab([builders.service(), builders.service("fast", slo=builders.slo(12.0))])


def test_a_service_forced_onto_a_type_costs_no_less() -> None:
    solves = Solves.of(LAB, WISH, ASKING)
    costs = {kind: solves.forced(VISION, kind).cost_usd_per_h_more for kind in ("t4", "l4", "v100", "a100")}
    assert min(costs.values()) == 0
    assert costs["a100"] > 0
    assert solves.forced("demo/fast", "t4").verified
    with pytest.raises(NotFoundError):
        solves.forced(VISION, "zx81")
    with pytest.raises(NotFoundError):
        solves.forced("demo/nobody", "t4")


def test_a_promise_costs_less_the_longer_it_is() -> None:
    points = Solves.of(LAB, WISH, ASKING).slo_curve("demo/fast")
    assert [point.limit_ms for point in points] == [6.0, 8.4, 10.2, 12.0, 15.0, 18.0, 24.0]
    served = [(point.unserved_more, point.cost_usd_per_h) for point in points]
    assert served == sorted(served, reverse=True)
    assert points[3].cost_usd_per_h_more == 0
    assert points[-1].cost_usd_per_h < points[3].cost_usd_per_h


def test_the_curve_of_a_promise_that_nothing_keeps_is_of_the_owners() -> None:
    picture = eased(builders.lab([builders.service("fast", slo=builders.slo(4.0), rate_rps_declared=1.0)]))
    solves = Solves.of(picture, WISH, ASKING)
    points = solves.slo_curve("demo/fast")
    assert [point.limit_ms for point in points] == [2.0, 2.8, 3.4, 4.0, 5.0, 6.0, 8.0]
    assert points[0].rate_rps_short > 0 == points[-1].rate_rps_short
    # Forced onto a type, it is as near as that comes.
    assert solves.forced("demo/fast", "t4").rate_rps_short == 0


def test_a_curve_never_rises_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {6.0: 1.0, 8.4: 3.0, 10.2: 2.0, 12.0: 2.0, 15.0: 2.0, 18.0: 0.5, 24.0: 0.7}

    def point(_: Solves, service: Service, factor: float) -> SloPoint:
        limit_ms = round(factor * (service.slo.latency_ms or 0.0), 6)
        cost = costs[limit_ms]
        return SloPoint(
            factor=factor, limit_ms=limit_ms, cost_usd_per_h=cost, cost_usd_per_h_more=0.0, rate_rps_short=0.0,
            unserved_more=0.0, replicas=1, gpus=(), verified=True,
        )  # fmt: skip

    monkeypatch.setattr(Solves, "_point", point)
    points = Solves.of(LAB, WISH, ASKING).slo_curve("demo/fast")
    assert [item.cost_usd_per_h for item in points] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5]


def test_only_a_promised_latency_has_a_curve() -> None:
    steady = builders.service(slo=Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=10.0))
    solves = Solves.of(builders.lab([steady], jobs=(builders.job(),)), WISH, ASKING)
    with pytest.raises(InputError, match="throughput has no latency"):
        solves.slo_curve(VISION)
    with pytest.raises(InputError, match="is no service"):
        solves.slo_curve("demo/train")


def test_both_times_of_a_token_promise_are_scaled() -> None:
    points = Solves.of(chats.lab([chats.service()]), WISH, ASKING).slo_curve("demo/chat")
    assert points[0].limit_ms == 750.0
    assert points[-1].cost_usd_per_h <= points[0].cost_usd_per_h or points[0].unserved_more > 0


def asked(**more: Any) -> ExplainQuestion:
    base: dict[str, Any] = {"workload": VISION, "planner": "greedy", "work_units": 1000}
    return ExplainQuestion(**{**base, **more})


def stored(verdict: WhyNotVerdict, gpu_type: str = "a100") -> WhyNot:
    return WhyNot(workload=VISION, gpu_type=gpu_type, verdict=verdict, candidate=None, sentence="as stored")


def test_what_is_stored_is_told_and_only_what_is_missing_is_planned() -> None:
    unasked = replace(ASKING, propose=lambda *_: pytest.fail("nothing needs to be planned"))
    for verdict in (WhyNotVerdict.CHOSEN, WhyNotVerdict.RULED_OUT):
        kept = stored(verdict)
        assert answered_anew(LAB, asked(why_not="a100"), unasked, kept).why_not is kept
    forced = Solves.of(LAB, WISH, ASKING).forced(VISION, "a100")
    for verdict in (WhyNotVerdict.DEARER, WhyNotVerdict.NOT_DEARER):
        found = answered_anew(LAB, asked(why_not="a100"), ASKING, stored(verdict))
        assert found.why_not is not None
        assert (found.why_not.sentence, found.forced, found.slo_curve) == ("as stored", forced, None)


def test_what_nobody_looked_at_is_looked_at_now() -> None:
    found = answered_anew(LAB, asked(why_not="a100"), ASKING, stored(WhyNotVerdict.NOT_LOOKED_AT))
    assert found.why_not is not None
    assert found.forced is not None
    assert found.why_not.verdict is WhyNotVerdict.NO_ROOM or found.why_not.verdict is WhyNotVerdict.DEARER
    assert found.why_not.candidate is not None
    tight = replace(LAB, services=(replace(LAB.services[0], slo=builders.slo(6.0)), *LAB.services[1:]))
    never = answered_anew(tight, asked(workload="demo/fast", why_not="t4"), ASKING)
    assert never.why_not is not None
    assert never.forced is None
    assert never.why_not.verdict is WhyNotVerdict.RULED_OUT


def test_a_curve_is_the_same_whoever_asks() -> None:
    found = answered_anew(LAB, asked(workload="demo/fast", slo_curve=True), ASKING)
    assert found.slo_curve == Solves.of(LAB, WISH, ASKING).slo_curve("demo/fast")
    assert (found.why_not, found.forced) == (None, None)


def test_a_question_is_refused_before_anything_is_planned() -> None:
    with pytest.raises(FieldError, match="nothing to ask"):
        asked()
    both = asked(why_not="t4", slo_curve=True, deadline_s=PLANNING_S_MAX / 8)
    assert both.plans == 8
    check_question(LAB, both)
    with pytest.raises(FieldError, match="8 plans of 76 s take longer"):
        check_question(LAB, replace(both, deadline_s=76.0))
    with pytest.raises(NotFoundError):
        check_question(LAB, asked(workload="demo/nobody", slo_curve=True))
