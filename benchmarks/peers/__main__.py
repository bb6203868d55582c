"""Runs the peers' problems and says how far from the bound we end: `python -m benchmarks.peers [name ...]`.

Names: inferno, parvagpu, igniter, openb; all of them by default. `--scenarios 5,6`, perhaps with `--latency-file` and
`--rate-file`, runs other scenarios of ParvaGPU's form. Writes benchmarks/results/peers.json when all are run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.instances.parvagpu import Files
from benchmarks.peers import inferno
from benchmarks.peers.record import Record, table
from benchmarks.sources.rows import SourceMissingError, data_folder

NAMES = ("inferno", "parvagpu", "igniter", "openb")
SCENARIOS = (1, 2, 3, 4)
RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.json"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument("--scenarios", default="", help="ParvaGPU's, numbers with commas between")
    parser.add_argument("--latency-file", type=Path)
    parser.add_argument("--rate-file", type=Path)
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(NAMES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    found: list[Record] = []
    for name in asked.names or NAMES:
        try:
            found.extend(run(name, asked))
        except SourceMissingError as error:
            print(error, file=sys.stderr)
            return 2
    print(table(found))
    if not asked.names and not asked.scenarios:
        RESULTS.write_text(json.dumps([item.plain() for item in found], indent=1) + "\n", encoding="utf-8")
    return 0


def run(name: str, asked: argparse.Namespace) -> Iterator[Record]:
    """One peer's records."""
    data = data_folder()
    if name == "inferno":
        return inferno.records(data)
    # The planner and all it needs take a while to load.
    from benchmarks.peers import planned

    if name == "parvagpu":
        both = asked.latency_file and asked.rate_file
        files = Files(latency=asked.latency_file, rate=asked.rate_file) if both else None
        numbers = tuple(int(number) for number in asked.scenarios.split(",") if number)
        return planned.parvagpu_records(data, numbers or SCENARIOS, files)
    return planned.igniter_records(data) if name == "igniter" else planned.openb_records(data)


if __name__ == "__main__":
    sys.exit(main())
