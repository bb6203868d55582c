"""Scenario files: every fault by its line, short forms as the records they mean, and a schema that does not drift."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.arena import loading
from lab.arena.contenders import PlannersOf, entry_of
from lab.arena.loading import KINDS, Document, form_of, parse, read
from lab.arena.worlds import FORM, scenario_of
from lab.world.arrivals import Bursts, Daily, RateCourse, Replayed, Source, Steady, rate_path
from lab.world.scenario import Closed, FaultKind, Level, Open, Saturating, WorldScenario
from lab.world.world import World
from solvers.domain.device import PowerScope, PriceKind
from solvers.errors import InputError

ROOT = Path(__file__).resolve().parents[4]
SCENARIOS = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))

BASE = """\
kind: world
name: small
title: Small
span: 10min
fleet:
  - {gpu_type: v100, nodes: 2, usd_per_h: 2.5}
  - {gpu_type: t4, name: cheap, nodes: 1, devices_per_node: 2}
services:
  - name: one
    model: resnet50
    slo: {latency_ms: 100}
    load: {pattern: steady, rate_rps: 20}
"""


def scenario(text: str, data: Path | None = None) -> WorldScenario:
    document = parse(text, "f.yaml", data)
    return scenario_of(FORM.model_validate_json(json.dumps(FORM.completed(document.plain))), document)


def complaint(tmp_path: Path, text: str) -> str:
    file = tmp_path / "f.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        loading.load(file, None)
    return str(raised.value).replace(f"{tmp_path}/", "")


FAULTS = [
    ("title: Small", "title: Small\ncolour: red", "f.yaml:4: colour: there is no such field here"),
    ("    model: resnet50\n", "", "f.yaml:9: services[0].model: is needed"),
    ("rate_rps: 20", "rate_rps: fast", "f.yaml:12: services[0].load.rate_rps: input should be a valid number"),
    ("rate_rps: 20", "rate_rps: '20'", "f.yaml:12: services[0].load.rate_rps: input should be a valid number"),
    ("rate_rps: 20", "rate_rps: .nan", "f.yaml:12: services[0].load.rate_rps: input should be a finite number"),
    ("nodes: 2", "nodes: 0", "f.yaml:6: fleet[0].nodes: input should be greater than or equal to 1"),
    ("latency_ms: 100", "latency_ms: -1", "f.yaml:11: services[0].slo.latency_ms must be greater than 0"),
    ("span: 10min", "span: 10 minutes", "f.yaml:4: span: '10 minutes' is no time"),
    ("span: 10min", "span: 10min\nwarmup: 1h", "f.yaml:5: warmup: warmup_s must lie between 0 and 600"),
    ("gpu_type: t4", "gpu_type: t5", "f.yaml:7: fleet[1].gpu_type: no GPU type t5; those with simulated hardware are"),
    ("usd_per_h: 2.5", "price_kind: spot", "f.yaml:6: fleet[0].gpu_type: no spot price of v100 is known"),
    ("usd_per_h: 2.5", "mig: [9g]", "f.yaml:6: fleet[0].mig[0]: v100 has no slice 9g"),
    ("name: cheap", "name: v100", "f.yaml:7: fleet[1].name: another entry's nodes are called v100"),
    ("model: resnet50", "model: resnet5", "f.yaml:10: services[0].model: no model resnet5 in the library"),
    ("pattern: steady", "pattern: study", "f.yaml:12: services[0].load: input tag 'study' found"),
    ("span: 10min", "span: 10min\nspan: 5min", "f.yaml:5: span: already said on line 4"),
    ("span: 10min", "span: [10min", "f.yaml:5: "),
    ("span: 10min", "span: 10min\npolicy: {cycle_s: 5}", "f.yaml:5: policy.cycle_s: there is no such field here"),
    ("span: 10min", "span: 10min\npolicy: {deadline_s: 0}", "f.yaml:5: policy.deadline_s must lie between"),
    (
        "span: 10min",
        "span: 10min\npolicy: {planner_settings: [{planner: hetsew, name: queues, value: 1}]}",
        "f.yaml:5: policy.planner_settings[0].planner: there is no planner hetsew; known are ",
    ),
    (
        "span: 10min",
        "span: 10min\npolicies: [{name: a, pool: {nodes: [v100-0]},\n"
        "  planner_settings: [{planner: hetsev, name: queues, value: 0}]}]",
        "f.yaml:6: policies[0].planner_settings[0].value: ",
    ),
    ("kind: world", "kind: word", "f.yaml:1: kind: no kind word; there are world"),
    ("kind: world\n", "", "f.yaml:1: kind: say `kind`; there are world"),
    (
        "services:",
        "services:\n  - {name: one, model: vgg16, slo: {latency_ms: 9}, load: {pattern: steady, rate_rps: 1}}",
        "f.yaml:10: services[1].name: there is a service sim/one already",
    ),
    (
        "pattern: steady, rate_rps: 20",
        "pattern: points, points: [[5s, 1], [1s, 2]]",
        "f.yaml:12: services[0].load.points must rise in time",
    ),
    (
        "pattern: steady, rate_rps: 20",
        "pattern: closed, think: 1s, clients: 5",
        "f.yaml:9: services[0].rate_rps_declared: a load that is closed needs it to be said",
    ),
    (
        "pattern: steady, rate_rps: 20",
        "pattern: trace, source: mooncake",
        "f.yaml:12: services[0].load.source: mooncake-conversation/conversation.csv is read from HEADROOM_DATA",
    ),
    (
        "pattern: steady, rate_rps: 20",
        "pattern: shape, shape: twitter-day5, mean_rps: 5, peak_rps: 9",
        "f.yaml:12: services[0].load.peak_rps: mean_rps is said already",
    ),
    (
        "span: 10min",
        "span: 10min\nfaults: [{kind: node_lost, at: 1min, lasts: 1min, subject: v100-7}]",
        "f.yaml:5: faults: v100-7 is neither a node nor a device",
    ),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS, ids=[new.strip()[:40] for _, new, _ in FAULTS])
def test_every_fault_is_told_by_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert BASE.count(old) == 1
    assert complaint(tmp_path, BASE.replace(old, new)).startswith(said)


def test_all_faults_of_a_form_are_told_at_once_by_rising_lines(tmp_path: Path) -> None:
    text = BASE.replace("nodes: 2", "nodes: x").replace("rate_rps: 20", "rate: 20")
    assert [line.split(": ")[:2] for line in complaint(tmp_path, text).splitlines()] == [
        ["f.yaml:6", "fleet[0].nodes"],
        ["f.yaml:12", "services[0].load.rate"],
        ["f.yaml:12", "services[0].load.rate_rps"],
    ]


def test_a_file_that_is_not_there_or_holds_no_fields_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        read(tmp_path / "none.yaml")
    for text in ("", "- a\n- b\n", "just text"):
        with pytest.raises(InputError, match=r"f\.yaml:1: "):
            parse(text, "f.yaml")


def test_dates_stay_text_and_small_numbers_are_numbers() -> None:
    plain = parse("a: 2026-01-01\nb: 1e-3\nc: 0.5\n", "f").plain
    assert plain == {"a": "2026-01-01", "b": 0.001, "c": 0.5}


def test_fleets_are_named_priced_and_typed() -> None:
    fleet = scenario(BASE).fleet
    assert [node.id for node in fleet.nodes] == ["v100-0", "v100-1", "cheap-0"]
    assert [device.id for device in fleet.devices][-2:] == ["cheap-0.gpu-0", "cheap-0.gpu-1"]
    rows = {each.name: each.price_row(PriceKind.ON_DEMAND, "default") for each in fleet.gpu_types}
    assert {name: row.usd_per_h for name, row in rows.items() if row is not None} == {"v100": 2.5, "t4": 0.526}


def test_two_prices_of_a_type_need_two_kinds_or_regions(tmp_path: Path) -> None:
    again = "  - {gpu_type: v100, name: more, usd_per_h: 3.5%s}\nservices:"
    assert "another entry has another on_demand price" in complaint(tmp_path, BASE.replace("services:", again % ""))
    spot = scenario(BASE.replace("services:", again % ", price_kind: spot, interruptions_per_h: 0.1"))
    row = next(each for each in spot.fleet.gpu_types if each.name == "v100").price_row(PriceKind.SPOT, "default")
    assert row is not None
    assert (row.usd_per_h, row.interruptions_per_h) == (3.5, 0.1)


def test_slices_stand_in_for_their_gpu() -> None:
    text = BASE.replace("services:", "  - {gpu_type: a100, mig: [3g.40gb, 2g.20gb]}\nservices:")
    slices = [device for device in scenario(text).fleet.devices if device.gpu_type == "a100"]
    assert [(each.id, each.sm_count, each.mig.parent if each.mig else None) for each in slices] == [
        ("a100-0.gpu-0.mig-0", 42, "a100-0.gpu-0"),
        ("a100-0.gpu-0.mig-1", 28, "a100-0.gpu-0"),
    ]


def test_power_caps_without_a_subject_hold_everywhere(tmp_path: Path) -> None:
    text = BASE + "power_caps: [{scope: device, limit_w: 150}, {scope: node, subject: v100-1, limit_w: 200}]\n"
    caps = scenario(text).fleet.power_caps
    assert len([cap for cap in caps if cap.scope is PowerScope.DEVICE]) == 4
    assert [cap.subject for cap in caps if cap.scope is PowerScope.NODE] == ["v100-1"]
    said = complaint(tmp_path, text.replace("subject: v100-1", "subject: v100-9"))
    assert said == "f.yaml:13: power_caps[1].subject: there is no node v100-9"


LOADS = {
    "steady, rate_rps: 5": Steady(rate_rps=5.0),
    "bursts, rate_rps_calm: 5, rate_rps_burst: 50, calm: 1min, burst: 10s": Bursts(
        rate_rps_calm=5.0, rate_rps_burst=50.0, calm_s_mean=60.0, burst_s_mean=10.0
    ),
    "daily, rate_rps_mean: 5, period: 10min, spike_at: 2min, spike: 30s": Daily(
        rate_rps_mean=5.0, period_s=600.0, spike_at_s=120.0, spike_s=30.0
    ),
}


@pytest.mark.parametrize("said", LOADS)
def test_patterns_are_the_records_they_stand_for(said: str) -> None:
    found = scenario(BASE.replace("steady, rate_rps: 20", said)).traffic[0]
    assert found.load == Open(pattern=LOADS[said])


def test_points_shapes_and_clients() -> None:
    def load(said: str, declared: str = "") -> Open | Closed | Saturating:
        return scenario(BASE.replace("steady, rate_rps: 20}", said + "}" + declared)).traffic[0].load

    course = load("points, ramp: false, points: [[0s, 10], [5min, 30]]")
    assert isinstance(course, Open)
    assert isinstance(course.pattern, RateCourse)
    assert rate_path(course.pattern, Source(name="x", seed=1), 600.0).rates_rps.tolist() == [10.0, 30.0]
    shape = load("shape, shape: twitter-day5, begin: 9h, end: 12h, time_scale: 0.1, peak_rps: 400")
    assert isinstance(shape, Open)
    assert isinstance(shape.pattern, Replayed)
    assert max(shape.pattern.rates_rps) * shape.pattern.rate_scale == pytest.approx(400.0)
    assert (len(shape.pattern.rates_rps), shape.pattern.bin_s * shape.pattern.time_scale) == (180, 6.0)
    declared = "\n    rate_rps_declared: 50"
    clients = load("closed, think: 1s, points: [[0s, 10], [20s, 30]], step: 5s", declared)
    assert isinstance(clients, Closed)
    assert [(step.from_s, step.clients) for step in clients.steps] == [(0, 10), (5, 15), (10, 20), (15, 25), (20, 30)]
    assert load("saturating", declared) == Saturating()


def test_copies_fall_evenly_in_ratio_and_declare_their_own_mean() -> None:
    text = BASE.replace("    model: resnet50", "    copies: 3\n    last_copy: 0.25\n    model: resnet50")
    found = scenario(text).traffic
    assert [item.service.name for item in found] == ["one-0", "one-1", "one-2"]
    assert [item.service.rate_rps_declared for item in found] == pytest.approx([20.0, 10.0, 5.0])
    assert [item.load.pattern.rate_rps for item in found if isinstance(item.load, Open)] == pytest.approx([20, 10, 5])


JOBS = """\
job_streams:
  - name: train
    {}
    templates:
      - {{model: resnet18, iteration_ms_reference: 200, gpu_type_reference: a100, memory_mib: 4000, weight: 3}}
      - {{model: vgg16, iteration_ms_reference: 400, gpu_type_reference: a100, memory_mib: 6000}}
faults: [{{kind: power_limit, at: 1min, lasts: 30s, subject: cheap-0.gpu-1, factor: 0.7}}]
level: fluid
"""


def test_job_streams_are_drawn_once_for_all_runs() -> None:
    text = BASE + JOBS.format("jobs_per_h: 600\n    iterations_median: 1000")
    one, other = scenario(text), scenario(text)
    assert one.jobs == other.jobs
    assert len(one.jobs) == pytest.approx(100, abs=35)
    assert {entry.job.model for entry in one.jobs} == {"resnet18", "vgg16"}
    assert all(0.0 <= entry.at_s < 600.0 for entry in one.jobs)
    assert (one.faults[0].kind, one.faults[0].factor, one.level) == (FaultKind.POWER_LIMIT, 0.7, Level.FLUID)
    assert {model.name for model in one.models} == {"resnet18", "resnet50", "vgg16"}


@pytest.mark.parametrize(("seed", "others"), [(7, False), ("run", True)])
def test_a_stream_has_jobs_of_its_own_seed_or_of_the_runs(tmp_path: Path, seed: int | str, others: bool) -> None:
    streams = JOBS.format(f"seed: {seed}\n    jobs_per_h: 600\n    iterations_median: 1000")
    file = tmp_path / "f.yaml"
    file.write_text(BASE + streams, encoding="utf-8")
    world = loading.load(file, None)
    assert isinstance(world, World)
    greedy = entry_of("greedy").contender
    first, again, second = (world.begin(greedy, run, PlannersOf(())).scenario.jobs for run in (1, 1, 2))
    assert first == again
    assert (first != second) is others


def test_philly_jobs_of_one_gpu_come_from_the_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "philly-jobs"
    folder.mkdir()
    rows = ("submit_s,duration,num_gpus,cluster", "50,100,1,a", "1000,2000,1,a", "1100,7,4,a", "70000,5,1,a")
    (folder / "jobs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    text = BASE + JOBS.format("trace: philly\n    begin: 100s\n    time_scale: 0.1")
    jobs = scenario(text, tmp_path).jobs
    assert [entry.at_s for entry in jobs] == pytest.approx([90.0])
    assert jobs[0].job.iterations_total * jobs[0].job.iteration_ms_reference == pytest.approx(200_000.0)


def test_the_schema_is_the_committed_one() -> None:
    standing = (ROOT / "examples" / "scenarios" / loading.SCHEMA_FILE).read_text(encoding="utf-8")
    assert standing == loading.schema_text(), "the schema drifted: run `make scenarios`"
    assert len(loading.schema()["oneOf"]) == len(KINDS)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_committed_scenarios_can_be_read(path: Path) -> None:
    document: Document = read(path)
    assert document.plain["name"] == path.stem
    kind = form_of(document.plain["kind"])
    form = kind.model_validate_json(json.dumps(kind.completed(document.plain)))
    if isinstance(form, FORM) and "pattern: trace" not in path.read_text(encoding="utf-8"):
        assert scenario_of(form, document).about.name == path.stem


POOLS = (
    BASE.replace("load: {pattern", "policy: edge\n    load: {pattern")
    + """\
policies:
  - {name: edge, planners: [morak], pool: {gpu_types: [t4]}}
policy_changes:
  - at: 5min
    policies: [{name: edge, planners: [joint], pool: {gpu_types: [v100]}}]
"""
)


def test_policies_with_pools_and_their_changes_are_read() -> None:
    made = scenario(POOLS)
    assert made.services[0].policy == "edge"
    assert [(policy.name, policy.planners) for policy in made.policies_at(299.0)] == [("edge", ("morak",))]
    assert [(policy.name, policy.planners) for policy in made.policies_at(300.0)] == [("edge", ("joint",))]


def test_a_policy_of_a_scenario_beside_the_first_has_a_pool(tmp_path: Path) -> None:
    assert "policy edge needs a pool" in complaint(tmp_path, POOLS.replace(", pool: {gpu_types: [t4]}", ""))
