"""The helper as a real process over the stand-in driver: setting, crashing, restoring, and being told to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.devices.nvml import open_boards
from agents.devices.parts import ComputeMode
from agents.errors import NoPermissionError, OutOfRangeError
from agents.helper.client import HelperSetters
from tests.standins.nvml import NvmlStandIn
from tests.standins.nvml.double import installed
from tests.standins.nvml.fixtures import nvml_library
from tests.waiting import LIMIT_S, wait_until

__all__ = ["nvml_library"]

pytestmark = pytest.mark.integration


LISTENS, CONNECTED = ("00010000", "01"), ("00000000", "03")


def states(path: Path) -> set[tuple[str, str]]:
    """Flags and states of the sockets at a path, as the kernel lists them."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {(row[3], row[5]) for row in rows if row[-1] == str(path)}


class Machine:
    """Two GPUs, a helper that may be started and killed, and an agent's setters."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.gpus = NvmlStandIn(folder / "nvml", ("t4", "t4"), library=library)
        self.uuid = self.gpus.uuids[0]
        self.path = folder / "s"
        self.setters = HelperSetters(self.path)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, uid: int | None = None) -> None:
        allowed = os.getuid() if uid is None else uid
        command = [sys.executable, "-m", "agents.helper", "--socket", str(self.path), "--allow-uid", str(allowed)]
        command += ["--devices", f"nvml:{self.uuid}", "--state-dir", str(self.folder / "state")]
        command += ["--audit-log", str(self.folder / "audit"), *options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self.gpus.env())
        wait_until(lambda: self.process is not None and (self.listens() or self.process.poll() is not None))
        assert self.process.poll() is None, (self.folder / "log").read_text()

    def listens(self) -> bool:
        """As the kernel lists its socket: asking by a connection would be a visit."""
        return LISTENS in states(self.path)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(timeout=LIMIT_S)

    def held(self) -> dict[str, Any]:
        return self.gpus.state(self.uuid)

    def sockets(self) -> int:
        """Sockets that the helper has: the one it listens on, and one for each connection."""
        assert self.process is not None
        names = []
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.append(str(link.readlink()))
        return sum(name.startswith("socket:") for name in names)

    def idle(self) -> bool:
        """Whether all its threads wait, so that it knows of everybody who came."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        with contextlib.suppress(OSError):
            return all(task.read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)
        return False  # one has just ended

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit").read_text(encoding="ascii").splitlines()]

    def close(self) -> None:
        self.setters.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=LIMIT_S)
        self.gpus.close()


@pytest.fixture
def machine(nvml_library: Path) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        found = Machine(Path(folder), nvml_library)
        yield found
        found.close()


def test_an_agent_without_privilege_sets_everything_through_it(machine: Machine) -> None:
    machine.start()
    # The agent's own eyes: the same driver, without the right to write.
    with installed(machine.gpus.double(privileged=False)):
        boards = open_boards("nvml:all", event_wait_ms=5)
        try:
            device = next(each for each in boards.inventory() if each.uuid == machine.uuid)
            clock = device.clocks_mhz_sm[len(device.clocks_mhz_sm) // 2]
            machine.setters.lock_clock(machine.uuid, clock)
            machine.setters.limit_power(machine.uuid, device.power_limit_w_min)
            machine.setters.set_compute_mode(machine.uuid, ComputeMode.EXCLUSIVE_PROCESS)
            settings = boards.settings(machine.uuid)
        finally:
            boards.close()
    assert (machine.held()["clock_mhz_sm"], settings.power_limit_w) == (clock, device.power_limit_w_min)
    assert settings.compute_mode is ComputeMode.EXCLUSIVE_PROCESS
    assert "set_clock" not in machine.setters.refusals()
    with pytest.raises(OutOfRangeError):
        machine.setters.limit_power(machine.uuid, device.power_limit_w_max + 50.0)
    other = machine.gpus.uuids[1]
    before = machine.gpus.state(other)
    with pytest.raises(Exception, match="no such device"):
        machine.setters.lock_clock(other, clock)
    assert machine.gpus.state(other) == before
    outcomes = [line["outcome"].partition(":")[0] for line in machine.told()]
    assert outcomes == ["ok"] * 4 + ["out-of-range", "not-found"]
    assert {line["pid"] for line in machine.told()} == {os.getpid()}


def test_a_killed_helper_leaves_what_the_next_one_brings_back(machine: Machine) -> None:
    original = {name: machine.held()[name] for name in ("clock_mhz_sm", "power_limit_w", "compute_mode", "persistence")}
    machine.start()
    machine.setters.lock_clock(machine.uuid, 900)
    machine.setters.set_compute_mode(machine.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    machine.end(signal.SIGKILL)
    assert machine.held()["clock_mhz_sm"] == 900
    machine.setters.close()
    machine.start("--restore-after", "0.2")
    wait_until(lambda: {name: machine.held()[name] for name in original} == original)
    wait_until(lambda: [line.get("by") for line in machine.told()][-2:] == ["helper", "helper"])
    assert json.loads((machine.folder / "state" / "originals.json").read_text())["originals"] == []


def test_an_agent_that_stays_finds_its_settings_kept_across_a_restart(machine: Machine) -> None:
    machine.start()
    machine.setters.lock_clock(machine.uuid, 900)
    assert machine.end(signal.SIGTERM) == 0
    assert machine.held()["clock_mhz_sm"] == 900
    assert not machine.path.exists()
    machine.start("--restore-after", "3600")
    # Nothing is asked of the new helper, and still it knows that the agent is there.
    wait_until(lambda: machine.setters.present and machine.sockets() == 2 and machine.idle())
    assert machine.end(signal.SIGTERM) == 0
    assert machine.held()["clock_mhz_sm"] == 900
    machine.start("--restore-after", "3600")
    machine.setters.lock_clock(machine.uuid, 915)
    machine.setters.close()
    wait_until(lambda: not connected(machine))
    assert machine.end(signal.SIGTERM) == 0
    assert machine.held()["clock_mhz_sm"] is None


def test_told_to_end_without_any_agent_it_restores_at_once(machine: Machine) -> None:
    machine.start("--restore-after", "3600")
    machine.setters.lock_clock(machine.uuid, 900)
    machine.setters.close()
    # The helper learns of a closed connection in its own time; it is told to end only after that.
    wait_until(lambda: not connected(machine))
    assert machine.end(signal.SIGTERM) == 0
    assert machine.held()["clock_mhz_sm"] is None


def connected(machine: Machine) -> bool:
    """Whether the helper still holds a connection."""
    return CONNECTED in states(machine.path) or not machine.idle()


def test_who_is_not_listed_gets_nothing(machine: Machine) -> None:
    machine.start(uid=os.getuid() + 1)
    before = machine.held()
    with pytest.raises(NoPermissionError, match="may not use this helper"):
        machine.setters.lock_clock(machine.uuid, 900)
    assert machine.held() == before


def test_one_helper_for_a_state_directory(machine: Machine) -> None:
    machine.start()
    command = [sys.executable, "-m", "agents.helper", "--socket", str(machine.folder / "t"), "--allow-uid", "0"]
    command += ["--devices", "nvml:all", "--state-dir", str(machine.folder / "state")]
    second = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=machine.gpus.env(),
    )
    assert second.returncode == 2
    assert second.stderr.startswith("headroom agent-helper: another agent uses")
