"""Real agent processes on a stand-in GPU host: what a kill leaves, what an end gives back, what silence changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agents.control_plane import JOIN_TOKEN, ControlPlane
from tests.standins.hosts import HostStandIn
from tests.standins.nvml.fixtures import compile_library
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
ORIGINAL_W, WANTED_W = 350.0, 250.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("libnvidia-ml"))


class GpuHost:
    """A host, its control plane, and one agent process after the other."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.host = HostStandIn(folder / "host", library=library)
        self.plane = ControlPlane()
        self.uuid = self.host.uuids[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.generation = 0
        self.variables: dict[str, str] = {}
        """Of the agent's environment, beside those of its host."""
        self.described: dict[str, object] = {}
        """What targets say of workers, beside how the stand-in is started."""
        self.log = folder / "agent.log"
        # As an operator left it: below the driver's default.
        self.host.nvml.gpu(self.uuid).limit_mw = round(1000 * ORIGINAL_W)

    def command(self, *options: str) -> list[str]:
        found = [sys.executable, "-m", "agents", "--server", self.plane.url, "--node", "node-1"]
        return [*found, *self.host.options(), *options]

    def environment(self, *, privileged: bool = True) -> dict[str, str]:
        hidden = {"HEADROOM_STANDIN_NVML_UNPRIVILEGED": "" if privileged else "1"}
        return {**self.host.environment(), **hidden, **self.variables, "HEADROOM_TOKEN": JOIN_TOKEN}

    def start(self, *options: str, privileged: bool = True) -> None:
        joins = len(self.plane.joins)
        with self.log.open("ab") as log:
            environment = self.environment(privileged=privileged)
            self.process = subprocess.Popen(self.command(*options), env=environment, stderr=log)
        if self.plane.alive(self.plane._server):
            self.plane.wait_for(lambda: len(self.plane.joins) > joins)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(timeout=30)

    def hold(self, *shares: int, outcome: str = "applied", **settings: object) -> dict[str, Any]:
        """Promote replicas of these shares on the first GPU; the receipt that says what became of them."""
        self.generation += 1
        replicas = [self.replica(f"r{index}", share, **self.described) for index, share in enumerate(shares)]
        device = {"uuid": self.uuid, "mode": "mps", "clock_mhz_sm": None, "power_limit_w": None, "replicas": replicas}
        found = {"node": "node-1", "generation": self.generation, "plan": None, "devices": [device | settings]}
        self.plane.promote(found)
        self.plane.wait_for(lambda: self.receipt(outcome, len(shares)) is not None, 40.0)
        receipt = self.receipt(outcome, len(shares))
        assert receipt is not None
        return receipt

    def receipt(self, outcome: str, ready: int) -> dict[str, Any] | None:
        fitting = [
            each
            for each in self.plane.receipts
            if (each["generation"], each["outcome"]) == (self.generation, outcome)
            and [replica["ready"] for replica in each["replicas"]] == [True] * ready
        ]
        return fitting[-1] if fitting else None

    def replica(self, name: str, share: int, **worker: object) -> dict[str, Any]:
        return {
            "replica": name,
            "kind": "service",
            "workload": "team/svc",
            "project": "team",
            "model": "resnet50",
            "share_pct_sm": share,
            "memory_mib_limit": 4000,
            "batch": 8,
            "batch_min": 8,
            "batch_max": 8,
            "clock_mhz_sm_min": 10_000,
            "clock_mhz_sm_max": 10_000,
            "latency_ms_limit": 200.0,
            "launch_s": 1.0,
            "worker": asdict(self.host.worker()) | worker,
        }

    def state(self) -> tuple[object, object, object]:
        """Clock lock, power limit and compute mode."""
        found = self.host.nvml.state(self.uuid)
        return found["clock_mhz_sm"], found["power_limit_w"], found["compute_mode"]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in map(json.loads, self.log.read_text().splitlines()) if event["event"] == name]

    def told(self) -> str:
        """All that agents and the daemon logged, for a failure that happens once in a thousand."""
        logs = [self.log, *self.folder.rglob("*.log"), *self.folder.rglob("notes/*")]
        read = [f"== {path}\n{path.read_text(errors='replace')[-4000:]}" for path in dict.fromkeys(logs)]
        return "\n".join([*read, f"== receipts {[receipt['problems'] for receipt in self.plane.receipts]}"])

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=30)
        self.plane.go_away()
        self.host.close()


@pytest.fixture
def gpu(tmp_path: Path, library: Path) -> Iterator[GpuHost]:
    found = GpuHost(tmp_path, library)
    yield found
    found.close()


EXCLUSIVE = 3


def test_what_a_killed_agent_left_is_no_original_and_is_given_back(gpu: GpuHost) -> None:
    gpu.start()
    receipt = gpu.hold(30, 20, clock_mhz_sm=1200, power_limit_w=WANTED_W)
    assert receipt["devices"][0] | {"mode": "mps"} == receipt["devices"][0]
    assert [(each["share_pct_sm"], each["sm_count"]) for each in receipt["replicas"]] == [(30, 32), (20, 20)]
    assert all(each["endpoint"].startswith("http://127.0.0.1:") for each in receipt["replicas"])
    workers = gpu.host.pids(gpu.uuid)
    gpu.end(signal.SIGKILL)
    assert gpu.state() == (1200, WANTED_W, EXCLUSIVE)
    # The next agent goes on with the same workers and settings ...
    gpu.start()
    gpu.plane.wait_for(lambda: gpu.plane.receipts[-1]["boot_id"] == gpu.plane.joins[-1]["boot_id"])
    gpu.plane.wait_for(lambda: gpu.plane.receipts[-1]["outcome"] == "applied")
    assert (gpu.host.pids(gpu.uuid), gpu.state()) == (workers, (1200, WANTED_W, EXCLUSIVE)), gpu.told()
    gpu.end(signal.SIGKILL)
    # ... and one that holds nothing gives back what the first one found.
    (gpu.host.state_dir / "target.json").unlink()
    gpu.plane.target = None
    gpu.start()
    wait_until(lambda: gpu.state() == (None, ORIGINAL_W, 0), "the originals are back")
    assert gpu.host.pids(gpu.uuid) == workers
    assert gpu.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("keeps", [False, True])
def test_told_to_end_it_gives_devices_back_unless_told_to_keep_them(gpu: GpuHost, keeps: bool) -> None:
    gpu.start(*(["--keep-on-exit"] if keeps else []))
    gpu.hold(30, clock_mhz_sm=1200, power_limit_w=WANTED_W)
    workers = gpu.host.pids(gpu.uuid)
    assert len(workers) == 1
    assert gpu.end(signal.SIGTERM) == 0
    assert gpu.state() == ((1200, WANTED_W, EXCLUSIVE) if keeps else (None, ORIGINAL_W, 0))
    assert gpu.host.pids(gpu.uuid) == workers


def test_emptied_and_ended_it_leaves_nothing(gpu: GpuHost) -> None:
    gpu.start()
    gpu.hold(30, clock_mhz_sm=1200)
    gpu.hold()
    assert gpu.end(signal.SIGTERM) == 0
    gpu.host.nvml.gpu(gpu.uuid).limit_mw = gpu.host.nvml.gpu(gpu.uuid).limit_mw_default
    assert gpu.host.leftovers() == []


def test_without_privilege_it_shares_all_the_same_and_says_what_it_cannot(gpu: GpuHost) -> None:
    gpu.start(privileged=False)
    capabilities = gpu.plane.joins[0]["devices"][0]["capabilities"]
    assert capabilities["mps"] == ""
    assert "may not write" in capabilities["set_clock"]
    receipt = gpu.hold(30, outcome="partial", clock_mhz_sm=1200)
    assert [each["sm_count"] for each in receipt["replicas"]] == [32]
    assert any("no-permission" in problem for problem in receipt["problems"])
    assert any("compute mode" in problem for problem in receipt["problems"])
    assert gpu.state() == (None, ORIGINAL_W, 0)


def test_the_helper_writes_for_an_agent_that_may_not(gpu: GpuHost) -> None:
    socket = gpu.folder / "helper.sock"
    command = [sys.executable, "-m", "agents.helper", "--socket", str(socket), "--allow-uid", str(os.getuid())]
    command += ["--devices", "nvml:all", "--state-dir", str(gpu.folder / "helper"), "--restore-after", "60"]
    with gpu.log.open("ab") as log:
        helper = subprocess.Popen(command, env=gpu.environment(), stderr=log, stdout=log)
    try:
        wait_until(socket.exists, "the helper's socket")
        gpu.start("--helper", str(socket), privileged=False)
        assert gpu.plane.joins[0]["devices"][0]["capabilities"]["set_clock"] == ""
        receipt = gpu.hold(30, clock_mhz_sm=1200, power_limit_w=WANTED_W)
        assert receipt["problems"] == []
        assert gpu.state() == (1200, WANTED_W, EXCLUSIVE)
        assert gpu.end(signal.SIGTERM) == 0
        assert gpu.state() == (None, ORIGINAL_W, 0)
    finally:
        helper.terminate()
        helper.wait(timeout=30)


def test_alone_it_freezes_restarts_what_dies_and_thaws_when_somebody_answers(gpu: GpuHost) -> None:
    gpu.start("--alone-after", "1.5")
    gpu.hold(30)
    endpoint = gpu.plane.joins[0]["endpoint"]
    gpu.plane.go_away()
    wait_until(lambda: gpu.events("changes.frozen"), "it freezes")
    with urllib.request.urlopen(f"{endpoint}/health", timeout=5) as answer:
        health = json.load(answer)
    assert (health["frozen"], health["generation_applied"]) == (True, 1)
    (worker,) = gpu.host.pids(gpu.uuid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: gpu.host.pids(gpu.uuid) not in ([], [worker]), "another worker")
    gpu.plane.come_back()
    wait_until(lambda: gpu.events("changes.thawed"), "it thaws")
    gpu.plane.wait_for(lambda: any("1 worker failed" in text for text in gpu.plane.receipts[-1]["problems"]))


def test_a_dry_run_prints_every_step_and_takes_none(gpu: GpuHost) -> None:
    gpu.start()
    gpu.hold(30, clock_mhz_sm=1200)
    assert gpu.end(signal.SIGTERM) == 0
    before = (gpu.host.pids(gpu.uuid), gpu.state(), len(gpu.plane.joins))
    target = dict(gpu.plane.target or {})
    target["devices"][0] |= {"replicas": [gpu.replica("r0", 50), gpu.replica("r1", 40)], "power_limit_w": WANTED_W}
    gpu.plane.target = target | {"generation": 2}
    done = subprocess.run(
        gpu.command("--dry-run"), env=gpu.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    told = [line.removeprefix(f"{gpu.uuid}: ") for line in done.stdout.splitlines()]
    assert told[0] == "generation 2, as the control plane has it"
    command = " ".join(gpu.host.worker().command)
    assert told[1:] == [
        "limit it to 250 W",
        "lock the SM clock at 1200 MHz",
        f"start r0 with 50 %, 4000 MiB, batch 8: {command}",
        f"start r1 with 40 %, 4000 MiB, batch 8: {command}",
        "drain r0@00000001",
        "end r0@00000001",
    ], gpu.told()
    assert (gpu.host.pids(gpu.uuid), gpu.state(), len(gpu.plane.joins)) == before
