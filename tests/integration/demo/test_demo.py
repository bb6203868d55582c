"""The whole demo, as a newcomer meets it: up, a first plan that nodes have applied, the three commands, down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.demo.conftest import Machine

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_newcomer_watches_a_fleet_being_planned(machine: Machine) -> None:
    said = machine.do("up", "-v")
    assert "first plan" in said
    for line in (" status", " explain vision/resnet50", " report cost --by service"):
        assert line in said

    status = json.loads(machine.do("status", "-o", "json"))
    assert status["generation"] >= 1
    nodes = json.loads(machine.do("nodes", "-o", "json"))
    assert len(nodes) == 4
    devices = json.loads(machine.do("get", "devices", "-o", "json"))
    assert sorted(device["gpu_type"] for device in devices) == ["a100"] * 2 + ["l4"] * 4 + ["t4"] * 4 + ["v100"] * 2
    assert len(json.loads(machine.do("get", "services", "-o", "json"))) == 8
    assert len(json.loads(machine.do("get", "jobs", "-o", "json"))) == 2

    explained = machine.do("explain", "vision/resnet50")
    assert "vision/resnet50" in explained
    assert "SLO" in explained
    cost = json.loads(machine.do("report", "cost", "--by", "service", "--last", "1h", "-o", "json"))
    assert cost["by"] == "service"

    assert "created" in machine.do("apply", "-f", str(EXAMPLES / "vision.yaml"))
    # Work ends this plan, on however busy a machine: one that the clock ends cannot be repeated.
    policy = json.loads(machine.do("get", "policy", "default", "-o", "json"))
    patient = machine.home / "policy.json"
    patient.write_text(json.dumps({"kind": "policy", **policy, "deadline_s": 100.0}))
    machine.do("apply", "-f", str(patient))
    plan = json.loads(machine.do("plan", "-o", "json"))
    assert plan["id"].startswith("sha256:")
    machine.do("verify", "--plan", plan["id"])
    assert "yes" in machine.do("replay", plan["cycle_id"])
    assert "stopped" in machine.do("down")
