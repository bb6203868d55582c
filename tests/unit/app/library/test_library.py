"""The shipped coefficients: loadable, attributed, consistent with the catalogue, monotone where physics is."""

from __future__ import annotations

import numpy as np
import pytest

from app.library import facts, load_library
from solvers.models.belief import forms
from solvers.models.library import LibraryEntry, gpu_key, spelled

LIBRARY = load_library()
LICENCES = ("Apache-2.0", "MIT", "BSD")
UNLICENSED = ("igniter", "pctodl", "gpulet", "infless", "proteus", "lucid", "tally", "batchdvfs")


def test_it_speaks_the_shape_of_this_version() -> None:
    assert LIBRARY.shape_version == forms.SHAPE_VERSION
    assert LIBRARY.version.count("+") == 1
    assert len(LIBRARY.entries) >= 100
    assert len(LIBRARY.population_mean) == forms.COUNT
    assert np.all(np.linalg.eigvalsh(np.array(LIBRARY.population_covariance)) > 0)


def test_entries_are_in_order_and_once() -> None:
    keys = [(entry.model, entry.gpu_type) for entry in LIBRARY.entries]
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("entry", LIBRARY.entries, ids=lambda entry: f"{entry.model}@{entry.gpu_type}")
def test_every_entry_is_attributed_and_plausible(entry: LibraryEntry) -> None:
    assert entry.licence.startswith(LICENCES)
    assert not any(name in entry.source.lower() for name in UNLICENSED)
    assert entry.gpu_type in facts().gpu_types
    assert len(entry.parameters) == len(entry.spread) == forms.COUNT
    assert min(entry.spread) > 0
    assert entry.points >= 3
    assert entry.error_pct_mean < 20


@pytest.mark.parametrize("entry", LIBRARY.entries, ids=lambda entry: f"{entry.model}@{entry.gpu_type}")
def test_predictions_are_monotone(entry: LibraryEntry) -> None:
    batch, share, slowness = (
        axis.ravel() for axis in np.meshgrid([1, 2, 8, 64], np.linspace(0.05, 1, 20), [1.0, 1.5], indexing="ij")
    )
    latency = forms.log_latency(np.array(entry.parameters), batch, share, slowness).reshape(4, 20, 2)
    assert np.all(np.isfinite(latency))
    assert np.all(np.diff(latency, axis=0) >= -1e-9)
    assert np.all(np.diff(latency, axis=1) <= 1e-9)
    assert np.all(np.diff(latency, axis=2) >= -1e-9)


def test_the_networks_that_most_people_serve_are_known() -> None:
    resnet50 = LIBRARY.entry("ResNet-50", "Tesla V100")
    assert resnet50 is not None
    assert resnet50.points > 50
    # Eager execution of resnet50 takes some 20 ms on that host, however large the share.
    assert 15 < np.exp(forms.log_latency(np.array(resnet50.parameters), 1, 1.0)) < 27
    assert LIBRARY.entry("resnet50", "A100-80GB") is not None
    assert LIBRARY.entry("resnet50", "b200") is None
    models = facts().models
    known = {spelled(entry.model, models) for entry in LIBRARY.entries} - {None}
    assert len(known) >= 65
    assert {gpu_key(entry.gpu_type) for entry in LIBRARY.entries} >= {"v100", "a100", "a30", "t4"}
