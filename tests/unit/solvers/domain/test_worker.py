"""How workers are described: what is refused, and where the refusal points."""

from __future__ import annotations

import pytest

from solvers.domain.codec import from_plain, to_plain
from solvers.domain.worker import WorkerCommand
from solvers.domain.workload import Service
from solvers.errors import FieldError

SERVICE = {
    "project": "vision",
    "name": "labels",
    "model": "resnet50",
    "slo": {"latency_ms": 80},
    "rate_rps_declared": 1,
}


def refusal(worker: dict[str, object]) -> str:
    with pytest.raises(FieldError) as found:
        from_plain(Service, {**SERVICE, "worker": worker})
    return f"{found.value.field}: {found.value}"


def test_an_unknown_placeholder_is_refused_where_it_stands() -> None:
    told = refusal({"command": ["serve", "--port={prot}"]})
    assert told.startswith("/worker/command: unknown placeholder {prot}")
    variable = {"name": "PORT", "value": "{prot}"}
    assert refusal({"command": ["serve"], "environment": [variable]}).startswith("/worker/environment/0/value: unknown")


def test_a_port_that_may_be_another_workers_is_refused() -> None:
    assert "{port_2}" in refusal({"command": ["serve", "{port_2}"], "metrics_port_offset": 1})
    variable = {"name": "PORT", "value": "{port_1}"}
    assert refusal({"command": ["serve"], "environment": [variable]}).startswith("/worker/environment: {port_1}")
    assert WorkerCommand(command=("serve", "{port_2}"), metrics_port_offset=2).metrics_port_offset == 2


def test_a_worker_survives_being_written_down() -> None:
    worker = {"command": ["serve", "{port}", "{{x}}"], "adapter": "vllm", "warm_up": {"path": "/v1/x", "body": "{}"}}
    service = from_plain(Service, {**SERVICE, "worker": worker})
    assert from_plain(Service, to_plain(service)) == service
    assert service.worker is not None
    assert service.worker.command[2] == "{{x}}"
