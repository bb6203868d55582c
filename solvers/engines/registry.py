"""Engines by name, their libraries imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from solvers.engines.base import Engine
from solvers.errors import EngineError

_FACTORIES = {
    "highs": ("solvers.engines.highs", "Highs"),
    "cp-sat": ("solvers.engines.cpsat", "CpSat"),
    "cbc": ("solvers.engines.cbc", "Cbc"),
}


def names() -> tuple[str, ...]:
    """All engines for programmes."""
    return tuple(sorted(_FACTORIES))


def create(name: str) -> Engine:
    """An engine by name. Raises EngineError for an unknown name."""
    if name not in _FACTORIES:
        raise EngineError(f"no engine is called {name}", engine=name)
    module, factory = _FACTORIES[name]
    return cast("Engine", getattr(import_module(module), factory)())
