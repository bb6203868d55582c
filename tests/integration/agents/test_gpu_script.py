"""The script for real GPUs on a host that is not there: what it shall do on hardware it can at least do.

The long steps are left out: they are the profiler's, which has tests of its own, and an average over ten seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.recorded import RecordedBoards
from tests.ports import port_option
from tests.standins.hosts import HostStandIn
from tests.standins.nvml.fixtures import nvml_library
from tests.waiting import wait_until

__all__ = ["nvml_library"]

ROOT = Path(__file__).parents[3]
STEPS = ("inventory", "power", "shares", "surface", "beside", "memory", "handover", "bypass")
TORCH = ROOT / "tests" / "standins" / "torch"


@pytest.mark.integration
def test_the_script_measures_and_leaves_nothing_behind(tmp_path: Path, nvml_library: Path) -> None:
    host = HostStandIn(tmp_path, ("a100-40gb",), nvml_library)
    other = HostStandIn(tmp_path / "other", ("a100-40gb",), nvml_library)
    try:
        assert other.uuids == host.uuids
        beside = serving(other)
        host.nvml.host.gpus[0].load_pct = 90
        environment = host.environment() | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(TORCH))),
            **host.mps.env(),
            "STANDIN_NVML": str(host.nvml.root),
        }
        keep = ("LD_LIBRARY_PATH", "PYTHONPATH", "STANDIN_NVML", *host.mps.env())
        options = [f"--mps-control={host.mps.control_binary}", f"--mps-pipes={host.mps.pipe_base}"]
        options += [f"--ports={port_option()}"]
        out = tmp_path / "out"
        command = [sys.executable, "-m", "tests.gpu", "--out", str(out), "--budget-s", "200", "--point-s", "0.02"]
        command += [f"--only={step}" for step in STEPS]
        command += [f"--agent-option={option}" for option in options] + [f"--keep={name}" for name in keep]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        found = json.loads((out / "findings.json").read_text())["findings"]
        steps = {finding["step"] for finding in found}
        failed = [finding for finding in found if finding["fine"] is False]
        assert not failed, done.stdout + done.stderr
        assert steps == set(STEPS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not [finding for finding in found if finding["name"] in ("not here", "not reached")], done.stdout
        assert host.leftovers() == []
        assert RecordedBoards(out / "boards.jsonl").inventory()[0].uuid == host.uuids[0]
        assert other.mps.processes() == beside, "daemons of another host are left alone"
    finally:
        host.close()
        other.close()


def serving(host: HostStandIn) -> tuple[int, ...]:
    """Start daemon and server of the first device; their processes."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(host.mps.pipe_base), "CUDA_VISIBLE_DEVICES": host.uuids[0]}
    subprocess.run([host.mps.control_binary, "-d"], env=environment, check=True)
    wait_until((host.mps.pipe_base / "control").exists, "the daemon")
    host.mps.ask(host.uuids[0], stdin=f"start_server -uid {os.getuid()}\n")
    found = host.mps.processes()
    assert len(found) == 2
    return found
