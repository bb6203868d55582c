"""`headroom up --no-demo` with real processes: it stands, survives crashes, stops, and keeps its data."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable

import pytest

from app.demo.home import Home, SupervisedProcess, SupervisorState
from app.demo.process import alive
from headroom_client import Client
from tests.integration.demo.conftest import Machine
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def until(true: Callable[[], bool], machine: Machine, deadline_s: float = 180.0) -> None:
    wait_until(true, lambda: f"the condition\n{machine.logs()}", deadline_s, 0.1)


def process(machine: Machine, name: str) -> SupervisedProcess | None:
    state = Home(machine.home).read_state()
    return next((each for each in state.processes if each.name == name), None) if state else None


def serves(machine: Machine) -> bool:
    """Whoever is not ready refuses everybody: only then is it worth a process to ask."""
    with Client(f"http://127.0.0.1:{machine.port}", "") as client:
        ready = client.ready()
    return ready and machine.run("get", "projects", "-o", "json").returncode == 0


def postmaster(machine: Machine) -> int | None:
    try:
        return int((machine.home / "pgdata" / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None


def kill_supervisor(machine: Machine) -> SupervisorState:
    """What it knew of who runs."""
    state = Home(machine.home).read_state()
    assert state is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    until(lambda: not alive(state.supervisor), machine)
    return state


def test_a_control_plane_lives_through_crashes_and_restarts(machine: Machine) -> None:
    said = machine.do("up", "--no-demo", "-v")
    assert f"http://127.0.0.1:{machine.port}/" in said
    assert "database" in said
    connection = machine.home / "client.json"
    assert stat.S_IMODE(connection.stat().st_mode) == 0o600
    token = json.loads(connection.read_text())["token"]
    assert token in said

    assert "already running" in machine.do("up", "--no-demo")

    file = machine.home / "project.yaml"
    file.write_text("kind: project\nname: kept\ndescription: survives\n")
    assert machine.do("apply", "-f", str(file)).split() == ["created", "project/kept"]
    assert machine.do("apply", "-f", str(file)).split() == ["unchanged", "project/kept"]

    before = process(machine, "api")
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: (now := process(machine, "api")) is not None and now != before, machine)
    until(lambda: serves(machine), machine)

    # The supervisor may revive the server before anybody notices its absence: a new process is the proof, not the gap.
    killed = postmaster(machine)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: postmaster(machine) not in (None, killed), machine)
    until(lambda: serves(machine), machine)

    left = kill_supervisor(machine)
    assert any(alive(each) for each in left.processes)
    assert token in machine.do("up", "--no-demo")
    assert not any(alive(each) for each in left.processes)
    kept = json.loads(machine.do("get", "project", "kept", "-o", "json"))
    assert kept == {"kind": "project", "name": "kept", "description": "survives", "quota_gpus": None}

    left = kill_supervisor(machine)
    assert "leftovers" in machine.do("down")
    assert not any(alive(each) for each in left.processes)
    assert not (machine.home / "pgdata" / "postmaster.pid").exists()
    assert "not running" in machine.do("down")
    assert machine.run("get", "projects").returncode == 6


def test_a_port_in_use_is_one_line_and_leaves_nothing(machine: Machine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", machine.port))
        other.listen()
        refused = machine.run("up", "--no-demo")
    assert refused.returncode == 5
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{machine.port}" in refused.stderr
    lock = Home(machine.home).lock()
    assert lock is not None
    lock.close()
    assert not (machine.home / "pgdata").exists()
