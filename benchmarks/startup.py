"""From a fresh clone to the first applied plan: cold (clone, install, start) and warm (start again), as a newcomer
types it.

    python -m benchmarks.startup [--cold] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]


def timed(command: list[str], environment: dict[str, str], folder: Path) -> tuple[float, str]:
    """Seconds a command took and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def environment_of(home: Path) -> dict[str, str]:
    """An own home and port, so that nothing running is disturbed."""
    return {**os.environ, "HEADROOM_HOME": str(home), "HEADROOM_PORT": str(free_port())}


def warm(rounds: int) -> None:
    """`headroom up` on a home that has run before: it returns when the first plan is applied and read back."""
    headroom = str(Path(sys.executable).parent / "headroom")
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as folder:
        environment = environment_of(Path(folder))
        times = []
        for round_number in range(rounds + 1):
            elapsed_s, printed = timed([headroom, "up", "-v"], environment, ROOT)
            found = re.findall(r"^  (.+?) +([\d.]+) s$", printed, re.M)
            phases = ", ".join(f"{name.strip()} {seconds}" for name, seconds in found)
            print(f"{'first' if round_number == 0 else 'warm'} start: {elapsed_s:.1f} s ({phases})")
            if round_number:
                times.append(elapsed_s)
            down_s, _ = timed([headroom, "down"], environment, ROOT)
            print(f"  down: {down_s:.1f} s")
        print(f"warm start to first applied plan: median {statistics.median(times):.1f} s (goal at most 10 s)")


def cold() -> None:
    """Clone, then `make up`, with whatever package cache this machine has."""
    with tempfile.TemporaryDirectory(prefix="headroom-clone-") as folder:
        clone = Path(folder) / "headroom"
        cloned_s, _ = timed(["git", "clone", "-q", str(ROOT), str(clone)], dict(os.environ), Path(folder))
        environment = environment_of(Path(folder) / "home")
        up_s, _ = timed(["make", "up"], environment, clone)
        print(f"fresh clone: {cloned_s:.1f} s, `make up` with install to first applied plan: {up_s:.1f} s (goal 120 s)")
        timed(["make", "down"], environment, clone)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cold", action="store_true", help="also from a fresh clone, with install")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warm(arguments.rounds)
    if arguments.cold:
        cold()


if __name__ == "__main__":
    main()
