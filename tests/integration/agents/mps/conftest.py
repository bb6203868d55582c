"""A host with MPS in each protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agents.mps.bench import Bench


@pytest.fixture(params=["2", "3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A host, an agent's sharing."""
    found = Bench(tmp_path, request.param)
    yield found
    found.close()
