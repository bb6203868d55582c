"""What stands in for a phase is called as the phase is: a renamed one would be measured as worth nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from benchmarks.phases import PHASES


def positional(called: Any) -> list[inspect.Parameter]:
    """That have to be given."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [item for item in inspect.signature(called).parameters.values() if item.kind in kinds]
    return [item for item in given if item.default is inspect.Parameter.empty]


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_one_that_runs(name: str) -> None:
    for swap in PHASES[name].swaps:
        before = inspect.getattr_static(swap.owner, swap.name)
        if callable(before):
            inspect.signature(swap.other).bind(*positional(before))
        assert before is not swap.other
    assert PHASES[name].lines >= 0
