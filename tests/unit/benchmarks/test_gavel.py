"""The benchmark of Gavel's form: what it reads, and that its forms agree."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gavel
from benchmarks.sources.rows import SourceMissingError

KINDS = 9
ROWS = """gpu_type,job_type_a,job_type_b,steps_per_s_a,steps_per_s_b
v100,b,,4,
v100,a,,2,
k80,a,,1,
v100_unconsolidated,a,,9,
v100,b,a,3,1
k80,b,a,0.5,0.25
"""


def drawn(seed: int) -> gavel.Kinds:
    """Two together go as fast as their loads leave them, less up to a fifth that they cost each other."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform([0.08, 0.35, 1.0], [0.35, 0.8, 1.0], (KINDS, 3))
    load = rng.uniform(0.25, 1.0, KINDS)
    pairs = np.array([(left, right) for left in range(KINDS) for right in range(left, KINDS)], dtype=np.int64)
    left_over = np.minimum(1.0, 1.0 / load[pairs].sum(axis=1))[:, None, None]
    part = left_over * rng.uniform(0.8, 1.0, (len(pairs), 3, 2))
    names = tuple(f"kind-{number}" for number in range(KINDS))
    return gavel.Kinds(names=names, speed=speed, pairs=pairs, pair_speed=speed[pairs].transpose(0, 2, 1) * part)


def test_the_form_by_class_reaches_what_the_form_by_job_reaches() -> None:
    count = np.array([0, 5, 2, 4, 4, 1, 6, 3, 7])
    by_form = {line.form: line for line in gavel.lines(drawn(7), count)}
    packed = by_form["packed, by class"]
    assert packed.least == pytest.approx(by_form["packed, by job"].least, rel=1e-5)
    assert by_form["max-min alone"].least < packed.least
    assert by_form["packed, POP-8"].least < packed.least
    assert packed.violation < 1e-6


def test_the_published_table_and_mixes_are_read(tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError):
        gavel.read(tmp_path)
    folder = tmp_path / gavel.FOLDER
    folder.mkdir()
    (folder / "throughputs.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    (folder / "job_mixes.csv").write_text("jobs,seed,job_type,count\n4,2,b,3\n4,2,a,1\n", encoding="utf-8")
    kinds = gavel.read(tmp_path)
    assert kinds.speed.tolist() == [[1.0, 0.0, 2.0], [0.0, 0.0, 4.0]]
    assert kinds.pairs.tolist() == [[0, 1]]
    assert kinds.pair_speed.tolist() == [[[0.25, 0.5], [0.0, 0.0], [1.0, 3.0]]]
    made = gavel.instance(kinds, gavel.mix(tmp_path, kinds, 4))
    assert made.count.tolist() == [1, 3]
    assert made.devices.tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="no mix of 8 jobs"):
        gavel.mix(tmp_path, kinds, 8)
