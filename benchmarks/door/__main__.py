"""Every published figure of the planner, through `headroom plan --snapshot`: `python -m benchmarks.door [group …]`.

Groups: family, changed, busy, peers, large, demo (with `--pictures FOLDER` of exported snapshots), small. `--only TEXT`
takes the cases whose names hold it, `--quick` the first two sizes and one seed. Each case is one child process;
`--again N` runs it N times and keeps the least processor time. Writes the table to standard output and all rows to
benchmarks/results/door.json (`--json FILE`), where rows of other groups and cases stay as they were.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.door import cases
from benchmarks.door.cases import Case, after_change, after_cycle, after_haste
from benchmarks.door.command import Asked, Ran, ask
from benchmarks.door.remembered import cycle
from benchmarks.instances.__main__ import write
from benchmarks.sources.rows import SourceMissingError
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot

RESULTS = Path(__file__).resolve().parents[1] / "results" / "door.json"
GROUPS = {
    "family": cases.family,
    "middle": cases.middle,
    "changed": cases.changed,
    "hasty": cases.hasty,
    "dear": cases.dear,
    "busy": cases.busy,
    "peers": cases.peers,
}
HEAVY = {"large": cases.large}
SEEDS = (1, 2, 3, 4)
DAY_DIGITS = 10
MEMORY = "memory.json"
COLUMNS = (
    "case", "deadline s", "wall s", "of it starting, reading, planning, telling", "CPU s", "MiB", "cost $/h", "bound",
    "gap", "who planned", "ended", "verified", "short", "note",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case and what came of it."""

    group: str
    case: str
    deadline_s: float
    work_units: int | None
    ran: Ran
    peer: str
    note: str

    def plain(self) -> dict[str, Any]:
        """For the file."""
        fields = {name: item for name, item in asdict(self).items() if name != "ran"}
        return fields | {name: _short(item) for name, item in asdict(self.ran).items()}

    def line(self) -> str:
        """One row of the table."""
        ran = self.ran
        limit = f"{self.deadline_s:g}" if self.work_units is None else f"{self.work_units:,} units"
        who = f"{ran.planner}{'' if ran.won in (None, ran.planner) else f' ({ran.won})'}"
        bound = "none" if ran.bound_usd_per_h is None else f"{ran.bound_usd_per_h:,.3f}"
        gap = "–" if ran.gap_pct is None else f"{ran.gap_pct:.2f} %"
        sound = "yes" if ran.verified else "no"
        cost = "–" if ran.usd_per_h is None else f"{ran.usd_per_h:,.3f}"
        began_s = ran.wall_s - ran.read_s - ran.planned_s - ran.told_s
        parts = ", ".join(f"{item:.1f}" for item in (began_s, ran.read_s, ran.planned_s, ran.told_s))
        said = "; ".join(part for part in (self.note, self.peer and f"peer: {self.peer}") if part)
        return (
            f"| {self.case} | {limit} | {ran.wall_s:.1f} | {parts} | {ran.cpu_s:.1f} | {ran.peak_mib:.0f} | {cost} | "
            f"{bound} | {gap} | {who} | {ran.ended} | {sound} | {ran.workloads_short} | {said} |"
        )


def main() -> int:
    """Run, print, write."""
    asked = _parser().parse_args()
    rows: list[Row] = []
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for case in _wanted(asked):
                row = _measured(case, Path(folder), asked.again)
                print(row.line(), flush=True)
                rows.append(row)
                _keep(row, asked.json)
    except SourceMissingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if all(row.ran.verified for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group", help=", ".join((*GROUPS, *HEAVY, "demo")))
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="small sizes, one seed")
    parser.add_argument("--again", type=int, default=1, help="so many times each; the least processor time counts")
    parser.add_argument("--pictures", type=Path, help="a folder of exported snapshots, for the group demo")
    parser.add_argument("--json", type=Path, default=RESULTS)
    return parser


def _wanted(asked: argparse.Namespace) -> Iterator[Case]:
    makers = dict(GROUPS | HEAVY)
    if asked.pictures is not None:
        makers["demo"] = partial(cases.demo, asked.pictures)
    groups = asked.groups or [*GROUPS, *(["demo"] if asked.pictures else [])]
    unknown = sorted(set(groups) - set(makers))
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(makers)}")
    seeds = tuple(asked.seeds[:1] if asked.quick else asked.seeds)
    for group in groups:
        for case in makers[group](seeds):
            seconds = case.deadline_s if case.units is None else case.units / cases.UNITS_PER_S
            small = not asked.quick or seconds <= cases.FAMILY[1][2]
            if asked.only in case.name and small:
                yield case


def _measured(case: Case, folder: Path, again: int) -> Row:
    if case.remembered:
        return _row(case, cycle(case)[0], "in process, with memory")
    snapshot, memory = case.picture(), folder / MEMORY
    memory.unlink(missing_ok=True)
    first = f"planned {case.deadline_s:g} s before the change" if case.changed else ""
    if case.changed:
        _, plan = _ran(replace(case, busy=0), snapshot, folder)
        if plan is None:
            raise SystemExit(f"{case.name}: there is no first plan")
        snapshot = after_change(snapshot, plan)
    elif case.cycles or case.hasty_s is not None:
        stood, snapshot = _followed(case, snapshot, folder)
        first = f"stood at {', '.join(f'{usd:.2f}' for usd in stood)}"
    kept, runs = memory.read_bytes() if case.memory else b"", []
    for _ in range(again):
        memory.write_bytes(kept)
        runs.append(_ran(case, snapshot, folder))
    ran, plan = min(runs, key=lambda pair: pair[0].cpu_s)
    moves = f"{ran.starts} starts, {ran.stops} stops, {first}" if first else ""
    note = "" if plan is None else case.note(snapshot, plan)
    return _row(case, ran, note or moves or f"{ran.gpus} GPUs")


def _followed(case: Case, snapshot: Snapshot, folder: Path) -> tuple[list[float], Snapshot]:
    """What stood before each cycle, $/h, and the picture of the last one."""
    hasty = None if case.hasty_s is None else replace(case, deadline_s=case.hasty_s, busy=cases.BUSY, memory=False)
    _, plan = _ran(hasty or replace(case, planner="greedy"), snapshot, folder)
    if plan is None:
        raise SystemExit(f"{case.name}: there is no first plan")
    stood, snapshot = [plan.objective.cost_usd_per_h], after_haste(snapshot, plan)
    for _ in range(case.cycles - 1):
        _, plan = _ran(case, snapshot, folder)
        snapshot, made = after_cycle(snapshot, plan)
        stood.append(plan.objective.cost_usd_per_h if plan is not None and made else stood[-1])
    return stood, snapshot


def _row(case: Case, ran: Ran, note: str) -> Row:
    return Row(
        group=case.group,
        case=case.name,
        deadline_s=case.deadline_s,
        work_units=case.units,
        ran=ran,
        peer=case.peer,
        note=f"{ran.starts} starts, {ran.stops} stops, {note}" if case.remembered else note,
    )


def _ran(case: Case, snapshot: Snapshot, folder: Path) -> tuple[Ran, Plan | None]:
    picture = folder / "picture.json"
    write(snapshot, picture)
    asked = Asked(
        snapshot=picture,
        deadline_s=case.deadline_s,
        seed=case.seed,
        work_units=case.units,
        planner=case.planner,
        busy=case.busy,
        memory=folder / MEMORY if case.memory else None,
    )
    return ask(asked, folder / "plan.json")


def _keep(row: Row, path: Path) -> None:
    """Beside the rows of other cases; at once, for what follows may take long."""
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    made = row.plain() | {
        "day": datetime.now(UTC).isoformat()[:DAY_DIGITS],
        "load_average": round(os.getloadavg()[1], 1),
        "cores": os.cpu_count(),
    }
    every = [item for item in kept if (item["group"], item["case"]) != (row.group, row.case)] + [made]
    content = {"machine": platform.machine(), "rows": sorted(every, key=lambda item: (item["group"], item["case"]))}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _short(item: object) -> object:
    return round(item, 4) if isinstance(item, float) else item


if __name__ == "__main__":
    sys.exit(main())
