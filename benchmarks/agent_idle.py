"""What an idle agent costs: CPU of a core and resident memory of `python -m agents` with eight simulated GPUs.

Owns the conditions: a local control plane, reports every 5 s, the doorbell open, either no replicas or three per GPU
without requests. Run as `python -m benchmarks.agent_idle [SECONDS]`; prints one line per condition.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.agents.control_plane import JOIN_TOKEN, ControlPlane

GPUS = 8
MODELS = ("resnet50", "bert-base", "mobilenet")
WARM_UP_S = 8.0


def cpu_s(pid: int) -> float:
    """Processor time used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory, megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def target(joined: dict[str, object], replicas_per_gpu: int) -> dict[str, object]:
    """A node target with the same replicas on every GPU."""
    devices = []
    for device in joined["devices"]:  # type: ignore[attr-defined]
        replicas = [
            {
                "replica": f"bench-{device['index']}-{position}",
                "kind": "service",
                "workload": f"bench/{MODELS[position]}",
                "project": "bench",
                "model": MODELS[position],
                "share_pct_sm": 30,
                "memory_mib_limit": 2000,
                "batch": 8,
                "batch_min": 1,
                "batch_max": 8,
                "clock_mhz_sm_min": 300,
                "clock_mhz_sm_max": 1590,
                "latency_ms_limit": 200.0,
                "launch_s": 5.0,
            }
            for position in range(replicas_per_gpu)
        ]
        devices.append(
            {"uuid": device["uuid"], "mode": "mps", "clock_mhz_sm": None, "power_limit_w": None, "replicas": replicas}
        )
    return {"node": "bench", "generation": 1, "plan": None, "devices": devices}


def measure(replicas_per_gpu: int, seconds: float) -> tuple[float, float]:
    """CPU percent of a core and resident megabytes over `seconds`."""
    plane = ControlPlane(report_interval_s=5.0, heartbeat_s=20.0)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "agents", "--server", plane.url, "--token", JOIN_TOKEN, "--node", "bench"]
        command += ["--devices", "fake:" + ",".join(["T4"] * GPUS), "--state-dir", folder, "--time-factor", "10"]
        agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            plane.wait_for(lambda: plane.joins)
            plane.promote(target(plane.joins[0], replicas_per_gpu))
            plane.wait_for(lambda: plane.receipts and plane.receipts[-1]["outcome"] == "applied")
            time.sleep(WARM_UP_S)
            before_s, began_s = cpu_s(agent.pid), time.monotonic()
            time.sleep(seconds)
            used = 100.0 * (cpu_s(agent.pid) - before_s) / (time.monotonic() - began_s)
            return used, rss_mb(agent.pid)
        finally:
            agent.terminate()
            agent.wait(timeout=20)
            plane.go_away()


def main() -> None:
    """Print what an idle agent costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_idle", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="60")
    seconds = parser.parse_args().seconds
    for replicas_per_gpu in (0, 3):
        used, memory = measure(replicas_per_gpu, seconds)
        print(
            f"{GPUS} GPUs, {replicas_per_gpu} replicas each, {seconds:g} s: {used:.2f} % of a core, {memory:.1f} MB RSS"
        )


if __name__ == "__main__":
    main()
