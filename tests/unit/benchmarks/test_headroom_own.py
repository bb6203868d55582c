"""Our own recordings of GPUs as data sets of predictors."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.predictors.datasets import DATASETS, Groupings, groupings
from benchmarks.sources import headroom_own
from benchmarks.sources.rows import H100, H200

NOWHERE = Path("nowhere")
NETWORKS = {"resnet50", "resnet50-pytorch", "mobilenet_v3_large", "bert-base"}


def grouped(name: str) -> Groupings:
    found = groupings(next(each for each in DATASETS if each.name == name), NOWHERE, 1000)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("gpu_type", "cells", "networks"), [(H100, 84 + 3, NETWORKS), (H200, 108 + 9, {*NETWORKS, "vgg19"})]
)
def test_cells_of_both_ways_to_launch_are_models_of_their_own(gpu_type: str, cells: int, networks: set[str]) -> None:
    found = headroom_own.read(gpu_type, NOWHERE)
    assert len(found) == cells
    assert found.queries.gpu_types == (gpu_type,)
    assert set(found.queries.models) == networks
    assert np.all(found.latency_ms > 0.4)
    assert np.all(np.nan_to_num(found.power_w, nan=1.0) > 0.0)


def test_pairs_are_compared_with_the_cells_alone_that_were_measured_with_them() -> None:
    found = grouped("headroom-h100")
    assert len(found.slowdown) == 24
    assert np.all((found.slowdown > 1.14) & (found.slowdown < 1.36))


def test_members_keep_their_own_batches_and_crowds_that_serve_are_groups_of_three() -> None:
    found = grouped("headroom-h200")
    sizes = np.bincount(found.samples.groups.group)
    batch = found.samples.groups.members.batch
    assert sorted(sizes.tolist()) == [2] * 38 + [3] * 3
    assert len(found.slowdown) == 85
    assert np.all((found.slowdown > 1.09) & (found.slowdown < 1.50))
    assert [batch[found.samples.groups.group == group].tolist() for group in (36, 37)] == [[16.0, 1.0]] * 2
    assert batch[found.samples.groups.group >= 38].tolist() == [16.0] * 3 + [4.0] * 3 + [1.0] * 3
