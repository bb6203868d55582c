"""What Prometheus is told: every figure of a small cluster, counts that only rise, one look for all who ask at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from sqlalchemy.orm import Session

from agents.wire import encode
from app import kinds
from app.store import meters, outcomes
from app.store.engine import Database
from solvers.domain.device import PowerCap, PowerScope
from solvers.models.online.paces import SlowDevice
from tests import builders
from tests.integration.api.filled import OWN_REPLICA, fill
from tests.integration.api.world import DEVICE, FOREIGN, NODE, OWN, World, build_world
from tests.integration.store.samples import device_report, edge_report, replica_report, report

pytestmark = pytest.mark.integration
SERIES_OF_A_SERVICE, SERIES_OF_A_DEVICE = 25, 15
Samples = dict[str, float]


@pytest.fixture
def filled(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster in the middle of its life, looked at anew by every scrape, rows counted as soon as they are there."""
    monkeypatch.setattr(meters, "SETTLE_S", 0.0)
    made = build_world(database, metrics_fresh_s=0.0)
    fill(made)
    made.put(kinds.POWER_CAP, PowerCap(scope=PowerScope.RACK, subject="rack-1", limit_w=50.0))
    yield made
    made.client.close()


def scraped(world: World) -> Samples:
    """Every sample by name and labels; each once, or the page is not valid."""
    text = world.call("GET", "/metrics", None).text
    families = list(text_string_to_metric_families(text))
    found = Counter(
        f"{sample.name}{{{','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))}}}"
        for family in families
        for sample in family.samples
    )
    assert set(found.values()) == {1}
    assert len({family.name for family in families}) == len(families)
    return {
        name: sample.value
        for name, sample in zip(found, (each for family in families for each in family.samples), strict=True)
    }


def send(world: World, sequence: int) -> None:
    """Another report of node and edge."""
    replicas = [replica_report(OWN_REPLICA, DEVICE, share_pct_sm=50, model="resnet50", latency_ms_p99=42.5)]
    message = report(NODE, sequence, boot_id="boot-1", devices=[device_report(DEVICE)], replicas=replicas)
    assert world.call("POST", "/v1/agent/reports", NODE, plain=encode(message)).is_success
    rates = edge_report(sequence, {f"{OWN}/vision": 30.0})
    assert world.call("POST", "/v1/agent/edge-reports", "gateway", plain=encode(rates)).is_success


def test_services_devices_and_planning_are_told(filled: World) -> None:
    found = scraped(filled)
    vision = f"project={OWN},service=vision"
    planned = {
        "headroom_database_up{}": 1.0,
        "headroom_nodes_up{}": 1.0,
        f"headroom_service_replicas_planned{{{vision}}}": 1.0,
        f"headroom_service_replicas_ready{{{vision}}}": 1.0,
        f"headroom_service_gpu_share{{{vision}}}": 0.5,
        f"headroom_service_latency_p99_seconds{{{vision}}}": 0.0425,
        f"headroom_service_objective_ratio{{{vision}}}": 0.99,
        f"headroom_device_planned_share_ratio{{device={DEVICE},node={NODE}}}": 0.75,
        f"headroom_device_up{{device={DEVICE},node={NODE}}}": 1.0,
        "headroom_power_cap_watts{scope=rack,subject=rack-1}": 50.0,
    }
    assert {name: found.get(name) for name in planned} == planned
    reading = device_report(DEVICE)
    assert found[f"headroom_device_power_watts{{device={DEVICE},node={NODE}}}"] == reading.power_w
    assert found["headroom_power_watts{scope=rack,subject=rack-1}"] == reading.power_w
    price = found[f"headroom_device_cost_usd_per_hour{{device={DEVICE},node={NODE}}}"]
    assert found[f"headroom_service_cost_usd_per_hour{{{vision}}}"] == pytest.approx(0.5 * price)
    attempts = {name: value for name, value in found.items() if name.startswith("headroom_planner_attempts_total")}
    assert sum(attempts.values()) > 0.0
    assert any("outcome=killed" in name for name in attempts), "what has not happened yet is there as 0"
    assert "process_cpu_seconds_total{}" in found
    assert any(name.startswith("headroom_build_info{version=") for name in found)


def test_jobs_and_tasks_are_told_by_how_far_they_are(filled: World) -> None:
    """By the same words as the list of tasks."""

    def told() -> Samples:
        return {name: value for name, value in scraped(filled).items() if re.match(r"headroom_(job|task)s", name)}

    def states(kind: str, project: str) -> list[str]:
        return [name for name, value in told().items() if f"headroom_{kind}{{project={project}" in name and value]

    waiting = {f"headroom_jobs{{project={OWN},state=waiting}}": 1.0, f"headroom_jobs_left{{project={OWN}}}": 1.0}
    assert {name: told()[name] for name in waiting} == waiting
    assert states("tasks", FOREIGN) == [f"headroom_tasks{{project={FOREIGN},state=waiting}}"]
    assert not [name for name in told() if "jobs" in name and "late" in name], "nothing is late that has no deadline"
    with filled.database.transaction() as session:
        job, task = builders.job(), builders.task(project=FOREIGN)
        done = "INSERT INTO job_progress (kind, project, name, done) VALUES (:kind, :project, :name, :done)"
        half = {"kind": "job", "project": job.project, "name": job.name, "done": job.iterations_total / 2}
        whole = {"kind": "task", "project": FOREIGN, "name": task.name, "done": 2.0 * task.inputs_total}
        session.execute(text(done), [half, whole])
    assert told()[f"headroom_jobs_left{{project={OWN}}}"] == 0.5
    assert states("tasks", FOREIGN) == [f"headroom_tasks{{project={FOREIGN},state=done}}"]
    assert told()[f"headroom_tasks_left{{project={FOREIGN}}}"] == 0.0
    listed = filled.call("GET", f"/v1/tasks/status?project={FOREIGN}", "operator").json()["items"]
    assert [item["state"] for item in listed] == ["done"]
    with filled.database.transaction() as session:
        session.execute(text("DELETE FROM job_progress"))
        session.execute(
            text("UPDATE tasks SET created_at = created_at - interval '1 hour', spec = jsonb_set(spec, '{slo}', :slo)"),
            {"slo": '{"deadline_s": 60.0}'},
        )
    assert states("tasks", FOREIGN) == [f"headroom_tasks{{project={FOREIGN},state=late}}"]


def test_a_device_that_is_slower_than_its_type_is_told_everywhere(filled: World) -> None:
    """By `/metrics`, the fleet and the GPU's page; the fleet's sentence is not for tenants."""
    sample, operator = f"headroom_device_slow_factor{{device={DEVICE},node={NODE}}}", filled.cookie("operator")
    assert scraped(filled)[sample] == 1.0
    with filled.database.transaction() as session:
        gpu_type = next(item["gpu_type"] for item in filled.call("GET", "/v1/fleet", "operator").json()["devices"])
        item = SlowDevice(device=DEVICE, gpu_type=gpu_type, factor=1.5, since_s=1e9, seen_s=1e9)
        outcomes.put_slow(session, {DEVICE: item})
    assert scraped(filled)[sample] == 1.5
    fleet = filled.call("GET", "/v1/fleet", "operator").json()
    assert [line for line in fleet["problems"] if "takes 1.50 times as long as others of its type" in line]
    page = filled.call("GET", f"/gpus/{DEVICE}", None, headers=operator).text
    assert "takes 1.50 times as long as others of its type" in page
    own = filled.call("GET", "/v1/fleet", "own viewer").json()
    assert not [line for line in own["problems"] if "others of its type" in line]
    with filled.database.transaction() as session:
        outcomes.put_slow(session, {})
    assert scraped(filled)[sample] == 1.0


def test_counts_rise_by_what_arrived_since_the_last_look(filled: World) -> None:
    vision = f"{{project={OWN},service=vision}}"
    names = [f"headroom_service_{name}_total{vision}" for name in ("requests", "completed", "violations")]
    names.append(f"headroom_device_energy_joules_total{{device={DEVICE},node={NODE}}}")
    first = scraped(filled)
    assert [first[name] for name in names] == [0.0] * 4
    send(filled, 2)
    told = replica_report(OWN_REPLICA, DEVICE)
    once = scraped(filled)
    expected = [once[names[0]], told.completed, told.violated, device_report(DEVICE).energy_j]
    assert [once[name] for name in names] == expected
    assert once[names[0]] > 0.0
    assert [scraped(filled)[name] for name in names] == expected, "looking counts nothing twice"
    send(filled, 3)
    assert [scraped(filled)[name] for name in names] == [2 * value for value in expected]


def test_no_service_or_device_has_too_many_series_and_none_is_doubled(filled: World) -> None:
    found = scraped(filled)
    services = Counter(re.findall(r"project=(\w+),.*service=(\w+)", " ".join(found)))
    of_service = [name for name in found if "service=vision" in name]
    of_device = [name for name in found if f"device={DEVICE}" in name]
    assert services
    assert 15 <= len(of_service) <= SERIES_OF_A_SERVICE
    assert 10 <= len(of_device) <= SERIES_OF_A_DEVICE
    assert not [name for name in found if "_created" in name]
    assert len([name for name in found if name.startswith("headroom_http_request_duration")]) <= 30


def test_who_asks_within_the_interval_shares_one_look(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    world = build_world(database, metrics_fresh_s=3600.0)
    looked = Counter[str]()
    real = meters.whole

    def whole(session: Session) -> meters.WholeMeter:
        looked["look"] += 1
        return real(session)

    monkeypatch.setattr(meters, "whole", whole)
    pages = [scraped(world) for _ in range(3)]
    assert looked["look"] == 1
    assert pages[0]["headroom_nodes{}"] == 0.0
    world.client.close()


def test_telemetry_has_partitions_up_to_the_first_that_is_missing(filled: World) -> None:
    missing = (
        "SELECT part::text, extract(epoch FROM start_at - now())::float8 FROM headroom_partitions('sample_shapes')"
        " WHERE end_at > now() ORDER BY start_at OFFSET :after LIMIT 1"
    )
    # Of later ones, and of the running one.
    for after in (3, 1, 0):
        with filled.database.transaction() as session:
            part, ahead_s = session.execute(text(missing), {"after": after}).one()
            session.execute(text(f"DROP TABLE {part}"))
        told = scraped(filled)["headroom_partitions_ahead_seconds{}"]
        assert told == pytest.approx(ahead_s if after else 0.0, abs=60.0)


def test_a_name_cannot_break_the_page(filled: World) -> None:
    filled.put(kinds.SERVICE, builders.service("quoted", project=OWN))
    renamed = "UPDATE services SET spec = jsonb_set(spec, '{model}', to_jsonb(CAST(:name AS text))), version = 99999"
    with filled.database.transaction() as session:
        session.execute(text(f"{renamed} WHERE name = 'quoted'"), {"name": 'a"}\n\\evil 1'})
    labels = f'mode=auto,model=a"}}\n\\evil 1,policy=default,project={OWN},service=quoted'
    assert f"headroom_service_info{{{labels}}}" in scraped(filled)
