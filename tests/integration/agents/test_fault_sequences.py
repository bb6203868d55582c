"""A few random lives of a GPU host with real processes; `benchmarks.agent_faults` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.standins.hosts.lives import live

pytestmark = pytest.mark.integration
PORTS = range(30_400, 30_600)


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_life_ends_as_wanted_without_ever_exceeding_a_device(tmp_path: Path, seed: int) -> None:
    live(tmp_path / "host", seed, PORTS)
