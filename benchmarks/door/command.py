"""`headroom plan --snapshot` as a child process: what it says, how long it takes, what it costs in time and memory.

Owns the measured record. The child has one thread of its own for every numerical library, as the planner's process has;
processor seconds are its user and system time with that of its children, memory is its highest resident set. Where a
machine should be busy, processes that only count are started beside it and ended by their ids.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solvers.domain.codec import from_json
from solvers.domain.plan import Plan

HEADROOM = Path(sys.executable).with_name("headroom")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SPIN = "while True: pass"
KILL_FACTOR, KILL_S = 20.0, 300.0
"""A child is ended after so many times its deadline and so many seconds more."""
LOOK_S = 0.02
REFUTED = 7
"""The command's exit status where the verifier refutes the plan; the answer is printed all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One plan to ask for. Without a planner the snapshot's own policies decide."""

    snapshot: Path
    deadline_s: float
    seed: int = 1
    work_units: int | None = None
    planner: str | None = "joint"
    busy: int = 0
    """Processes that only count, beside it."""
    memory: Path | None = None
    """Where planners keep what they know for the next plan."""

    def words(self, out: Path) -> list[str]:
        """The command line."""
        words = [str(HEADROOM), "plan", "--snapshot", str(self.snapshot), "--deadline-s", f"{self.deadline_s:g}"]
        words += ["--seed", str(self.seed), "--out", str(out), "-o", "json", "-q"]
        words += [] if self.planner is None else ["--planner", self.planner]
        words += [] if self.memory is None else ["--memory", str(self.memory)]
        return words + ([] if self.work_units is None else ["--work-units", str(self.work_units)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of one command."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    ended: str
    """`finished`, or how it did not."""
    read_s: float = 0.0
    planned_s: float = 0.0
    """Until the planner's last word, of the whole; what is neither that nor read nor told is starting and ending."""
    told_s: float = 0.0
    """To verify and tell."""
    planner: str | None = None
    won: str | None = None
    """Whose plan it is among the planner's own contenders."""
    usd_per_h: float | None = None
    bound_usd_per_h: float | None = None
    gap_pct: float | None = None
    workloads_short: int = 0
    rate_rps_short: float = 0.0
    verified: bool = False
    starts: int = 0
    stops: int = 0
    gpus: int = 0


def ask(asked: Asked, out: Path) -> tuple[Ran, Plan | None]:
    """Run the command and wait for it; the plan is read back from where the command wrote it."""
    said = out.with_suffix(".said.json")
    out.unlink(missing_ok=True)
    with busy(asked.busy), said.open("w") as answer, out.with_suffix(".err").open("w") as errors:
        begun_s = time.monotonic()
        child = subprocess.Popen(asked.words(out), stdout=answer, stderr=errors, env=os.environ | ONE_THREAD)
        ended, used = _waited(child, KILL_FACTOR * asked.deadline_s + KILL_S)
        wall_s = time.monotonic() - begun_s
    spent: dict[str, Any] = {
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
    }
    text = said.read_text(encoding="utf-8")
    if ended != "finished" or not text:
        return Ran(**spent, ended=ended), None
    told = json.loads(text)
    plan = from_json(Plan, out.read_text(encoding="utf-8")) if out.exists() else None
    return _read(told, spent), plan


def _waited(child: subprocess.Popen[bytes], most_s: float) -> tuple[str, resource.struct_rusage]:
    """How it ended, and what it used: `wait4` alone tells that of a single child."""
    give_up_s = time.monotonic() + most_s
    while time.monotonic() < give_up_s:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return "finished" if child.returncode in (0, REFUTED) else f"exit {child.returncode}", used
        time.sleep(LOOK_S)
    child.kill()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return f"killed after {most_s:.0f} s", used


def _read(told: Mapping[str, Any], spent: Mapping[str, Any]) -> Ran:
    failed = [f"{item['planner']}: {item['error']}" for item in told["attempts"] if item["error"]]
    contenders = (told.get("insight") or {}).get("contenders", [])
    mark = (told["unserved"], told["cost_usd_per_h"])
    same = (item for item in contenders if (item["objective"]["unserved"], item["objective"]["cost_usd_per_h"]) == mark)
    return Ran(
        **spent,
        ended="; ".join(failed) or "finished",
        **{name: told[name] for name in ("read_s", "planned_s", "told_s")},
        planner=told["planner"],
        won=next((item["name"] for item in same), None),
        usd_per_h=told["cost_usd_per_h"],
        bound_usd_per_h=told["bound_usd_per_h"],
        gap_pct=told["gap_pct"],
        workloads_short=told["workloads_short"],
        rate_rps_short=told["rate_rps_short"],
        verified=told["verified"],
        starts=told["moves"]["starts"],
        stops=told["moves"]["stops"],
        gpus=told["gpus_in_use"],
    )


@contextmanager
def busy(processes: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in spinning:
            child.kill()
            child.wait()
