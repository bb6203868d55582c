"""What stands in for a phase is called as the phase is: a renamed one would be measured as worth nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from benchmarks.phases import PHASES


def called(before: Any, other: Any) -> None:
    """With all that the phase may be given, what has a default by its name. Raises TypeError where that is refused."""
    given, named = list[Any](), dict[str, Any]()
    for item in inspect.signature(before).parameters.values():
        if item.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        if item.default is inspect.Parameter.empty and item.kind is not inspect.Parameter.KEYWORD_ONLY:
            given.append(item)
        else:
            named[item.name] = item
    inspect.signature(other).bind(*given, **named)


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_one_that_runs(name: str) -> None:
    for swap in PHASES[name].swaps:
        before = inspect.getattr_static(swap.owner, swap.name)
        if callable(before):
            called(before, swap.other)
        assert before is not swap.other
    assert PHASES[name].lines >= 0
