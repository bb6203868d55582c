"""Our own recordings of GPUs as data sets of predictors."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.predictors.datasets import DATASETS, Groupings, groupings
from benchmarks.sources import headroom_own
from benchmarks.sources.rows import H100, H200
from lab.measured import facts_for
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.models.believed import interference_of
from solvers.models.suite import Suite

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


def test_plans_taught_pairs_at_one_batch_make_little_of_the_others() -> None:
    """Neighbours add 0.17 at batches of 16 and 0.21 at 1: plans once reckoned with three times as much."""
    whole = grouped("headroom-h200")
    members, group = whole.samples.groups.members, whole.samples.groups.group
    pairs = np.flatnonzero((np.bincount(group) == 2) & (np.bincount(group, weights=members.batch == 16.0) == 2))
    suite = Suite.fresh("headroom", facts_for(whole.solo.queries)).fit(whole.solo, whole.samples.take_groups(pairs))
    found = interference_of(suite, GpuTypeName(H200), [ModelName(name) for name in members.models], 1.0)
    names = [ModelName(members.models[model]) for model in members.model]
    pressures = np.array(
        [found[name].pressure_at(share) for name, share in zip(names, members.share_pct.tolist(), strict=True)]
    )
    added = np.array([found[name].sensitivity for name in names]) * whole.samples.groups.sum_of_others(pressures)
    two = np.bincount(group)[group] == 2
    assert np.mean(added[two]) < 0.46
    assert np.mean(whole.slowdown > 1.0 + added) < 0.05
