"""Gavel's max-min fairness by kind of job: `python -m benchmarks.gavel [--jobs 512] [--seeds 3] [--table FILE]`.

Solves the packed form of 512 jobs on 384 GPUs of three types (as many of each, three GPUs for four jobs), in classes;
beside it POP in 8 parts, and for fewer jobs the form in which every job and every couple has variables of its own,
which must come to the same. Gavel's own table of throughputs is not in this repository: without `--table`, kinds and
couples are drawn (`drawn`). A table is a CSV file with columns `gpu_type`, `job_a`, `job_b` (empty: alone),
`steps_per_s_a`, `steps_per_s_b`, and perhaps `scale_factor` (only rows of 1 count); `--columns gpu_type=worker` says
that a column has another name there. Its jobs are drawn evenly from its kinds. Writes benchmarks/results/gavel.json
where nothing else than the usual is asked.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from lab.gavel.planner import share, share_part
from lab.gavel.problem import ThroughputTable, deal, ungrouped, violation
from solvers.domain.arrays import Floats

T = TypeVar("T")
RESULTS = Path(__file__).resolve().parent / "results" / "gavel.json"
JOBS = 512
KINDS = 26
PARTS = 8
UNGROUPED = (32, 64, 128, 256)
SPEED = np.array([[0.08, 0.35], [0.35, 0.8], [1.0, 1.0]])
"""Range of each type's speed as a part of the fastest's: K80, P100, V100."""


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What is known of kinds of jobs on GPU types: alone, and of every couple that was seen together."""

    speed: Floats
    pairs: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    pair_speed: Floats


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer."""

    form: str
    jobs: int
    seed: int
    least: float
    bound: float
    cpu_s: float
    violation: float


def drawn(seed: int) -> Kinds:
    """Kinds of jobs with a load on the GPU between a quarter and all of it; two together go as fast as their loads
    leave them, less up to a fifth that they cost each other.
    """
    rng = np.random.default_rng(seed)
    speed = rng.uniform(SPEED[:, 0], SPEED[:, 1], (KINDS, len(SPEED)))
    load = rng.uniform(0.25, 1.0, KINDS)
    pairs = np.array([(left, right) for left in range(KINDS) for right in range(left, KINDS)], dtype=np.int64)
    left_over = np.minimum(1.0, 1.0 / load[pairs].sum(axis=1))[:, None, None]
    part = left_over * rng.uniform(0.8, 1.0, (len(pairs), len(SPEED), 2))
    return Kinds(speed=speed, pairs=pairs, pair_speed=speed[pairs].transpose(0, 2, 1) * part)


def read(path: Path, columns: Mapping[str, str]) -> Kinds:
    """A table of measured throughputs; `columns`: theirs by ours. Raises ValueError that names what is missing."""
    ours = {theirs: name for name, theirs in columns.items()}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{ours.get(name, name): said for name, said in row.items()} for row in csv.DictReader(file)]
    wanted = {"gpu_type", "job_a", "job_b", "steps_per_s_a", "steps_per_s_b"}
    if not rows or not wanted <= set(rows[0]):
        raise ValueError(f"{path} needs columns {', '.join(sorted(wanted))}")
    rows = [row for row in rows if row.get("scale_factor", "1") in ("1", "1.0", "")]
    types = sorted({row["gpu_type"] for row in rows})
    names = sorted({row["job_a"] for row in rows if not row["job_b"]})
    at, on = ({name: number for number, name in enumerate(known)} for known in (names, types))
    speed = np.zeros((len(names), len(types)))
    couples: dict[tuple[int, int], Floats] = {}
    for row in rows:
        if not row["job_b"]:
            speed[at[row["job_a"]], on[row["gpu_type"]]] = float(row["steps_per_s_a"])
        elif row["job_a"] in at and row["job_b"] in at:
            _enter(couples, (at[row["job_a"]], at[row["job_b"]], on[row["gpu_type"]], len(types)), row)
    pairs = np.array(sorted(couples), dtype=np.int64).reshape(-1, 2)
    speeds = [couples[left, right] for left, right in sorted(couples)]
    return Kinds(speed=speed, pairs=pairs, pair_speed=np.array(speeds).reshape(len(pairs), len(types), 2))


def _enter(couples: dict[tuple[int, int], Floats], place: tuple[int, int, int, int], row: Mapping[str, str]) -> None:
    left, right, gpu, types = place
    speeds = (float(row["steps_per_s_a"]), float(row["steps_per_s_b"]))
    if left > right:
        left, right, speeds = right, left, speeds[::-1]
    couples.setdefault((left, right), np.zeros((types, 2)))[gpu] = speeds


def instance(kinds: Kinds, jobs: int, seed: int) -> ThroughputTable:
    """So many jobs, every kind as likely, and three GPUs for four of them."""
    rng = np.random.default_rng(seed)
    count = np.bincount(rng.integers(len(kinds.speed), size=jobs), minlength=len(kinds.speed))
    present = np.flatnonzero(count)
    place = np.full(len(count), -1, dtype=np.int64)
    place[present] = np.arange(len(present))
    same = kinds.pairs[:, 0] == kinds.pairs[:, 1]
    able = (count[kinds.pairs] > 0).all(axis=1) & (~same | (count[kinds.pairs[:, 0]] >= 2))
    speeds = np.where(same[:, None, None], kinds.pair_speed.mean(axis=2, keepdims=True), kinds.pair_speed)
    types = kinds.speed.shape[1]
    return ThroughputTable(
        speed=kinds.speed[present],
        gpus=np.ones(len(present), dtype=np.int64),
        count=count[present].astype(np.int64),
        weight=np.ones(len(present)),
        devices=np.full(types, float(jobs // 4)),
        pairs=place[kinds.pairs[able]],
        pair_speed=speeds[able],
    )


def lines(kinds: Kinds, jobs: int, seed: int) -> Iterator[Line]:
    """All forms of one draw of jobs."""
    table = instance(kinds, jobs, seed)
    for form, asked in (("max-min alone", table.alone()), ("packed, by class", table)):
        shared, cpu_s = timed(partial(share, asked))
        yield _line(form, (jobs, seed), (shared.least, shared.bound), (cpu_s, violation(asked, shared.allocation)))
    labels = np.repeat(np.arange(len(table.count)), table.count)
    dealt = deal(jobs, PARTS, np.random.default_rng(seed))
    parts, cpu_s = timed(lambda: [share_part(table, labels[members], PARTS) for members in dealt])
    least = min(part.least for part in parts)
    yield _line(f"packed, POP-{PARTS}", (jobs, seed), (least, min(part.bound for part in parts)), (cpu_s, 0.0))
    if jobs in UNGROUPED:
        single = ungrouped(table)
        shared, cpu_s = timed(partial(share, single, steps=1e9))
        broken = violation(single, shared.allocation)
        yield _line("packed, by job", (jobs, seed), (shared.least, shared.bound), (cpu_s, broken))


def _line(form: str, case: tuple[int, int], worth: tuple[float, float], run: tuple[float, float]) -> Line:
    return Line(
        form=form,
        jobs=case[0],
        seed=case[1],
        least=round(worth[0], 6),
        bound=round(worth[1], 6),
        cpu_s=round(run[0], 4),
        violation=round(run[1], 9),
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The answer, and processor seconds: others may compute beside us."""
    begun = time.process_time()
    answer = work()
    return answer, time.process_time() - begun


def main() -> int:
    """Solve, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gavel", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--columns", default="", help="ours=theirs, with commas between")
    asked = parser.parse_args()
    try:
        columns = dict(pair.split("=", 1) for pair in asked.columns.split(",") if pair)
        known = None if asked.table is None else read(asked.table, columns)
    except (OSError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    found = []
    for seed in range(asked.seeds):
        kinds = drawn(seed) if known is None else known
        sizes = (*UNGROUPED, asked.jobs) if seed == 0 and asked.jobs == JOBS else (asked.jobs,)
        for jobs in sizes:
            for line in lines(kinds, jobs, seed):
                found.append(line)
                print(
                    f"{line.form:18} {line.jobs:5} jobs, seed {line.seed}: least {line.least:.5f}, at most "
                    f"{line.bound:.5f}, {line.cpu_s:.3f} s"
                )
    if known is None and asked.jobs == JOBS:
        RESULTS.write_text(json.dumps([asdict(line) for line in found], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
