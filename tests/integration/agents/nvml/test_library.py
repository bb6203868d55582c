"""The real load path: a child process loads a library by its name and reads GPUs through the real binding."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.devices.nvml import open_boards
from tests.integration.agents.nvml.conftest import ROOT, Process
from tests.integration.agents.nvml.tour import tour
from tests.standins.nvml import Missing, NvmlStandIn
from tests.standins.nvml.double import installed
from tests.standins.nvml.fixtures import compile_library
from tests.standins.nvml.layout import LAYOUTS
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
SOON_S = 20.0
Starter = Callable[..., Process]


def test_c_and_python_agree_on_the_shared_memory(nvml_library: Path) -> None:
    library = ctypes.CDLL(str(nvml_library))
    assert [library.standin_layout(which) for which in range(len(LAYOUTS))] == [ctypes.sizeof(one) for one in LAYOUTS]


def test_library_and_double_answer_alike(host: NvmlStandIn, start: Starter) -> None:
    def prepare() -> None:
        host.reboot()
        for uuid in (host.uuids[0], host.uuids[1], host.plans[2].migs[0].uuid):
            host.add_process(uuid, os.getpid(), 600)
        host.add_process(host.uuids[1], 999_999_001, None, mps=True, imaginary=True)
        host.add_process(host.uuids[1], 999_999_002, 50)
        host.load(host.uuids[1], 90.0)
        host.throttle(host.uuids[0], 0x20, 900)
        host.limit_outside(host.uuids[1], 500.0)

    prepare()
    child = start(host.env(), "5", "tour")
    found = child.hello["tour"]
    assert child.end() == 0
    prepare()
    with installed(host.double()):
        boards = open_boards("nvml:all", event_wait_ms=5)
        expected = tour(boards)
        boards.close()
    assert found == expected
    assert [device["inventory"]["gpu_type"] for device in found[0]] == ["t4", "h100", "a100-40gb", "a100-40gb"]
    assert found[2] == [25, 2, 6, 2, 0, 2, 0, 0, 2, 0, 2, 0, 13, 22]
    assert found[1][0] == {}


def test_old_libraries_answer_alike(host: NvmlStandIn, start: Starter) -> None:
    missing = Missing.TEMPERATURE_V | Missing.EVENT_REASONS | Missing.MEMORY_V2 | Missing.MPS_PROCESSES | Missing.GPM
    host.miss(missing | Missing.CORES)
    found = start(host.env(), "5", "tour").hello["tour"]
    host.reboot()
    host.miss(missing | Missing.CORES)
    with installed(host.double()):
        boards = open_boards("nvml:all", event_wait_ms=5)
        expected = tour(boards)
        boards.close()
    assert found == expected
    assert {device["source"] for device in found[0]} == {"table", "attributes"}


def test_processes_see_the_same_gpus(host: NvmlStandIn, start: Starter) -> None:
    one, other = start(host.env()), start(host.env(privileged=False))
    uuid = host.uuids[1]
    host.load(uuid, 50.0)
    assert one.ask(call="refusals") == {}
    assert set(other.ask(call="refusals")) == {
        "set_clock",
        "set_power",
        "set_compute_mode",
        "set_persistence",
    }
    assert one.ask(set="lock_clock", uuid=uuid, value=1005) is None
    assert one.ask(set="limit_power", uuid=uuid, value=300.0) is None
    assert other.ask(call="reading", uuid=uuid)["clock_mhz_sm"] == 1005
    assert other.ask(call="settings", uuid=uuid)["power_limit_w"] == 300.0
    assert other.ask(set="limit_power", uuid=uuid, value=400.0)["error"] == "no-permission"
    host.forbid_setters()
    assert one.ask(set="lock_clock", uuid=uuid, value=None)["error"] == "no-permission"
    assert host.state(uuid)["clock_mhz_sm"] == 1005
    host.forbid_setters(forbidden=False)
    assert one.ask(set="lock_clock", uuid=uuid, value=None) is None
    assert host.state(uuid)["clock_mhz_sm"] is None


def test_energy_is_the_integral_of_power(host: NvmlStandIn, start: Starter) -> None:
    child, uuid = start(host.env()), host.uuids[1]
    host.load(uuid, 50.0)
    first, began_s = child.ask(call="reading", uuid=uuid), time.monotonic()
    deadline_s, last = began_s + SOON_S, first
    while last["energy_j_total"] - first["energy_j_total"] < 0.2 * first["power_w"]:
        assert time.monotonic() < deadline_s
        last = child.ask(call="reading", uuid=uuid)
    elapsed_s = time.monotonic() - began_s
    assert (
        0.2 * first["power_w"] <= last["energy_j_total"] - first["energy_j_total"] <= elapsed_s * first["power_w"] * 1.1
    )
    host.restart_energy(uuid)
    assert child.ask(call="reading", uuid=uuid)["energy_j_total"] < last["energy_j_total"]


def test_faults_reach_a_running_process(host: NvmlStandIn, start: Starter) -> None:
    child = start(host.env(), "0.2")
    t4, h100, _ = host.uuids
    host.lose(t4)
    assert child.ask(call="reading", uuid=t4)["error"] == "lost"
    host.lose(t4, lost=False)
    assert child.ask(call="reading", uuid=t4)["healthy"] is True
    host.throttle(h100, 0x8 | 0x40, 500)
    host.load(h100, 100.0)
    found = child.ask(call="reading", uuid=h100)
    assert (found["throttle"], found["clock_mhz_sm"]) == ("hw_slowdown,hw_thermal", 495)
    host.hang(60_000, t4)
    assert child.ask(call="reading", uuid=t4)["error"] == "timeout"
    assert child.ask(call="reading", uuid=h100)["healthy"] is True
    host.hang(0, t4)
    wait_until(lambda: "error" not in child.ask(call="reading", uuid=t4), "an end of the fault")
    host.fail_reads(t4, 999)
    assert child.ask(call="settings", uuid=t4)["error"] == "driver"


def test_events_reach_every_process(host: NvmlStandIn, start: Starter) -> None:
    children = [start(host.env()), start(host.env())]
    host.xid(host.uuids[1], 79)
    for child in children:
        found: list[dict[str, Any]] = []
        wait_until(lambda found=found, child=child: found.extend(child.ask(call="events")) or found, "an event")
        assert [(event["uuid"], event["kind"], event["detail"]) for event in found] == [(host.uuids[1], "xid", 79)]


def test_a_process_ends_while_the_driver_hangs(host: NvmlStandIn, start: Starter) -> None:
    child = start(host.env(), "0.1")
    host.hang(600_000, host.uuids[0])
    assert child.ask(call="reading", uuid=host.uuids[0])["error"] == "timeout"
    assert child.end() == 0


def test_hosts_without_driver_say_so(host: NvmlStandIn, start: Starter) -> None:
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "HEADROOM_"))}
    without_library = start(bare)
    assert without_library.hello["error"] == "driver"
    assert "NVML 12" in without_library.hello["text"]
    assert without_library.end() == 3
    without_driver = start(host.env() | {"HEADROOM_STANDIN_NVML": "/nowhere"})
    assert "NVML 9" in without_driver.hello["text"]
    host.fail_init(18)
    assert "NVML 18" in start(host.env()).hello["text"]


PRELOADED = (
    "import ctypes, os, pynvml\n"
    "ctypes.CDLL(os.environ['STANDIN'])\n"
    "try:\n"
    "    pynvml.nvmlInit()\n"
    "    print(pynvml.nvmlDeviceGetCount())\n"
    "except pynvml.NVMLError as error:\n"
    "    print('error', error.value)\n"
)


def test_a_library_preloaded_by_its_path_needs_the_soname(host: NvmlStandIn, tmp_path: Path) -> None:
    anonymous = compile_library(tmp_path, soname="")

    def count(library: Path | None) -> str:
        environment = host.env() | {"STANDIN": str(library), "LD_LIBRARY_PATH": ""}
        command = [sys.executable, "-c", PRELOADED]
        run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        return run.stdout.strip()

    assert count(host.library) == "3"
    assert count(anonymous) == "error 12"
