"""Writing the built-in library: the same bytes every time, one clear line when the data is missing, no drift."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.library import load_gpu_types
from benchmarks import build_library
from benchmarks.catalogue.gpus import gpu_types
from benchmarks.catalogue.networks import models
from benchmarks.library_sources import OWN, SOURCES, Cells, Measured
from solvers.domain.codec import from_json
from solvers.models.belief import forms
from solvers.models.library import Library
from tests.unit.solvers.models.belief.alone import learned

FITTED_WHEN_SHIPPED = (1.199, 0.292, -1.976, -0.114, -1.077, -1.13, 0.106, 1.28, 2.192, -0.22)


def _items() -> list[Measured]:
    batch, share = (axis.ravel() for axis in np.meshgrid([1.0, 4.0, 16.0], [0.2, 0.5, 1.0]))
    natural = np.array([3.0, 0.5, 0.05, 0.4, 0.2, 0.2, 0.5, 4.0, 8.0, 0.8])
    found = []
    for number, name in enumerate(("net-a", "net-b", "net-c")):
        latency = np.exp(forms.log_latency(learned(natural * (1 + 0.3 * number) ** (np.arange(10) < 5)), batch, share))
        cells = Cells(batch=batch, share=share, slowness=np.ones(9), latency_ms=latency)
        found.append(Measured(model=name, gpu_type="v100", source=SOURCES[0], cells=cells))
    return found


def test_the_same_measurements_give_the_same_bytes() -> None:
    once = build_library.library_text(_items())
    assert build_library.library_text(_items()) == once
    library = from_json(Library, once)
    assert [entry.model for entry in library.entries] == ["net-a", "net-b", "net-c"]
    assert all(entry.error_pct_mean < 2 for entry in library.entries)
    assert library.entries[0].licence == "Apache-2.0"
    assert once.count("\n") == 5  # head, one line per entry, foot


def test_other_measurements_give_another_version() -> None:
    items = _items()
    slower = replace(items[0].cells, latency_ms=items[0].cells.latency_ms * 1.001)
    changed = [replace(items[0], cells=slower), *items[1:]]
    versions = {from_json(Library, build_library.library_text(some)).version for some in (items, changed)}
    assert len(versions) == 2


def test_our_own_boards_are_told_but_change_nothing_of_others() -> None:
    once = from_json(Library, build_library.library_text(_items()))
    slow = replace(_items()[2].cells, latency_ms=9.0 * _items()[2].cells.latency_ms)
    ours = Measured(model="net-d", gpu_type="h100", source=OWN, cells=slow)
    both = from_json(Library, build_library.library_text([*_items(), ours]))
    assert [entry.model for entry in both.entries] == ["net-a", "net-b", "net-c", "net-d"]
    assert both.entries[:3] == once.entries
    assert both.population_mean == once.population_mean
    assert both.population_covariance == once.population_covariance


def test_missing_data_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADROOM_DATA", str(tmp_path))
    assert build_library.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(tmp_path) in said.err
    assert "HEADROOM_DATA" in said.err


def test_shipped_files_are_what_the_tables_say() -> None:
    shipped = (build_library.TARGET / "models.json").read_text(encoding="utf-8")
    assert shipped == build_library.lines(models())
    assert tuple(replace(item, prices=()) for item in load_gpu_types()) == gpu_types({})


def test_what_is_shipped_was_fitted_by_this_code() -> None:
    """Its measurements are not here, so a fit of others is held: whoever changes how is fitted runs `make library`, and
    writes here what three networks have in common since then.
    """
    found = from_json(Library, build_library.library_text(_items()))
    assert found.population_mean == pytest.approx(FITTED_WHEN_SHIPPED, abs=0.02)
