"""Secrets with a real agent process: workers have them, and nothing that it writes, sends, answers or prints does."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.processes import environment_of
from tests.integration.agents.test_gpu_host import GpuHost, gpu, library

pytestmark = pytest.mark.integration
__all__ = ["gpu", "library"]
OF_FILE, OF_VARIABLE, OF_COMMAND = "value-of-a-file-9f3b", "value-of-a-variable-77ac", "value-of-a-command-51d0"


@pytest.fixture
def host(gpu: GpuHost) -> Iterator[GpuHost]:
    """Secrets of the project `team`, whose replicas the targets hold, and of another."""
    for project in ("team", "other"):
        folder = gpu.folder / "secrets" / project
        folder.mkdir(parents=True)
        (folder / "token").write_text(OF_FILE + "\n", encoding="utf-8")
    program = gpu.folder / "ask"
    program.write_text(f'#!/bin/sh\nset -e\n[ "$1 $2" = "team kv/db" ]\necho {OF_COMMAND}\n', encoding="utf-8")
    program.chmod(0o700)
    gpu.variables = {"HF_TOKEN": OF_VARIABLE}
    return gpu


def opened(host: GpuHost) -> tuple[str, ...]:
    opened = ("--secret-dir", str(host.folder / "secrets" / "{project}"), "--secret-env", "team:HF_TOKEN")
    return (*opened, "--secret-command", str(host.folder / "ask"))


def files(host: GpuHost, project: str = "team") -> list[list[str]]:
    return [["API_KEY", str(host.folder / "secrets" / project / "token")]]


def shown(host: GpuHost) -> dict[str, str]:
    """All that others may read of this agent: what it sent, wrote, logs and answers, and what a rehearsal prints."""
    plane = host.plane
    found = {
        "receipts": json.dumps(plane.receipts),
        "reports": json.dumps(plane.reports),
        "joins": json.dumps(plane.joins),
    }
    with urllib.request.urlopen(plane.joins[-1]["endpoint"] + "/health", timeout=10.0) as answer:
        found["health"] = answer.read().decode()
    for path in (*host.host.state_dir.rglob("*"), host.log):
        if path.is_file():
            found[str(path)] = path.read_text(encoding="utf-8", errors="replace")
    return found


def test_workers_have_them_and_nobody_else_sees_them(host: GpuHost) -> None:
    host.start(*opened(host))
    host.described = {
        "from_files": files(host),
        "from_environment": [["HUB_TOKEN", "HF_TOKEN"]],
        "from_commands": [["DB_KEY", "kv/db"]],
    }
    host.hold(30)
    (worker,) = host.host.pids(host.uuid)
    held = environment_of(worker) or {}
    assert (held["API_KEY"], held["HUB_TOKEN"], held["DB_KEY"]) == (OF_FILE, OF_VARIABLE, OF_COMMAND)
    assert "HF_TOKEN" not in held
    told = shown(host)
    assert any("workers" in name for name in told)
    assert host.end(signal.SIGTERM) == 0
    options = host.command("--dry-run", *opened(host))
    rehearsal = subprocess.run(options, env=host.environment(), capture_output=True, text=True, timeout=60, check=True)
    told |= {"rehearsal": rehearsal.stdout + rehearsal.stderr}
    told.pop(str(host.folder / "ask"), None)
    values = (OF_FILE, OF_VARIABLE, OF_COMMAND)
    assert [name for name, text in told.items() if any(value in text for value in values)] == []
    # Where the values are is no secret: the target that is kept says it.
    assert "HF_TOKEN" in told[str(host.host.state_dir / "target.json")]


def test_what_the_owner_does_not_open_fails_the_replica_by_name(host: GpuHost) -> None:
    host.start(*opened(host))
    host.described = {"from_files": files(host, "other")}
    host.generation += 1
    target = {"uuid": host.uuid, "mode": "mps", "clock_mhz_sm": None, "power_limit_w": None}
    replicas = [host.replica("r0", 30, **host.described)]
    host.plane.promote({"node": "node-1", "generation": 1, "plan": None, "devices": [target | {"replicas": replicas}]})
    path = str(Path("secrets") / "other" / "token")
    host.plane.wait_for(lambda: any(path in text for each in host.plane.receipts for text in each["problems"]))
    (problem,) = [text for text in host.plane.receipts[-1]["problems"] if path in text]
    assert "API_KEY" in problem
    assert "--secret-dir" in problem
    assert host.host.pids(host.uuid) == []
    assert [name for name, text in shown(host).items() if OF_FILE in text] == []
    # What is opened heals without another word: the same replica with its own project's file starts.
    host.described = {"from_files": files(host)}
    host.hold(30)
    assert len(host.host.pids(host.uuid)) == 1
