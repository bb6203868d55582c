"""Our own recordings of an H100 as a data set of predictors."""

from pathlib import Path

import numpy as np

from benchmarks.predictors.datasets import DATASETS, groupings
from benchmarks.sources import headroom_h100

NOWHERE = Path("nowhere")


def test_cells_of_both_ways_to_launch_are_models_of_their_own() -> None:
    found = headroom_h100.read(NOWHERE)
    assert len(found) == 84 + 3
    assert set(found.queries.models) == {"resnet50", "resnet50-pytorch", "mobilenet_v3_large", "bert-base"}
    assert np.all(found.latency_ms > 0.5)
    assert np.all(np.nan_to_num(found.power_w, nan=1.0) > 0.0)


def test_pairs_are_compared_with_the_cells_alone_that_were_measured_with_them() -> None:
    dataset = next(each for each in DATASETS if each.name == "headroom-h100")
    found = groupings(dataset, NOWHERE, 1000)
    assert found is not None
    assert len(found.slowdown) == 24
    assert np.all((found.slowdown > 1.14) & (found.slowdown < 1.36))
