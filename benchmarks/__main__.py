"""Runs the benchmarks one after the other: `python -m benchmarks [name …]`, all of them by default."""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = ("startup", "ingest", "overload", "doorbell", "agent_idle", "accounting", "predictors", "handover", "simulator")


def main() -> int:
    """Each in a process of its own, so that none sees another's memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all")
    wanted = parser.parse_args().names or list(NAMES)
    if unknown := sorted(set(wanted) - set(NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    worst = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
