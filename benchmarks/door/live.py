"""The README's demo while it runs: `python -m benchmarks.door.live [--minutes 7] [--busy 4] [--keep FOLDER]`.

`headroom up` in a home of its own, `headroom apply -f examples/vision.yaml` after 100 s, and every `--every-s` seconds
`headroom snapshot export` and `headroom status`. At last the processor seconds of the planner's processes are told by
cycle, and every picture is planned with nothing standing, by `headroom plan` with `--units` of work, to say how far
what stood was from what could be had. Rates differ by the moment, so one run is one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.door.command import HEADROOM, Asked, ask, busy
from benchmarks.instances.__main__ import write
from benchmarks.startup import environment_of
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.codec import from_json
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import worth_of

ROOT = Path(__file__).resolve().parents[2]
APPLIED_AT_S = 100.0
AFRESH_S = 600.0
DUST = 1e-3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """What stood at a moment, the gap that was stated of it, and the picture of it."""

    at_s: float
    picture: Snapshot
    stood: Objective
    told: str


@dataclass(frozen=True, slots=True)
class Demo:
    """A running one."""

    environment: dict[str, str]

    def said(self, *words: str) -> str:
        """By a command."""
        command = [str(HEADROOM), *words]
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    def look(self, at_s: float, path: Path) -> Seen:
        """Export the picture, and ask for the status."""
        self.said("snapshot", "export", "--out", str(path))
        picture = from_json(Snapshot, path.read_bytes())
        movable = movable_workloads(picture, Lane.ACT)
        stood = worth_of(picture, movable, picture.target.assignments, picture.target.settings).objective
        plan: dict[str, Any] = json.loads(self.said("status", "-o", "json"))["plan"] or {}
        return Seen(at_s, picture, stood, str(plan.get("gap_told") or "nothing"))

    def cycles(self) -> list[dict[str, Any]]:
        """Newest first."""
        told: list[dict[str, Any]] = json.loads(self.said("get", "cycles", "-o", "json", "-n", "1000"))
        return told

    def cpu_s(self) -> tuple[float, float]:
        """Processor seconds of the planner's loops, and of its solvers and learners, those that have ended too."""
        state = json.loads((Path(self.environment["HEADROOM_HOME"]) / "state.json").read_bytes())
        planner = next(item["pid"] for item in state["processes"] if item["name"] == "planner")
        every = {int(path.name): _stat(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
        # Fields 14 to 17 of the file: its own time and that of children that ended.
        children = [stat[11:15] for stat in every.values() if stat and stat[1] == planner] + [every[planner][13:15]]
        return sum(every[planner][11:13]) / TICKS_PER_S, sum(map(sum, children)) / TICKS_PER_S


def _stat(process: Path) -> tuple[int, ...]:
    """The numbers after its name, its parent's second; none of one that has gone."""
    try:
        words = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ()
    return (0, *(int(word) for word in words[1:15]))


def played(demo: Demo, folder: Path, minutes: float, every_s: float) -> list[Seen]:
    """The looks, `vision.yaml` between."""
    began_s, seen, applied = time.monotonic(), list[Seen](), False
    while (at_s := time.monotonic() - began_s) < 60 * minutes:
        if not applied and at_s >= APPLIED_AT_S:
            demo.said("apply", "-f", "examples/vision.yaml")
            applied = True
        seen.append(demo.look(at_s, folder / f"{at_s:04.0f}.json"))
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s - at_s)))
    return seen


def line(seen: Seen, units: int, folder: Path) -> str:
    """One look, beside its picture planned with nothing standing."""
    picture = folder / "afresh.json"
    write(replace(seen.picture, target=Target(), replicas=()), picture)
    _, plan = ask(Asked(snapshot=picture, deadline_s=AFRESH_S, work_units=units), folder / "afresh.plan.json")
    stood = _sum(seen.stood)
    if plan is None:
        return f"| {seen.at_s:.0f} | {stood} | {seen.told} | – | – | |"
    above = seen.stood.net_usd_per_h / plan.objective.net_usd_per_h - 1
    mine, its = seen.stood.unserved, plan.objective.unserved
    short = f"{mine:,.1f} for {its:,.1f}" if abs(mine - its) > DUST else ""
    return f"| {seen.at_s:.0f} | {stood} | {seen.told} | {_sum(plan.objective)} | {above:+.1%} | {short} |"


def _sum(objective: Objective) -> str:
    return f"{objective.cost_usd_per_h:.3f} + {objective.waiting_usd_per_h:.3f}"


def main() -> int:
    """Start, look, stop, plan, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door.live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--every-s", type=float, default=20.0)
    parser.add_argument("--units", type=int, default=3000, help="for a picture with nothing standing")
    parser.add_argument("--busy", type=int, default=0, help="processes that only count, beside the demo")
    parser.add_argument("--keep", type=Path, help="where pictures stay")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headroom-live-") as place:
        folder = asked.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        demo = Demo(environment_of(Path(place) / "home"))
        try:
            with busy(asked.busy):
                demo.said("up")
                before, first = len(demo.cycles()), demo.cpu_s()
                seen = played(demo, folder, asked.minutes, asked.every_s)
                cycles, last = demo.cycles(), demo.cpu_s()
        finally:
            demo.said("down")
        count = len(cycles) - before
        longest_s = max(item["elapsed_ms"] or 0.0 for item in cycles[:count]) / 1000
        loops_s, solvers_s = (end - begin for begin, end in zip(first, last, strict=True))
        print(
            f"{count} cycles, the longest {longest_s:.1f} s; {solvers_s:.1f} processor seconds of solvers and learners,"
        )
        print(
            f"{solvers_s / count:.2f} a cycle, and {loops_s:.1f} of the planner's loops; load {os.getloadavg()[1]:.1f}"
        )
        print("| s | stood, $/h + jobs | stated | nothing standing | above | unserved |\n|---|---|---|---|---|---|")
        for item in seen:
            print(line(item, asked.units, folder), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
