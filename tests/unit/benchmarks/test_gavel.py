"""The benchmark of Gavel's form: what it draws and reads, and that its forms agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import gavel


def test_the_form_by_class_reaches_what_the_form_by_job_reaches() -> None:
    by_form = {line.form: line for line in gavel.lines(gavel.drawn(7), 32, 7)}
    packed = by_form["packed, by class"]
    assert packed.least == pytest.approx(by_form["packed, by job"].least, rel=1e-5)
    assert by_form["max-min alone"].least < packed.least
    assert by_form["packed, POP-8"].least < packed.least
    assert packed.violation < 1e-6


def test_a_table_is_read_whatever_its_columns_are_called(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "worker,job_a,job_b,steps_per_s_a,steps_per_s_b\n"
        "v100,b,,4,\nv100,a,,2,\nk80,a,,1,\nv100,b,a,3,1\nk80,b,a,0.5,0.25\n",
        encoding="utf-8",
    )
    kinds = gavel.read(path, {"gpu_type": "worker"})
    assert kinds.speed.tolist() == [[1.0, 2.0], [0.0, 4.0]]
    assert kinds.pairs.tolist() == [[0, 1]]
    assert kinds.pair_speed.tolist() == [[[0.25, 0.5], [1.0, 3.0]]]
    assert gavel.instance(kinds, 8, 0).count.sum() == 8
    with pytest.raises(ValueError, match="needs columns"):
        gavel.read(path, {})


def test_jobs_are_drawn_alike_from_the_same_seed() -> None:
    one, other = (gavel.instance(gavel.drawn(3), 64, 3) for _ in range(2))
    assert np.array_equal(one.count, other.count)
    assert one.devices.tolist() == [16.0] * 3
