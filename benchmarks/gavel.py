"""Gavel's max-min fairness on its own inputs: `python -m benchmarks.gavel [--jobs 512 …]`.

Its table of throughputs and the mixes of jobs that its sweep draws are read from `gavel-throughputs` in HEADROOM_DATA;
none of their rows are here. The packed form is solved in classes of like jobs; beside it POP in 8 parts, and for fewer
jobs the form in which every job and every couple has variables of its own, which must come to the same. A cluster has
three GPUs for four jobs, as many of each of three types. Writes benchmarks/results/gavel.json where the usual is asked.

These are internals: the laboratory's function is called with arrays, no command in between.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.sources.rows import SourceMissingError, data_folder, table
from lab.gavel.planner import share, share_part
from lab.gavel.problem import Allocation, ThroughputTable, deal
from solvers.domain.arrays import Floats, Whole

T = TypeVar("T")
RESULTS = Path(__file__).resolve().parent / "results" / "gavel.json"
JOBS = (32, 64, 128, 256, 512)
PARTS = 8
UNGROUPED = (32, 64, 128, 256)
FOLDER = "gavel-throughputs"
TYPES = ("k80", "p100", "v100")
PUBLISHED = {
    32: (1.07632, 0.027),
    64: (1.08979, 0.12),
    128: (1.08999, 0.51),
    256: (1.10607, 3.03),
    512: (1.10783, 41.5),
}
"""What Gavel's code (c4fa400) with ECOS found on such a machine, packed, and its seconds."""


def violation(table: ThroughputTable, allocation: Allocation) -> float:
    """By how much the worst rule is broken: GPUs of a type, time of a class's jobs, nothing below nothing. In GPUs and
    in parts of a job's time.
    """
    width = table.gpus[table.pairs].max(axis=1, initial=0)
    held = (allocation.single * table.gpus[:, None]).sum(axis=0) + (allocation.paired * width[:, None]).sum(axis=0)
    time = allocation.single.sum(axis=1)
    np.add.at(time, table.pairs.ravel(), np.repeat(allocation.paired.sum(axis=1), 2))
    return float(
        max(
            (held - table.devices).max(initial=0.0),
            (time / table.count - 1.0).max(initial=0.0),
            -allocation.single.min(initial=0.0),
            -allocation.paired.min(initial=0.0),
        )
    )


def ungrouped(table: ThroughputTable) -> ThroughputTable:
    """Every job a class of its own, every couple of jobs a pair: what a solver faces that does not group."""
    number = np.repeat(np.arange(len(table.count)), table.count)
    start = np.concatenate([[0], np.cumsum(table.count)])
    pairs: list[Whole] = []
    speeds: list[Floats] = []
    for (left, right), speed in zip(table.pairs, table.pair_speed, strict=True):
        mine, other = (np.arange(start[end], start[end + 1]) for end in (left, right))
        couples = np.array(np.meshgrid(mine, other, indexing="ij")).reshape(2, -1).T
        couples = couples[couples[:, 0] < couples[:, 1]] if left == right else couples
        pairs.append(couples)
        speeds.append(np.broadcast_to(speed, (len(couples), *speed.shape)))
    return replace(
        table,
        speed=table.speed[number],
        gpus=table.gpus[number],
        count=np.ones(len(number), dtype=np.int64),
        weight=table.weight[number],
        pairs=np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs]),
        pair_speed=np.concatenate([np.zeros((0, len(table.devices), 2)), *speeds]),
    )


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What is known of kinds of jobs on GPU types: alone, and of every couple that was seen together."""

    names: tuple[str, ...]
    speed: Floats
    pairs: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    pair_speed: Floats


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer."""

    form: str
    jobs: int
    least: float
    bound: float
    cpu_s: float
    violation: float


def read(data: Path) -> Kinds:
    """The table of measured throughputs. Raises SourceMissingError."""
    path = data / FOLDER / "throughputs.csv.gz"
    if not path.exists():
        raise SourceMissingError(f"{path} is missing: set HEADROOM_DATA to the folder that holds {FOLDER}/")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu_type"] in TYPES]
    names = sorted({row["job_type_a"] for row in rows if not row["job_type_b"]})
    at = {name: number for number, name in enumerate(names)}
    speed = np.zeros((len(names), len(TYPES)))
    couples: dict[tuple[int, int], Floats] = {}
    for row in rows:
        on = TYPES.index(row["gpu_type"])
        if not row["job_type_b"]:
            speed[at[row["job_type_a"]], on] = float(row["steps_per_s_a"])
        elif row["job_type_a"] in at and row["job_type_b"] in at:
            _enter(couples, (at[row["job_type_a"]], at[row["job_type_b"]]), on, row)
    pairs = np.array(sorted(couples), dtype=np.int64).reshape(-1, 2)
    speeds = np.array([couples[left, right] for left, right in sorted(couples)])
    return Kinds(names=tuple(names), speed=speed, pairs=pairs, pair_speed=speeds.reshape(len(pairs), len(TYPES), 2))


def mix(data: Path, kinds: Kinds, jobs: int) -> Whole:
    """How many jobs of each kind the published sweep draws. Raises ValueError where it has no mix of so many."""
    rows = [row for row in table(data, FOLDER, "job_mixes.csv") if int(row["jobs"]) == jobs]
    count = np.zeros(len(kinds.names), dtype=np.int64)
    for row in rows:
        count[kinds.names.index(row["job_type"])] += int(row["count"])
    if count.sum() != jobs:
        raise ValueError(f"there is no mix of {jobs} jobs")
    return count


def _enter(couples: dict[tuple[int, int], Floats], couple: tuple[int, int], on: int, row: Mapping[str, str]) -> None:
    left, right = couple
    speeds = (float(row["steps_per_s_a"]), float(row["steps_per_s_b"]))
    if left > right:
        left, right, speeds = right, left, speeds[::-1]
    couples.setdefault((left, right), np.zeros((len(TYPES), 2)))[on] = speeds


def instance(kinds: Kinds, count: Whole) -> ThroughputTable:
    """So many jobs of each kind, and three GPUs for four of them."""
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
        devices=np.full(types, float(int(count.sum()) // 4)),
        pairs=place[kinds.pairs[able]],
        pair_speed=speeds[able],
    )


def lines(kinds: Kinds, count: Whole) -> Iterator[Line]:
    """All forms of one mix of jobs."""
    table_of, jobs = instance(kinds, count), int(count.sum())
    for form, asked in (("max-min alone", table_of.alone()), ("packed, by class", table_of)):
        shared, cpu_s = timed(partial(share, asked))
        yield _line(form, jobs, (shared.least, shared.bound), (cpu_s, violation(asked, shared.allocation)))
    labels = np.repeat(np.arange(len(table_of.count)), table_of.count)
    dealt = deal(jobs, PARTS, np.random.default_rng(jobs))
    parts, cpu_s = timed(lambda: [share_part(table_of, labels[members], PARTS) for members in dealt])
    least = min(part.least for part in parts)
    yield _line(f"packed, POP-{PARTS}", jobs, (least, min(part.bound for part in parts)), (cpu_s, 0.0))
    if jobs in UNGROUPED:
        single = ungrouped(table_of)
        shared, cpu_s = timed(partial(share, single, steps=1e9))
        broken = violation(single, shared.allocation)
        yield _line("packed, by job", jobs, (shared.least, shared.bound), (cpu_s, broken))


def _line(form: str, jobs: int, worth: tuple[float, float], run: tuple[float, float]) -> Line:
    return Line(
        form=form,
        jobs=jobs,
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
    parser.add_argument("--jobs", type=int, nargs="+", default=JOBS)
    asked = parser.parse_args()
    data, found = data_folder(), []
    try:
        kinds = read(data)
        for jobs in asked.jobs:
            for line in lines(kinds, mix(data, kinds, jobs)):
                found.append(line)
                peer = PUBLISHED.get(line.jobs) if line.form.startswith("packed, by") else None
                theirs = "" if peer is None else f" (Gavel: {peer[0]:.5f} in {peer[1]:g} s)"
                print(
                    f"{line.form:18} {line.jobs:5} jobs: least {line.least:.5f}, at most {line.bound:.5f}, "
                    f"{line.cpu_s:.3f} s{theirs}"
                )
    except (SourceMissingError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if tuple(asked.jobs) == JOBS:
        RESULTS.write_text(json.dumps([asdict(line) for line in found], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
