"""`python -m tests.gpu.whole`: the whole product on one real GPU as its user uses it, told as findings.

A control plane with its own database, one agent, three services with promises that the card's own measurements allow,
open-loop users, a rate that rises, what the product tells of all that, and the end. No privilege is needed: clocks, the
power limit and the compute mode stay as they are. Owns the order, the budget and the verdict, as `tests.gpu` does.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.gpu.rig import NotHereError
from tests.gpu.whole import steps
from tests.gpu.whole.run import Run
from tests.gpu.whole.services import Host

STEPS: dict[str, Callable[[Run], None]] = {
    "plane": steps.plane,
    "profiles": steps.profiles,
    "services": steps.services,
    "steady": steps.steady,
    "raised": steps.raised,
    "served": steps.served,
    "told": steps.told,
    "doctor": steps.doctor,
    "bill": steps.bill,
    "ended": steps.ended,
}
NEEDS = {
    "profiles": "plane",
    "services": "profiles",
    "steady": "services",
    "raised": "steady",
    "served": "steady",
    "told": "services",
    "bill": "services",
    "doctor": "plane",
    "ended": "plane",
}
ALWAYS = ("served", "ended")
"""Whatever the budget says."""
BUDGET_S = 170.0
LEAST_S = 15.0


def main(arguments: Sequence[str]) -> int:
    """Run."""
    found = _parser().parse_args(arguments)
    found.out.mkdir(parents=True, exist_ok=True)
    host = Host(python=found.python, kept={name: os.environ[name] for name in found.keep if name in os.environ})
    run = Run(found, host)
    try:
        for name in STEPS:
            _step(run, name)
    finally:
        _close(run)
    failed = [finding for finding in run.rig.findings if finding.fine is False]
    took_s = time.monotonic() - run.rig.began_s
    print(f"{len(run.rig.findings)} findings, {len(failed)} failed, {took_s:.0f} s; written to {found.out}")
    return 1 if failed else 0


def _step(run: Run, name: str) -> None:
    rig = run.rig
    rig.step = name
    missing = NEEDS.get(name)
    if missing is not None and missing not in run.done:
        rig.note("not reached", f"{missing} failed")
        return
    if rig.left_s() < LEAST_S and name not in ALWAYS:
        rig.note("not reached", "the budget is spent")
        return
    began_s = time.monotonic()
    try:
        STEPS[name](run)
        run.done.add(name)
    except NotHereError as error:
        rig.note("not here", str(error))
    except Exception as error:  # noqa: BLE001 - one broken step must not cost the others
        traceback.print_exc(file=sys.stdout)
        print(run.plane.story(5), flush=True)
        rig.check("the step runs to its end", fine=False, value=f"{type(error).__name__}: {error}".splitlines()[0])
    rig.note("took", time.monotonic() - began_s, "s")


def _close(run: Run) -> None:
    run.rig.step = "close"
    run.end_load()
    run.keep("story.txt", run.plane.story(200))
    left = run.plane.close()
    run.rig.check("nothing is left", not left, value="; ".join(f"{pid} {text[:80]}" for pid, text in left.items()))
    run.write({"kernel": platform.release(), "python": sys.version.split()[0], "user": str(os.getuid())})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.whole", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--devices", default="nvml:all", help="as the agent's option; one GPU")
    add("--out", type=Path, default=Path("build/gpu-whole"), help="where findings and texts go")
    add("--profiles", type=Path, help="CSV of measurements of this card; without it some points are measured")
    add("--python", default=sys.executable, help="interpreter with PyTorch")
    add("--budget-s", type=float, default=BUDGET_S, help="seconds after which no step begins")
    add("--steady-s", type=float, default=20.0, help="seconds of steady load")
    add("--after-s", type=float, default=10.0, help="seconds of load after the hand-over")
    add("--rate-factor", type=float, default=1.0, help="how much of the rates is asked for")
    add("--profile-s", type=float, default=45.0, help="seconds to measure each service, without --profiles")
    add("--agent-option", action="append", default=[], help="handed to the agent, such as --mps-protocol=2")
    add("--keep", action="append", default=[], help="variables that workers get from here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
