"""What `headroom fit` and `headroom predict` make of measurements, as a user runs them: `python -m benchmarks.knowledge
repeats | size | pairs [SOURCE]`.

`repeats`: made measurements with known noise; how many next ones lie inside what is stated. `size`: processor time,
memory and file of pairs of 5, 10 and 20 made networks. `pairs`: every pair of a source left out in turn,
`igniter-v100` (HEADROOM_DATA) where none is named; R² on the slowdown over latency measured alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.predictors.datasets import DATASETS, Groupings, groupings
from benchmarks.predictors.measured import MeasuredSolo
from benchmarks.predictors.splits import pairs_out
from benchmarks.sources.rows import data_folder
from lab.claims.predictors import r_squared

SOLO = ("model", "gpu_type", "batch", "share_pct_sm", "latency_ms", "l2_util_pct", "dram_util_pct")
PAIRS = (
    "gpu_type", "model_a", "batch_a", "share_pct_a", "model_b", "batch_b", "share_pct_b", "latency_ms_a", "latency_ms_b"
)  # fmt: skip
HEADROOM = str(Path(sys.executable).with_name("headroom"))


def written(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def ran(*arguments: str) -> str:
    """What a command cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        (HEADROOM, *arguments), check=True, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{spent:.1f} CPU s, at most {after.ru_maxrss / 1024:.0f} MB"


def answers(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def repeats(folder: Path, _source: str) -> None:
    networks = {"a": (1.0, 0.3), "b": (2.0, 0.8), "c": (0.6, 1.5), "d": (3.0, 3.0)}
    cells = list(itertools.product(networks, (1, 2, 4, 8, 16), (20, 40, 60, 100)))
    between = list(itertools.product(networks, (3, 6, 12), (30, 50, 80)))
    asked = written(
        folder / "q.csv", SOLO[:4], ((name, "V100", batch, share) for name, batch, share in cells + between)
    )
    true_ms = np.array(
        [networks[name][0] + networks[name][1] * batch * 100 / share for name, batch, share in cells + between]
    )
    for noise, count in ((0.05, 10), (0.05, 2), (0.05, 1), (0.02, 10), (0.01, 10), (0.1, 3)):
        random = np.random.default_rng(1)
        told = written(folder / "s.csv", SOLO[:5], (
            (name, "V100", batch, share, time * np.exp(random.normal(0.0, noise)))
            for (name, batch, share), time in zip(cells, true_ms, strict=False) for _ in range(count)
        ))  # fmt: skip
        ran("fit", "--solo", told, "--out", str(folder / "m.json"), "--no-library")
        ran("predict", "--model", str(folder / "m.json"), "--queries", asked, "--out", str(folder / "a.csv"))
        found = np.array(
            [(float(row["latency_ms"]), float(row["latency_ms_std"])) for row in answers(folder / "a.csv")]
        )
        following = true_ms * np.exp(random.normal(0.0, noise, (200, len(true_ms))))
        inside = 100.0 * np.mean(np.abs(following - found[:, 0]) <= 1.96 * found[:, 1], axis=0)
        here, there = inside[: len(cells)].mean(), inside[len(cells) :].mean()
        print(
            f"noise {noise:.0%}, {count} a cell: {here:.1f} % of the next inside where measured, {there:.1f} % between"
        )


def size(folder: Path, _source: str) -> None:
    random = np.random.default_rng(5)
    shares, batches = (20, 40, 50, 60, 80), (2, 4, 8, 16, 32)
    for count in (5, 10, 20):
        names = [f"net{number}" for number in range(count)]
        host, work, press = (random.uniform(low, high, count) for low, high in ((0.4, 3.0), (0.05, 3.0), (0.1, 0.9)))
        solo, told = [], []
        for own, batch, share in itertools.product(range(count), (1, *batches), (*shares, 100)):
            time = (host[own] + work[own] * batch * 100 / share) * random.normal(1.0, 0.01)
            solo.append((names[own], "V100", batch, share, time, press[own] * share / 4, press[own] * share / 2))
        cells = itertools.product(itertools.combinations(range(count), 2), shares, batches, batches)
        for (a, b), share, *both in cells:
            sides = ((a, share, both[0], b), (b, 100 - share, both[1], a))
            alone = [host[own] + work[own] * batch * 100 / part for own, part, batch, _ in sides]
            slow = [1.03 + press[other] * (100 - part) / 1000 for _, part, _, other in sides]
            times = [
                time * (more + 0.15 * host[side[0]] / time) * random.normal(1.0, 0.01)
                for side, time, more in zip(sides, alone, slow, strict=True)
            ]
            told.append(("V100", names[a], both[0], share, names[b], both[1], 100 - share, *times))
        files = written(folder / "s.csv", SOLO, solo), written(folder / "p.csv", PAIRS, told)
        cost = ran("fit", "--solo", files[0], "--pairs", files[1], "--out", str(folder / "m.json"))
        print(f"{count} networks: {cost}, file {(folder / 'm.json').stat().st_size / 1e6:.1f} MB", flush=True)


def pairs(folder: Path, source: str) -> None:
    found = groupings(next(each for each in DATASETS if each.name == source), data_folder(), 10_000)
    assert found is not None
    found = _of_two(found)
    alone, names = found.solo, found.solo.queries.models
    columns = (alone.queries.batch, alone.queries.share_pct, alone.latency_ms, alone.l2_util_pct, alone.dram_util_pct)
    numbers = [["" if np.isnan(cell) else f"{cell:.9g}" for cell in column] for column in columns]
    rows = zip(alone.queries.model.tolist(), *numbers, strict=True)
    solo = written(folder / "s.csv", SOLO, ((names[model], _gpu_type(found), *rest) for model, *rest in rows))
    for options in ((), ("--no-library",)):
        inside, slower, told_slower = [], [], []
        for fold in pairs_out(found.samples.groups, 20):
            told, held = (_rows(found, wanted) for wanted in (fold.train, fold.test))
            given, asked = written(folder / "p.csv", PAIRS, told), written(folder / "q.csv", PAIRS, held)
            ran("fit", "--solo", solo, "--pairs", given, "--out", str(folder / "m.json"), *options)
            ran("predict", "--model", str(folder / "m.json"), "--queries", asked, "--out", str(folder / "a.csv"))
            answered = answers(folder / "a.csv")
            mean, std = (
                np.array([float(row[f"latency_ms_{side}{what}"]) for row in answered for side in "ab"])
                for what in ("", "_std")
            )
            _, rows_held = found.samples.groups.take_groups(fold.test)
            truth, beside = found.samples.latency_ms[rows_held], found.alone_ms[rows_held]
            inside.append(np.abs(truth - mean) <= 1.96 * std)
            slower.append(truth / beside)
            told_slower.append(mean / beside)
            told_of = f"{fold.subject}, {'without' if options else 'with'} the library"
            print(f"{told_of}: R² {r_squared(slower[-1], told_slower[-1]):.2f}, {100 * inside[-1].mean():.1f} % inside")
        together = r_squared(np.concatenate(slower), np.concatenate(told_slower))
        print(f"all: R² {together:.2f}, {100 * np.concatenate(inside).mean():.1f} % inside")


def _rows(found: Groupings, wanted: Iterable[int]) -> list[tuple[object, ...]]:
    kept = found.samples.take_groups(wanted)
    members = kept.groups.members
    sides = [
        (members.models[members.model[row]], int(members.batch[row]), members.share_pct[row])
        for row in range(len(members))
    ]
    times = kept.latency_ms.tolist()
    gpu_type = _gpu_type(found)
    return [(gpu_type, *sides[row], *sides[row + 1], *times[row : row + 2]) for row in range(0, len(sides), 2)]


def _of_two(found: Groupings) -> Groupings:
    members = np.bincount(found.samples.groups.group)
    kept = found.samples.take_groups(np.flatnonzero(members == 2).tolist())
    return Groupings(samples=kept, alone_ms=MeasuredSolo(found.solo).latency_ms(kept.groups.members), solo=found.solo)


def _gpu_type(found: Groupings) -> str:
    (only,) = found.solo.queries.gpu_types
    return only


if __name__ == "__main__":
    TOLD = {"repeats": repeats, "size": size, "pairs": pairs}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.knowledge", description=__doc__)
    parser.add_argument("asked", choices=TOLD)
    parser.add_argument("source", nargs="?", default="igniter-v100")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        TOLD[given.asked](Path(name), given.source)
