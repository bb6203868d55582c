"""Events come by time, kind and order of planning, and time never goes back."""

from __future__ import annotations

import pytest

from lab.world.state import Kernel, Priority
from solvers.errors import InvariantError


def test_ties_are_settled_by_kind_and_then_by_order() -> None:
    kernel, seen = Kernel(), list[str]()
    kernel.at(2.0, Priority.FAULT, lambda: seen.append("later"))
    kernel.at(1.0, Priority.CYCLE, lambda: seen.append("cycle"))
    kernel.at(1.0, Priority.READY, lambda: seen.append("first ready"))
    kernel.at(1.0, Priority.READY, lambda: seen.append("second ready"))
    kernel.at(1.0, Priority.FAULT, lambda: seen.append("fault"))
    kernel.happen()
    assert not seen
    assert kernel.next_s() == 1.0
    kernel.move(1.0)
    kernel.happen()
    assert seen == ["fault", "first ready", "second ready", "cycle"]
    kernel.move(2.0)
    kernel.happen()
    assert seen[4:] == ["later"]
    assert kernel.next_s() == float("inf")


def test_what_an_event_plans_for_now_happens_now() -> None:
    kernel, seen = Kernel(), list[str]()
    kernel.at(0.0, Priority.APPLY, lambda: kernel.at(0.0, Priority.READY, lambda: seen.append("ready")))
    kernel.at(0.0, Priority.CYCLE, lambda: seen.append("cycle"))
    kernel.happen()
    assert seen == ["ready", "cycle"]


def test_time_skips_no_event_and_never_goes_back() -> None:
    kernel = Kernel()
    kernel.at(1.0, Priority.CYCLE, lambda: None)
    with pytest.raises(InvariantError, match="cannot go"):
        kernel.move(1.5)
    kernel.move(0.5)
    with pytest.raises(InvariantError, match="cannot go"):
        kernel.move(0.4)
    with pytest.raises(InvariantError, match="planned at"):
        kernel.at(0.4, Priority.CYCLE, lambda: None)
