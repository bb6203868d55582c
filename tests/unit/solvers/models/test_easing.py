"""Promises that nothing known keeps are eased; every planner then serves, and the verifier agrees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.cycle.attempts import Asking, try_chain
from solvers.domain.device import Taint
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import NodeId, PolicyName
from solvers.domain.policy import Pool
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SloKind, SloScope
from solvers.models.easing import EASES, eased
from solvers.planners import registry
from solvers.verify.checks import verify
from tests import builders, chats

T4, V100 = builders.device("a", 0, "t4"), builders.device("b", 0, "v100")
ASKING = Asking(propose=registry.propose, verify=verify, reporter=SilentReporter())
HARD_MS = 5.0


def picture(*services: object, **changes: object) -> Snapshot:
    return builders.snapshot([T4, V100], services or [builders.service(slo=builders.slo(HARD_MS))], **changes)


def best_ms(snapshot: Snapshot) -> float:
    (item,) = snapshot.eased
    return next(fact.value for fact in item.nearest.facts if fact.name == "latency_ms_best")


def test_what_is_kept_somewhere_stays_as_it_is() -> None:
    asked = picture(builders.service())
    assert eased(asked) is asked


def test_a_promise_that_nothing_keeps_is_eased_above_the_best_of_all_types() -> None:
    found = eased(picture())
    (service,), (item,) = found.services, found.eased
    assert item.asked.latency_ms == HARD_MS
    assert item.nearest.code is ReasonCode.SLO_UNREACHABLE
    assert item.nearest.subject == "v100"
    law_ms = builders.latency_ms("v100", 1, 100)
    assert 2 * law_ms < best_ms(found) < 2.2 * law_ms
    assert service.slo.latency_ms == pytest.approx(EASES[0] * best_ms(found))
    assert replace(service.slo, latency_ms=HARD_MS) == item.asked


@pytest.mark.parametrize("planner", ["greedy", "joint"])
def test_it_is_served_and_the_plan_says_that_nothing_keeps_it(planner: str) -> None:
    hard, easy = builders.service(slo=builders.slo(HARD_MS)), builders.service("easy")
    asked = picture(easy, hard)
    before = try_chain(ASKING, [planner], builders.request(asked))
    assert {item.workload for item in before.plan.assignments} == {easy.id}
    found = try_chain(ASKING, [planner], builders.request(eased(asked)))
    assert found.sound
    assert not found.plan.unplaced
    codes = {item.workload: {why.code for why in item.reasons} for item in found.plan.assignments}
    assert ReasonCode.NEAREST_KNOWN in codes[hard.id]
    assert ReasonCode.CHEAPEST_FEASIBLE not in codes[hard.id]
    assert ReasonCode.NEAREST_KNOWN not in codes[easy.id]


def test_easing_again_changes_nothing_and_another_promise_is_judged_anew() -> None:
    once = eased(picture())
    assert eased(once) == once
    (service,) = once.services
    harder = eased(replace(once, services=(replace(service, slo=builders.slo(HARD_MS / 2)),)))
    assert [item.asked.latency_ms for item in harder.eased] == [HARD_MS / 2]
    assert harder.services == once.services
    kept = eased(replace(once, services=(replace(service, slo=builders.slo(500.0)),)))
    assert (kept.eased, kept.services[0].slo.latency_ms) == ((), 500.0)


def test_only_what_the_service_may_use_counts() -> None:
    limit_ms = (2.2 * builders.latency_ms("v100", 1, 100) + 2 * builders.latency_ms("t4", 1, 100)) / 2
    hard = builders.service(slo=builders.slo(limit_ms))
    assert not eased(picture(hard)).eased
    (item,) = eased(picture(replace(hard, gpu_types_allowed=("t4",)))).eased
    assert item.nearest.subject == "t4"
    fenced = [builders.device("a", 0, "t4"), builders.device("b", 0, "v100", taints=(Taint(key="lab", value="no"),))]
    assert eased(builders.snapshot(fenced, [hard])).eased == (item,)


def test_an_alternative_that_keeps_it_is_enough() -> None:
    works, hard = {"resnet18": 0.1, "resnet50": 1.0}, builders.service(slo=builders.slo(HARD_MS))
    more = {
        "models": tuple(builders.model(name) for name in works),
        "profiles": tuple(
            builders.profile(name, on, work=work) for name, work in works.items() for on in ("t4", "v100")
        ),
    }
    assert eased(picture(hard, **more)).eased
    assert not eased(picture(replace(hard, alternatives=("resnet18",)), **more)).eased


@pytest.mark.parametrize(
    ("slo", "field"),
    [
        (builders.slo(0.5, scope=SloScope.EXECUTION), "latency_ms"),
        (replace(builders.slo(), kind=SloKind.DEADLINE, latency_ms=None, deadline_s=0.001), "deadline_s"),
    ],
)
def test_every_kind_with_a_latency_is_eased(slo: object, field: str) -> None:
    (service,) = eased(picture(builders.service(slo=slo))).services
    assert getattr(service.slo, field) > getattr(slo, field)


def test_what_nobody_knows_or_has_no_room_stays_as_it_is() -> None:
    assert not eased(picture(profiles=[])).eased
    assert not eased(builders.snapshot([], [builders.service(slo=builders.slo(HARD_MS))])).eased
    small = builders.device("a", 0, "t4", memory_mib=64)
    assert not eased(builders.snapshot([small], [builders.service(slo=builders.slo(HARD_MS))])).eased


def test_both_times_of_a_token_promise_are_eased_as_far_as_they_are_missed() -> None:
    hard = chats.service(slo=chats.slo(inter_token_ms=5.0))
    asked = chats.lab([hard])
    found = eased(asked)
    ((service,), (item,)) = found.services, found.eased
    assert item.asked == hard.slo
    assert service.slo.inter_token_ms > 5.0
    assert service.slo.first_token_ms == hard.slo.first_token_ms
    for picture, short in ((asked, True), (found, False)):
        assert bool(try_chain(ASKING, ["greedy"], builders.request(picture)).plan.unplaced) is short


def test_a_pool_is_asked_for_what_is_in_it() -> None:
    limit_ms = (2.2 * builders.latency_ms("v100", 1, 100) + 2 * builders.latency_ms("t4", 1, 100)) / 2
    edge = builders.policy(name=PolicyName("edge"), pool=Pool(nodes=(NodeId("a"),)))
    bound = builders.service(slo=builders.slo(limit_ms), policy=edge.name)
    (item,) = eased(picture(bound, policies=(edge,))).eased
    assert item.nearest.subject == "t4"
    assert not eased(picture(replace(bound, policy=None), policies=(edge,))).eased


def test_it_is_eased_until_devices_that_come_so_near_could_serve_its_rate() -> None:
    limits = []
    for rate_rps in (10.0, 1e3, 1e9):
        hard = builders.service(slo=builders.slo(HARD_MS), rate_rps_declared=rate_rps)
        found = eased(picture(hard))
        limits.append(found.services[0].slo.latency_ms / best_ms(found))
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(EASES[0])
    assert limits[-1] == pytest.approx(EASES[-1])
    assert any(limits[1] == pytest.approx(times) for times in EASES[1:-1])


def test_who_stands_is_eased_less_only_where_that_is_plenty() -> None:
    """Else a rate that goes up and down a little would change the plan each time."""

    def planned_ms(rate_rps: float, stands_ms: float | None) -> float:
        hard = builders.service(slo=builders.slo(HARD_MS), rate_rps_declared=rate_rps)
        there = builders.assignment(f"{hard.id}#0", V100, latency_ms_planned=stands_ms)
        return eased(picture(hard, target=builders.target([there] if stands_ms else []))).services[0].slo.latency_ms

    more_rps = next(rate for rate in range(10, 2000, 10) if planned_ms(rate, None) > planned_ms(1.0, None))
    most_rps = more_rps - 10.0
    near_ms, far_ms = planned_ms(most_rps, None), planned_ms(more_rps, None)
    assert planned_ms(most_rps, far_ms) == far_ms
    assert planned_ms(most_rps / 1.4, far_ms) == planned_ms(most_rps, near_ms) == near_ms
