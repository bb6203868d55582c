"""Planners by name, tuned by name, and the table that says what there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.codec import canonical_json, from_json
from solvers.domain.policy import PlannerSetting, Policy
from solvers.domain.workload import AntiAffinity
from solvers.errors import EngineError, FieldError
from solvers.planners import registry
from solvers.policies.hetsev.planner import HetSev
from tests import builders


def setting(planner: str, name: str, value: bool | float | str) -> PlannerSetting:
    return PlannerSetting(planner=planner, name=name, value=value)


def test_settings_reach_the_planner() -> None:
    planner = registry.create("hetsev", {"saturation": 0.7, "anti_affinity": "soft", "queues": 2})
    assert isinstance(planner, HetSev)
    assert (planner.parameters.saturation, planner.parameters.queues) == (0.7, 2)
    assert planner.parameters.anti_affinity is AntiAffinity.SOFT
    assert registry.create("hetsev", {}) == registry.create("hetsev")


@pytest.mark.parametrize("name", registry.names())
def test_every_planner_refuses_what_it_does_not_have(name: str) -> None:
    with pytest.raises(FieldError, match=f"{name} has no parameter nonsense"):
        registry.create(name, {"nonsense": 1})


@pytest.mark.parametrize("item", registry.table(), ids=lambda item: str(item.name))
def test_the_table_tells_what_can_be_set(item: registry.PlannerListing) -> None:
    planner = registry.create(item.name)
    assert (item.version, item.knobs) == (planner.spec.version, planner.spec.knobs)
    assert item.about
    for each in item.parameters:
        assert each.meaning
        assert registry.create(item.name, {each.name: each.default}) == planner


def test_a_policys_settings_tune_its_planners() -> None:
    policy = builders.policy(planner_settings=(setting("hetsev", "share_pct", 30.0), setting("gpulet", "caution", 2)))
    assert from_json(Policy, canonical_json(policy)) == policy
    assert registry.settings_of(policy, "hetsev") == {"share_pct": 30.0}
    plain = builders.lab([builders.service()])
    before = registry.propose("hetsev", builders.request(plain)).plan
    after = registry.propose("hetsev", builders.request(replace(plain, policy=policy))).plan
    assert before is not None
    assert after is not None
    assert {item.share_pct_sm for item in before.assignments} == {100}
    assert {item.share_pct_sm for item in after.assignments} == {30}


@pytest.mark.parametrize(
    ("wrong", "pointer", "said"),
    [
        (setting("nobody", "x", 1), "/planner_settings/1/planner", "there is no planner nobody"),
        (setting("hetsev", "x", 1), "/planner_settings/1/name", "hetsev has no parameter x"),
        (setting("hetsev", "round_size", 0), "/planner_settings/1/value", "a whole number from 1 to 10000"),
        (setting("joint", "x", 1), "/planner_settings/1/name", "joint has no parameter x; it has none"),
    ],
)
def test_a_policy_that_sets_what_cannot_be_is_refused_at_its_place(
    wrong: PlannerSetting, pointer: str, said: str
) -> None:
    registry.check_settings(builders.policy(planner_settings=(setting("hetsev", "queues", 1),)))
    with pytest.raises(FieldError, match=said) as caught:
        registry.check_settings(builders.policy(planner_settings=(setting("hetsev", "queues", 1), wrong)))
    assert caught.value.field == pointer


def test_a_planner_does_not_answer_with_settings_it_does_not_have() -> None:
    policy = builders.policy(planner_settings=(setting("greedy", "x", 1),))
    with pytest.raises(FieldError):
        registry.propose("greedy", builders.request(replace(builders.lab(), policy=policy)))


def test_an_unknown_planner_is_an_engine_error() -> None:
    with pytest.raises(EngineError):
        registry.create("nobody", {"x": 1})
