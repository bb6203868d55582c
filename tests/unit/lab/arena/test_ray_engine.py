"""Without Ray, the engine says in one line what to install; with it, see the integration tests."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest

from lab.arena import workers
from solvers.errors import EngineError


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nothing(name: str) -> ModuleSpec | None:
        asked.append(name)
        return None

    monkeypatch.setattr(workers, "find_spec", nothing)
    with pytest.raises(EngineError, match=r'needs headroom-gpu\[ray\]: pip install "\.\[ray\]" in a checkout'):
        workers.run_on_ray((), None, lambda event: None)
    assert asked == ["ray"]
