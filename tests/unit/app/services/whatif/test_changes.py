"""Changes become a changed picture; what does not fit is pointed at, all of it at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.errors import FieldsError
from app.services.whatif.changes import Changes, apply_changes, changes_of
from solvers.domain.codec import Plain, digest, to_plain
from solvers.domain.device import PowerCap, PowerScope, PriceKind
from solvers.domain.ids import GpuTypeName, PolicyName, ProjectName, ServiceId
from solvers.domain.policy import Policy, Pool
from solvers.domain.telemetry import DemandOrigin
from solvers.domain.workload import Affinity, Project, Slo, SloKind
from solvers.errors import FieldError
from tests import builders

SEEN = builders.demand("demo/vision", 80.0)
CAP = PowerCap(scope=PowerScope.RACK, subject="rack-0", limit_w=900.0)
PICTURE = builders.lab([builders.service(), builders.service("speech")], demands=(SEEN,), power_caps=(CAP,))


def changed(**plain: Plain) -> Changes:
    return changes_of(dict(plain))


def faults_of(changes: Changes) -> dict[str, str]:
    with pytest.raises(FieldsError) as caught:
        apply_changes(PICTURE, changes)
    return {fault.pointer: fault.detail for fault in caught.value.faults}


def test_no_changes_leave_the_picture_as_it_is() -> None:
    assert digest(apply_changes(PICTURE, Changes())) == digest(PICTURE)


def test_a_service_is_added_changed_or_removed_with_its_demand() -> None:
    new = builders.service("extra", rate_rps_declared=30.0)
    other = builders.service(rate_rps_declared=10.0)
    after = apply_changes(PICTURE, changed(services=[to_plain(new), to_plain(other)], remove=["demo/speech"]))
    assert [item.id for item in after.services] == ["demo/extra", "demo/vision"]
    assert {item.service: (item.rate_rps_upper, item.origin) for item in after.demands} == {
        "demo/extra": (30.0, DemandOrigin.DECLARED),
        "demo/vision": (10.0, DemandOrigin.DECLARED),
    }
    kept = apply_changes(PICTURE, changed(services=[to_plain(builders.service(priority=7))]))
    assert kept.demands == (SEEN,)
    assert kept.services_by_id()[other.id].priority == 7


def test_what_is_new_has_a_name_that_no_other_kind_has() -> None:
    said = "a service has this name already: services, jobs and tasks of a project share their names"
    new = [to_plain(builders.job("train")), to_plain(builders.job("speech"))]
    assert faults_of(changed(jobs=new)) == {"/jobs/1/name": said}
    apply_changes(PICTURE, changed(jobs=new, remove=["demo/speech"]))


def test_rates_are_scaled_in_demand_and_declaration_but_not_where_they_are_said() -> None:
    new = to_plain(builders.service("extra", rate_rps_declared=30.0))
    after = apply_changes(
        PICTURE, changed(rate_factor=2.0, rates=[{"service": "demo/speech", "rate_rps": 5.0}], services=[new])
    )
    assert {item.service: item.rate_rps_upper for item in after.demands} == {
        "demo/extra": 30.0, "demo/speech": 5.0, "demo/vision": 160.0,
    }  # fmt: skip
    assert {item.name: item.rate_rps_declared for item in after.services} == {
        "extra": 30.0, "speech": 5.0, "vision": 200.0,
    }  # fmt: skip


def test_a_lost_node_is_silent_and_a_lost_device_is_not_planned_on() -> None:
    after = apply_changes(PICTURE, changed(nodes_lost=["a"], devices_lost=["GPU-c-0"]))
    ages = {item.node: item.age_s for item in after.node_statuses}
    assert ages["a"] is not None
    assert ages["a"] > PICTURE.policy.device_silent_after_s
    assert ages["b"] == 1.0
    assert [item.id for item in after.devices if not item.schedulable] == ["GPU-c-0"]
    assert len(after.devices) == len(PICTURE.devices)


def test_added_nodes_stand_ready_and_offers_are_kept_apart() -> None:
    offer: Plain = {"name": "burst", "gpu_type": "t4", "count_max": 3}
    after = apply_changes(
        PICTURE, changed(nodes_added=[{"gpu_type": "t4", "gpus": 7, "gpus_per_node": 4}], offers=[offer])
    )
    new = {item.id for item in after.devices} - {item.id for item in PICTURE.devices}
    assert len(new) == 7
    assert {item.gpu_type for item in after.devices if item.id in new} == {"t4"}
    nodes = {item.id for item in after.nodes} - {item.id for item in PICTURE.nodes}
    assert {item.node: item.age_s for item in after.node_statuses if item.node in nodes} == dict.fromkeys(nodes, 0.0)
    assert [item.name for item in after.offers] == ["burst"]
    assert len(after.with_offers().devices) == len(after.devices) + 3


def test_caps_prices_and_policy() -> None:
    after = apply_changes(
        PICTURE,
        changed(
            power_caps=[{"scope": "node", "subject": "a", "limit_w": 100.0}],
            power_caps_removed=[{"scope": "rack", "subject": "rack-0"}],
            prices=[{"gpu_type": "t4", "factor": 2.0}, {"gpu_type": "l4", "kind": "spot", "usd_per_h": 0.2}],
            policy={"utilisation_max": 0.9, "planners": ["greedy"]},
        ),
    )
    assert [(item.scope, item.limit_w) for item in after.power_caps] == [(PowerScope.NODE, 100.0)]
    types = after.gpu_types_by_name()
    before = PICTURE.gpu_types_by_name()
    t4 = builders.gpu_type("t4").name
    doubled = types[t4].price_row(PriceKind.ON_DEMAND, "default")
    added = types[builders.gpu_type("l4").name].price_row(PriceKind.SPOT, "default")
    assert doubled is not None
    assert doubled.usd_per_h == 2 * before[t4].prices[0].usd_per_h
    assert added is not None
    assert added.usd_per_h == 0.2
    assert after.policy == replace(PICTURE.policy, utilisation_max=0.9, planners=("greedy",))


def test_a_policy_of_another_name_changes_that_one_alone() -> None:
    edge = Policy(name=PolicyName("edge"), pool=Pool(gpu_types=(GpuTypeName("t4"),)))
    before = replace(PICTURE, policies=(edge,))
    after = apply_changes(before, changed(policy={"name": "edge", "utilisation_max": 0.9}))
    assert after.policy == before.policy
    assert after.policies == (replace(edge, utilisation_max=0.9),)
    new: Plain = {"name": "core", "pool": {"gpu_types": ["l4"]}}
    assert [item.name for item in apply_changes(before, changed(policy=new)).policies] == ["core", "edge"]
    assert list(faults_of(changed(policy={"name": "egde", "utilisation_max": 0.9}))) == ["/policy/name"]
    assert list(faults_of(changed(policy={"pool": {"gpu_types": ["l4"]}}))) == ["/policy/pool"]


def test_settings_of_planners_are_checked_as_in_a_policy() -> None:
    setting = {"planner": "hetsev", "name": "queues", "value": 2}
    after = apply_changes(PICTURE, changes_of({"policy": {"planner_settings": [setting]}}))
    assert [item.value for item in after.policy.planner_settings] == [2]
    found = faults_of(changes_of({"policy": {"planner_settings": [{**setting, "name": "queue"}]}}))
    assert list(found) == ["/policy/planner_settings/0/name"]


def test_everything_that_names_nothing_is_pointed_at_at_once() -> None:
    found = faults_of(
        changed(
            services=[to_plain(builders.service("new", model="resnet51", project="demos"))],
            remove=["demo/visions"],
            rates=[{"service": "demo/nobody", "factor": 2.0}],
            nodes_lost=["z"],
            devices_lost=["GPU-z"],
            nodes_added=[{"gpu_type": "t5"}],
            offers=[{"name": "x", "gpu_type": "t5", "count_max": 1}],
            power_caps=[{"scope": "node", "subject": "z", "limit_w": 1.0}],
            power_caps_removed=[{"scope": "node", "subject": "b"}],
            prices=[
                {"gpu_type": "t5", "usd_per_h": 1.0},
                {"gpu_type": "t4", "kind": "spot", "factor": 2.0},
                {"gpu_type": "t4", "usd_per_h": 1e9},
            ],
            policy={"planners": ["prophet"]},
        )
    )
    assert set(found) == {
        "/services/0/project", "/services/0/model", "/remove/0", "/rates/0/service", "/nodes_lost/0", "/devices_lost/0",
        "/nodes_added/0/gpu_type", "/offers/0/gpu_type", "/power_caps/0/subject", "/power_caps_removed/0",
        "/prices/0/gpu_type", "/prices/1", "/prices/2/usd_per_h", "/policy/planners/0",
    }  # fmt: skip
    assert found["/remove/0"].startswith("there is no workload demo/visions; did you mean demo/vision")
    assert "resnet50" in found["/services/0/model"]


@pytest.mark.parametrize(
    ("plain", "pointer"),
    [
        ({"rates": [{"service": "demo/vision"}]}, "/rates/0/factor"),
        ({"rates": [{"service": "demo/vision", "factor": 1.0, "rate_rps": 1.0}]}, "/rates/0/factor"),
        ({"prices": [{"gpu_type": "t4"}]}, "/prices/0/usd_per_h"),
        ({"nodes_added": [{"gpu_type": "t4", "gpus": 0}]}, "/nodes_added/0/gpus"),
        ({"nodes_added": [{"gpu_type": "t4", "gpus": 40000}, {"gpu_type": "t4"}]}, "/nodes_added"),
        ({"surprise": 1}, "/surprise"),
        ({"policy": 5}, "/policy"),
        ([], "/"),
    ],
)
def test_a_change_out_of_form_is_pointed_at(plain: Plain, pointer: str) -> None:
    with pytest.raises(FieldError) as caught:
        changes_of(plain)
    assert caught.value.field == pointer


@pytest.mark.parametrize("field", ["seed", "utilisation_max", "surprise"])
def test_a_policy_field_out_of_range_is_pointed_at(field: str) -> None:
    assert set(faults_of(changed(policy={field: "x"}))) == {f"/policy/{field}"}


def test_a_service_named_twice_is_refused() -> None:
    twice: Plain = [{"service": "demo/vision", "factor": 2.0}, {"service": "demo/vision", "factor": 3.0}]
    assert faults_of(changed(rates=twice)) == {"/rates/1/service": "demo/vision is named twice"}


def test_lists_are_as_long_as_documents_may_have_them() -> None:
    endless = replace(builders.service("new"), gpu_types_allowed=tuple(GpuTypeName(f"t{n}") for n in range(257)))
    found = faults_of(changed(services=[to_plain(endless)]))
    assert found["/services/0/gpu_types_allowed"] == "gpu_types_allowed may list 256 at most, got 257"


def test_what_no_new_document_may_say_is_refused_here_as_it_is_where_it_is_put() -> None:
    pattern = builders.service("loose", affinity=Affinity(avoid_services=(ServiceId("demo/*"),)))
    wordless = builders.service("wordless", slo=Slo(kind=SloKind.TOKENS, first_token_ms=500.0, inter_token_ms=50.0))
    huge = builders.model("huge", parameters_million=1e12)
    steered = Project(name=ProjectName("demo"), environment_allowed=("PYTHONPATH", "X" * 129, "a=b"))
    plain = {"services": [to_plain(pattern), to_plain(wordless)], "models": [to_plain(huge)]}
    found = faults_of(changes_of({**plain, "projects": [to_plain(steered)]}))
    assert set(found) == {
        "/services/0/affinity/avoid_services/0", "/services/1/tokens", "/models/0/parameters_million",
        "/projects/0/environment_allowed/1", "/projects/0/environment_allowed/2",
    }  # fmt: skip
    assert found["/projects/0/environment_allowed/2"] == "'a=b' is no name of an environment variable"
    assert found["/services/0/affinity/avoid_services/0"] == "a service is named PROJECT/NAME, got 'demo/*'"
