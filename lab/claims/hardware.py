"""Claims that a real GPU has to speak for, judged by what real ones said: `tests/recordings` of the repository.

Owns what counts as reached there: on every board. Without the recordings, as in an installed distribution, they are
told as not run.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from lab.claims.claim import ClaimEvidence, ClaimStatus, Effort, Judge, figure

RECORDINGS = Path(__file__).parents[2] / "tests" / "recordings"
"""A folder for each board."""
TRAINING = "train:"
BOUND_PCT = 20.0
Row = Mapping[str, str]


def recorded(judge: Callable[[Path], ClaimEvidence], steps: str) -> Judge:
    """A judge of recordings; `steps` of `make test-gpu` make them."""

    def judged(_effort: Effort) -> ClaimEvidence:
        told = {folder.name: judge(folder) for folder in sorted(RECORDINGS.glob("*/"))}
        if not told:
            note = f"there is nothing in {RECORDINGS}; `make test-gpu`, steps {steps}, makes such recordings"
            return figure("not run", reached=False, note=note)
        measured = "; ".join(f"{board}: {each.measured}" for board, each in told.items())
        reached = all(each.status is ClaimStatus.PASS for each in told.values())
        return figure(
            measured, reached=reached, note="; ".join(f"{board}: {each.note}" for board, each in told.items())
        )

    return judged


def _rows(folder: Path, name: str) -> list[Row]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def slowdowns(folder: Path) -> list[tuple[Row, float]]:
    """Inference beside inference: the row, and its time against that alone at the same share and batch."""
    rows = [row for row in _rows(folder, "beside.csv") if not row["network"].startswith(TRAINING)]
    alone = {_cell(row): float(row["latency_ms_mean"]) for row in rows if not row["beside"]}
    return [
        (row, float(row["latency_ms_mean"]) / alone[_cell(row)])
        for row in rows
        if row["beside"] and not row["beside"].startswith(TRAINING)
    ]


def _cell(row: Row) -> tuple[str, str, str]:
    return row["network"], row["share_pct"], row["batch"]


def identical_slower(folder: Path) -> ClaimEvidence:
    """Of each network and share: beside itself against the mean beside others; by more than chance makes of so few."""
    found = slowdowns(folder)
    apart = []
    for row, slower in found:
        if row["beside"] == row["network"]:
            others = [each for other, each in found if _cell(other) == _cell(row) and other["beside"] != row["network"]]
            apart.append(100.0 * (slower - statistics.fmean(others)))
    mean, error = statistics.fmean(apart), statistics.stdev(apart) / math.sqrt(len(apart))
    told = f"beside itself {mean:+.1f} ± {error:.1f} points of its time alone, against beside others"
    return figure(told, reached=mean > 2.0 * error, note=f"{len(apart)} cases")


def at_most_a_fifth(folder: Path) -> ClaimEvidence:
    """Disjoint shares, inference beside inference. Whether it is predicted is asked only where this holds."""
    costs = sorted(100.0 * (slower - 1.0) for _, slower in slowdowns(folder))
    told = f"{costs[0]:.0f} to {costs[-1]:.0f} %, {statistics.median(costs):.0f} in the middle"
    return figure(told, reached=costs[-1] <= BOUND_PCT, note=f"{len(costs)} cases, graphs")


def hand_over_loses_none(folder: Path) -> ClaimEvidence:
    """A share changed under open-loop load, and times by share."""
    found = json.loads((folder / "whole.json").read_text(encoding="utf-8"))["findings"]
    since = [each for each in found if each["name"].endswith("since the change: no request failed")]
    failed = sum(float(each["value"]) for each in since)
    answered = sum(int(each["note"].removeprefix("of ")) for each in since)
    times = [
        float(row["latency_ms_mean"])
        for row in _rows(folder, "surface.csv")
        if row["captured"] == "1" and (row["network"], row["batch"]) == ("resnet50", "16")
    ]
    falls = all(after < before for before, after in itertools.pairwise(times))
    told = f"{failed:.0f} of {answered:,} requests failed; {times[0]:.1f} ms at 10 % of the SMs, {times[-1]:.1f} at all"
    reached = bool(since) and failed == 0 and falls
    return figure(told, reached=reached, note="three services, one share changed")
