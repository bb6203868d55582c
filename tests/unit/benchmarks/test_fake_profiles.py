"""The committed profiles are what measuring gives, and every row is a valid profile point."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.fake_profiles import BATCHES, COLUMNS, GPU_TYPES, MODELS, SHARES_PCT_SM, as_csv, rows
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfileOrigin, ProfilePoint
from solvers.sim.truth.catalogue import GPUS

PROFILES = Path(__file__).parents[3] / "examples" / "profiles.csv"


@pytest.fixture(scope="module")
def measured() -> list[tuple[str, ...]]:
    """Everything measured once more."""
    return list(rows())


def test_measuring_again_gives_the_committed_file(measured: list[tuple[str, ...]]) -> None:
    assert PROFILES.read_text(encoding="utf-8") == as_csv(measured)


def test_every_row_is_a_profile_point() -> None:
    with PROFILES.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == len(MODELS) * len(GPU_TYPES) * len(BATCHES) * len(SHARES_PCT_SM)
    for row in found:
        assert tuple(row) == COLUMNS
        point = ProfilePoint(
            model=ModelName(row["model"]),
            gpu_type=GpuTypeName(row["gpu_type"]),
            batch=int(row["batch"]),
            share_pct_sm=int(row["share_pct_sm"]),
            clock_mhz_sm=int(row["clock_mhz_sm"]),
            latency_ms_mean=float(row["latency_ms_mean"]),
            latency_ms_p99=float(row["latency_ms_p99"]),
            memory_mib=float(row["memory_mib"]),
            power_w=float(row["power_w"]),
            origin=ProfileOrigin(row["origin"]),
            source=row["source"],
        )
        gpu = GPUS[row["gpu_type"]]
        assert point.clock_mhz_sm in gpu.clocks_mhz_sm
        assert point.power_w is not None
        assert 0.0 < point.power_w < gpu.tdp_w - gpu.idle_w
        assert point.memory_mib < gpu.memory_mib


def test_a_subset_gives_the_same_rows_as_the_whole(measured: list[tuple[str, ...]]) -> None:
    whole = {row[:4]: row for row in measured}
    part = list(rows(["bert-base"], ["l4"]))
    assert part
    assert all(whole[row[:4]] == row for row in part)
