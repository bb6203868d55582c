"""`python -m tests.gpu`: run every step on a real GPU, print what was found, write recording and findings.

Owns the order, the budget and the verdict: 0 when nothing failed, 1 when something did, 2 when there is no such device.
Steps that cost least and tell most come first; what the budget does not reach is said.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.devices.nvml import NvmlBoards, NvmlSetters, open_boards
from agents.errors import AgentError
from tests.gpu import beside, boards, handover, models, sharing, surface
from tests.gpu.recorded import RecordingBoards
from tests.gpu.rig import POINT_S, NotHereError, Rig, chosen

STEPS: dict[str, Callable[[Rig], None]] = {
    "inventory": boards.inventory,
    "clocks": boards.clocks,
    "power": boards.power,
    "energy": boards.energy,
    "shares": sharing.shares,
    "memory": sharing.memory,
    "handover": handover.handover,
    "bypass": sharing.bypass,
    "surface": surface.surface,
    "beside": beside.beside,
    "grid": models.grid,
}
BUDGET_S = 460.0
LOG_LINES = 12
LEAST_S = 15.0
"""A step is not begun with less than this."""


def main(arguments: Sequence[str]) -> int:
    """Run."""
    found = _parser().parse_args(arguments)
    found.out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="hr-gpu-", dir="/tmp"))
    # Whoever ends it early still gets what was found, and no worker stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        opened = open_boards(found.devices)
        with (found.out / "boards.jsonl").open("w", buffering=1, encoding="utf-8") as file:
            return _run(found, scratch, opened, RecordingBoards(opened, file))
    except (AgentError, NotHereError) as error:
        print(f"python -m tests.gpu: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(found: argparse.Namespace, scratch: Path, opened: NvmlBoards, recording: RecordingBoards) -> int:
    out: Path = found.out
    rig = Rig(
        boards=recording,
        setters=NvmlSetters(opened),
        device=chosen(opened, found.device),
        scratch=scratch,
        python=found.python,
        budget_s=found.budget_s,
        point_s=found.point_s,
        networks=tuple(found.network),
        agent_options=tuple(found.agent_option),
        environment={name: os.environ[name] for name in found.keep if name in os.environ},
    )
    try:
        for name in found.only or STEPS:
            _step(rig, name)
    finally:
        rig.write(out)
        recording.close()
    failed = [finding for finding in rig.findings if finding.fine is False]
    took_s = time.monotonic() - rig.began_s
    print(f"{len(rig.findings)} findings, {len(failed)} failed, {took_s:.0f} s; written to {out}")
    return 1 if failed else 0


def _step(rig: Rig, name: str) -> None:
    rig.step = name
    if rig.left_s() < LEAST_S:
        rig.note("not reached", value="the budget is spent")
        return
    try:
        STEPS[name](rig)
    except NotHereError as error:
        rig.note("not here", str(error))
    except Exception as error:  # noqa: BLE001 - one broken step must not cost the others
        traceback.print_exc()
        _show_logs(rig.scratch)
        rig.check("the step runs to its end", fine=False, value=f"{type(error).__name__}: {error}")


def _show_logs(scratch: Path) -> None:
    """What daemons and workers said last."""
    for log in sorted(scratch.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        print(f"--- {log.relative_to(scratch)}", *lines, sep="\n", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Measures a real GPU; needs root to set.")
    add = parser.add_argument
    add("--devices", default="nvml:all", help="as the agent's option; the first device is measured")
    add("--device", help="UUID of the one to measure")
    add("--out", type=Path, default=Path("build/gpu"), help="where recording and findings go")
    add("--python", default=sys.executable, help="interpreter with PyTorch")
    add("--budget-s", type=float, default=BUDGET_S, help="seconds after which no step begins")
    add("--point-s", type=float, default=POINT_S, help="seconds that a point of a table is measured")
    add("--network", action="append", default=[], help="of `surface`; may be given several times, default: all")
    add("--only", action="append", choices=tuple(STEPS), help="only this step; may be given several times")
    add("--agent-option", action="append", default=[], help="handed to the agent, such as --mps-protocol=2")
    add("--keep", action="append", default=["LD_LIBRARY_PATH"], help="variables that workers get from here")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
