"""Runs the benchmarks one after the other: `python -m benchmarks [name …]`, all of them by default."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("startup", "ingest", "overload", "doorbell", "agent_idle", "accounting", "predictors", "handover", "simulator")


def main() -> int:
    """Each in a process of its own, so that none sees another's memory."""
    wanted = sys.argv[1:] or list(NAMES)
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    worst = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
