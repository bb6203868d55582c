"""The shipped examples are valid documents that refer to each other, and the demo is the fleet it claims to be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from app import library
from app.client.documents import Declared, read_documents
from app.demo.fleet import NODES
from app.demo.traffic import read_traffic_plan
from app.services.beliefs.completion import with_token_profiles
from solvers.domain.codec import from_plain
from solvers.domain.device import GpuType, Node, PowerCap
from solvers.domain.policy import Policy
from solvers.domain.worker import Adapter
from solvers.domain.workload import ModelVariant, Project, Service, TrainingJob
from solvers.planners.registry import propose
from solvers.verify.checks import verify
from tests import builders

EXAMPLES = Path(__file__).parents[4] / "examples"
CLASSES: dict[str, type] = {
    "gpu-type": GpuType,
    "project": Project,
    "model": ModelVariant,
    "policy": Policy,
    "node": Node,
    "power-cap": PowerCap,
    "service": Service,
    "job": TrainingJob,
}


def documents(*names: str) -> list[Declared]:
    return read_documents([str(EXAMPLES / name) for name in names])


def fields(found: list[Declared], kind: str, field: str) -> set[str]:
    return {document.fields[field] for document in found if document.kind == kind}


@pytest.mark.parametrize("name", ["demo", "vision.yaml", "bigger.yaml", "chat.yaml", "gpu-host"])
def test_every_example_is_a_valid_document(name: str) -> None:
    found = documents(name)
    checked = [from_plain(CLASSES[each.kind], each.fields) for each in found if each.kind != "profiles"]
    assert checked


def test_each_kind_of_model_server_has_an_example_of_a_model_that_the_library_knows() -> None:
    services = [from_plain(Service, each.fields) for each in documents("gpu-host") if each.kind == "service"]
    workers = [service.worker for service in services if service.worker is not None]
    assert sorted(worker.adapter for worker in workers) == sorted(Adapter)
    assert {service.model for service in services} <= {model.name for model in library.load_models()}
    for worker in workers:
        parts = [*worker.command, *(variable.value for variable in worker.environment)]
        assert any("{port}" in part for part in parts)
        assert any("{batch}" in part for part in parts)
        assert worker.warm_up is not None
        assert worker.command[0].startswith("/")


@pytest.mark.parametrize("name", ["vision.yaml", "bigger.yaml"])
def test_examples_refer_to_what_the_demo_declares(name: str) -> None:
    demo, found = documents("demo"), documents(name)
    assert fields(found, "service", "model") <= fields(demo, "model", "name")
    assert fields(found, "service", "project") <= fields(demo, "project", "name")


def test_the_llm_example_plans_on_the_demo_fleet() -> None:
    """With a network of the library, whose steps are believed."""
    (service,) = [from_plain(Service, each.fields) for each in documents("chat.yaml")]
    demo = documents("demo")
    shapes = {each.fields["name"]: from_plain(GpuType, each.fields) for each in demo if each.kind == "gpu-type"}
    devices = [
        replace(
            builders.device(node.name, index, gpu.lower()),
            memory_mib=shapes[gpu.lower()].memory_mib,
            sm_count=shapes[gpu.lower()].sm_count,
        )
        for node in NODES
        for index, gpu in enumerate(node.gpus)
    ]
    (network,) = [item for item in library.load_models() if item.name == service.model]
    types = tuple(shapes[name] for name in sorted(shapes))
    picture = builders.snapshot(devices, [service], profiles=(), models=(network,), gpu_types=types)
    told = with_token_profiles(replace(picture, projects=(Project(name=service.project),)))
    plan = propose("greedy", builders.request(told)).plan
    assert service.project in fields(demo, "project", "name")
    assert plan is not None
    assert plan.unplaced == ()
    assert sum(item.capacity_rps for item in plan.assignments) >= service.rate_rps_declared
    assert verify(told, plan) == ()


def test_the_demo_is_a_mixed_fleet_of_twelve_gpus_with_prices() -> None:
    found = documents("demo")
    types = [from_plain(GpuType, each.fields) for each in found if each.kind == "gpu-type"]
    assert Counter(gpu.lower() for node in NODES for gpu in node.gpus) == {"t4": 4, "l4": 4, "v100": 2, "a100": 2}
    assert {gpu_type.name for gpu_type in types} == {"t4", "l4", "v100", "a100"}
    assert all(row.usd_per_h > 0 and "list price" in row.source for each in types for row in each.prices)
    assert all(each.prices for each in types)
    nodes = {each.fields["id"]: each.fields for each in found if each.kind == "node"}
    assert {node.name: (node.rack, node.failure_domain) for node in NODES} == {
        name: (node["rack"], node["failure_domain"]) for name, node in nodes.items()
    }
    assert len({node.rack for node in NODES}) == 2


def test_the_demo_has_eight_services_with_profiles_and_traffic_and_two_jobs() -> None:
    found = documents("demo")
    services = [from_plain(Service, each.fields) for each in found if each.kind == "service"]
    assert len(services) == 8
    assert sum(each.kind == "job" for each in found) == 2
    models = fields(found, "model", "name")
    assert {service.model for service in services} | fields(found, "job", "model") <= models
    assert {service.project for service in services} == fields(found, "project", "name")
    (profiles,) = [each for each in found if each.kind == "profiles"]
    assert profiles.csv is not None
    measured = {tuple(line.split(",")[:2]) for line in profiles.csv.splitlines()[1:]}
    types = fields(found, "gpu-type", "name")
    assert {(service.model, gpu_type) for service in services for gpu_type in types} <= measured
    played = {shape.service: shape.rate_rps_mean for shape in read_traffic_plan(EXAMPLES / "traffic.yaml").shapes}
    assert played == {service.id: service.rate_rps_declared for service in services}
