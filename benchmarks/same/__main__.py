"""Compare what the program does with what it did when it was frozen: `make same`, or

    python -m benchmarks.same [--quick | --all] [--only KIND …] [--write]

Prints one line for every subject that differs, with its numbers then and now, and ends with status 1. `--write` keeps
what is found instead; the difference is then for a person to review. Each kind runs in a process of its own, so a kind
that cannot even be imported hides no other.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import process_time

from benchmarks.same.frozen import FAILED, Case, Look, differences, line_of, read, write

KINDS = {
    "doors": "benchmarks.same.doors",
    "golden": "benchmarks.same.golden",
    "cycles": "benchmarks.same.cycles",
    "plans": "benchmarks.same.plans",
    "arena": "benchmarks.same.arena",
    "week": "benchmarks.same.week",
}
"""Where each kind's `cases()` lives."""
FOLDER = Path(__file__).resolve().parents[2] / "tests" / "same"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class BrokenError(Exception):
    """A kind could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look at: a kind, quickly or wholly."""

    kind: str
    everything: bool

    @property
    def file(self) -> Path:
        """Where it is frozen."""
        return FOLDER / f"{self.kind}.json"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="the cheap subjects, about a minute and a half (default)")
    extent.add_argument("--all", action="store_true", help="the dear ones too, several minutes")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--write", action="store_true", help="keep what is found")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    wanted = [Wanted(kind=kind, everything=asked.all) for kind in asked.only or KINDS]
    if asked.here is not None:
        asked.here.write_text(json.dumps(look_here(wanted[0])), encoding="utf-8")
        return 0
    told, subjects = [], 0
    for each in wanted:
        try:
            look = looked(each)
        except BrokenError as error:
            told.append(f"{each.kind}: {error}")
            continue
        if asked.write:
            write(each.file, look)
        told += [f"{each.kind}: {line}" for line in differences(read(each.file), look)]
        subjects += sum(map(len, look.parts().values()))
    if told:
        print("\n".join(told))
        return 1
    print(f"same: {subjects} subjects")
    return 0


def looked(wanted: Wanted) -> Look:
    """Look at one kind in a process of its own. Raises BrokenError."""
    began_s = _children_s()
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "look.json"
        command = [sys.executable, "-m", "benchmarks.same", "--only", wanted.kind, "--here", str(answer)]
        command += ["--all"] if wanted.everything else []
        # What a solver prints belongs to nobody's lines.
        done = subprocess.run(command, check=False, env=os.environ | ONE_THREAD, stdout=sys.stderr)
        if done.returncode or not answer.exists():
            raise BrokenError(f"could not be looked at, status {done.returncode}")
        plain = json.loads(answer.read_text(encoding="utf-8"))
    look = Look(quick=plain["quick"], dear=plain["dear"], missing=tuple(plain["missing"]))
    told = f"{wanted.kind}: {sum(map(len, look.parts().values()))} subjects, {_children_s() - began_s:.1f} CPU seconds"
    told += f"; {len(look.missing)} need data that is not here" if look.missing else ""
    print(told, file=sys.stderr, flush=True)
    return look


def look_here(wanted: Wanted) -> dict[str, object]:
    """Look at one kind in this process; plain data of a look."""
    quick: dict[str, object] = {}
    dear: dict[str, object] = {}
    missing = []
    cases: Iterator[Case] = import_module(KINDS[wanted.kind]).cases()
    for case in cases:
        if case.dear and not wanted.everything:
            continue
        if case.data is not None and not case.data.is_dir():
            missing.append(case.key)
            continue
        began_s = process_time()
        (dear if case.dear else quick)[case.key] = _line(case)
        print(f"  {process_time() - began_s:7.2f} s  {case.key}", file=sys.stderr, flush=True)
    return {"quick": quick, "dear": dear if wanted.everything else None, "missing": missing}


def _line(case: Case) -> dict[str, object]:
    try:
        return line_of(case, case.take())
    except Exception as error:  # noqa: BLE001 - one subject's failure is its line, and the others are told
        traceback.print_exc()
        return {FAILED: f"{type(error).__name__}: {error}"[:200]}


def _children_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


if __name__ == "__main__":
    sys.exit(main())
