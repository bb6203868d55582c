"""What an agent of a real GPU host costs, on the stand-ins: 8 GPUs with 24 replicas, three on each.

Owns the conditions: `python -m agents` as a process on the compiled NVML stand-in, MPS daemons and workers as processes
of their own, a small control plane with reports every 5 s. Measures processor time and resident memory of the agent
without its workers, once with envelopes that leave the governor nothing and once with open ones, and the time from the
promotion of a desired state that starts no process (batches and clocks) to the receipt that says it is applied. Run as
`python -m benchmarks.agent_host [SECONDS] [CHANGES]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.agent_idle import cpu_s, rss_mb
from tests.integration.agents.control_plane import JOIN_TOKEN, ControlPlane
from tests.standins.hosts import HostStandIn
from tests.standins.nvml.fixtures import compile_library

GPUS, REPLICAS = 8, 3
WARM_UP_S = 10.0
GOALS = "goals: < 2 % of a core, < 60 MB, p95 < 300 ms"


class Bench:
    """A host, an agent, a control plane."""

    def __init__(self, folder: Path) -> None:
        self.host = HostStandIn(folder / "host", ["a100-40gb"] * GPUS, compile_library(folder))
        self.plane = ControlPlane(report_interval_s=5.0, heartbeat_s=20.0)
        self.generation = 0
        command = [sys.executable, "-m", "agents", "--server", self.plane.url, "--node", "bench", *self.host.options()]
        environment = {**self.host.environment(), "HEADROOM_TOKEN": JOIN_TOKEN}
        self.log = (folder / "agent.log").open("wb")
        self.agent = subprocess.Popen(command, env=environment, stderr=self.log)
        self.plane.wait_for(lambda: self.plane.joins, 60.0)
        self.clocks = {item["uuid"]: item["clocks_mhz_sm"] for item in self.plane.joins[0]["devices"]}

    def want(self, batch: int, clock: int, spread: int) -> float:
        """Promote three replicas on every GPU; milliseconds until the receipt says that they are held. `spread`: how
        far batches may be governed.
        """
        self.generation += 1
        devices = []
        for index, (uuid, clocks) in enumerate(self.clocks.items()):
            replicas = [self._replica(f"r-{index}-{number}", batch, spread) for number in range(REPLICAS)]
            devices.append(
                {
                    "uuid": uuid,
                    "mode": "mps",
                    "clock_mhz_sm": clocks[-clock] if clock else None,
                    "power_limit_w": None,
                    "replicas": replicas,
                }
            )
        wanted = {"node": "bench", "generation": self.generation, "plan": None, "devices": devices}
        began_s, generation = time.monotonic(), self.generation
        self.plane.promote(wanted)
        self.plane.wait_for(lambda: self._applied(generation), 120.0)
        return 1000.0 * (time.monotonic() - began_s)

    def idle(self, seconds: float) -> tuple[float, float]:
        """Percent of a core and resident megabytes."""
        time.sleep(WARM_UP_S)
        before_s, began_s = cpu_s(self.agent.pid), time.monotonic()
        time.sleep(seconds)
        used = 100.0 * (cpu_s(self.agent.pid) - before_s) / (time.monotonic() - began_s)
        return used, rss_mb(self.agent.pid)

    def close(self) -> None:
        """End the agent and everything it left."""
        self.agent.terminate()
        self.agent.wait(timeout=60)
        self.plane.go_away()
        self.host.close()
        self.log.close()

    def _applied(self, generation: int) -> bool:
        return any(
            receipt["generation"] == generation and receipt["outcome"] == "applied"
            for receipt in self.plane.receipts[-20:]
        )

    def _replica(self, name: str, batch: int, spread: int) -> dict[str, Any]:
        return {
            "replica": name,
            "kind": "service",
            "workload": "bench/svc",
            "project": "bench",
            "model": "resnet50",
            "share_pct_sm": 30,
            "memory_mib_limit": 8000,
            "batch": batch,
            "batch_min": max(1, batch - spread),
            "batch_max": batch + spread,
            "clock_mhz_sm_min": 0 if spread else 10_000,
            "clock_mhz_sm_max": 10_000,
            "latency_ms_limit": 200.0,
            "launch_s": 1.0,
            "worker": asdict(self.host.worker()) | {"batch_change": "live"},
        }


def main() -> None:
    """Print what it costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_host", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0, help="60")
    parser.add_argument("changes", nargs="?", type=int, default=100, help="100")
    asked = parser.parse_args()
    seconds, changes = asked.seconds, asked.changes
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            print(f"{GPUS} GPUs, {GPUS * REPLICAS} replicas; {os.cpu_count()} cores; {GOALS}")
            print(f"started and applied after {bench.want(8, 0, 0) / 1000.0:.1f} s")
            for spread, told in ((0, "nothing to govern"), (4, "governed each second")):
                bench.want(8, 0, spread)
                used, memory = bench.idle(seconds)
                print(f"{told}, {seconds:g} s: {used:.2f} % of a core, {memory:.1f} MB resident", flush=True)
            times = sorted(bench.want(4 + number % 9, 1 + number % 4, 0) for number in range(changes))
            p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
            print(f"{changes} changes of batches and clocks: p50 {statistics.median(times):.0f} ms, p95 {p95:.0f} ms")
        finally:
            bench.close()


if __name__ == "__main__":
    main()
