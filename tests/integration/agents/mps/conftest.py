"""A host with MPS in each protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.mps import daemon, proofs, protocols, sharing
from tests.integration.agents.mps.bench import Bench
from tests.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes may take its time beside other work."""
    for module in (protocols, daemon):
        monkeypatch.setattr(module, "COMMAND_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(proofs, "PROBE_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(daemon, "START_S", LIMIT_S)
    monkeypatch.setattr(daemon, "END_S", LIMIT_S)
    monkeypatch.setattr(sharing, "LEAVE_S", LIMIT_S)


@pytest.fixture(params=["2", "3"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A host, an agent's sharing."""
    found = Bench(tmp_path, request.param)
    yield found
    found.close()
