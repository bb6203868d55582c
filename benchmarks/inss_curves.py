"""The curves of several trainings of InSS' actor in one file, and as the table of docs/lab/learning.md.

Owns what of an artefact's record is kept beside the one that is shipped: reward, part late or lost, throughput, by
setting and seed. `python -m benchmarks.inss_curves ARTEFACT… --out lab/learning/curves.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.inss.worlds import BY_EPISODE, LAST, reached
from solvers.policies.inss.actor import Artefact, read

DECIMALS = {"reward": 2, "violated": 5, "throughput_rps": 0}
EVERY = 100
Curves = dict[str, dict[str, dict[str, list[float]]]]


def curves_of(artefacts: list[Artefact]) -> Curves:
    """By setting, seed and column."""
    found: Curves = {}
    for artefact in artefacts:
        record = artefact.record
        columns = {name: [round(each, digits) for each in record["curve"][name]] for name, digits in DECIMALS.items()}
        found.setdefault(record["setting"], {})[str(record["seed"])] = columns
    return found


def table(curves: Curves) -> str:
    """Mean rewards (and the part late or lost, in percent) over every hundred episodes, a column a training."""
    runs = [(setting, seed, each) for setting, seeds in sorted(curves.items()) for seed, each in sorted(seeds.items())]
    longest = max(len(each["reward"]) for _, _, each in runs)
    rows = ["| episodes | " + " | ".join(f"`{setting}`, seed {seed}" for setting, seed, _ in runs) + " |"]
    rows.append("|" + "---|" * (len(runs) + 1))
    for first in range(0, longest, EVERY):
        cells = [_cell(each, first) for _, _, each in runs]
        rows.append(f"| {first + 1}–{first + EVERY} | " + " | ".join(cells) + " |")
    ends = [reached(each["reward"])[2] if len(each["reward"]) >= BY_EPISODE + LAST else "–" for _, _, each in runs]
    rows.append("| 95 % of the end from | " + " | ".join(map(str, ends)) + " |")
    return "\n".join(rows)


def _cell(columns: dict[str, list[float]], first: int) -> str:
    reward, violated = (columns[name][first : first + EVERY] for name in ("reward", "violated"))
    return f"{np.mean(reward):.2f} ({100 * np.mean(violated):.2f} %)" if reward else "–"


def main() -> int:
    """Write the file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artefacts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given: Any = parser.parse_args()
    curves = curves_of([read(path.read_text(encoding="utf-8")) for path in given.artefacts])
    given.out.write_text(json.dumps(curves, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    print(table(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
