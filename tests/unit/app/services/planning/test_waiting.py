"""Which of two plans that wait for approval waits on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.services.planning.reviewing import Waits, live
from solvers.domain.ids import PolicyName
from solvers.domain.policy import Objective, Policy

POLICY = Policy(name=PolicyName("default"), gain_usd_per_h_min=0.01, gain_pct_min=5.0)


def waits(name: str, usd: float, unserved: float = 0.0, *, blocked: bool = False, by: str = "planner-1") -> Waits:
    review: Any = SimpleNamespace(
        blocked=("falls short",) if blocked else (),
        after=SimpleNamespace(plan=SimpleNamespace(objective=Objective(cost_usd_per_h=usd, unserved=unserved))),
        picture=SimpleNamespace(policy=POLICY),
    )
    return Waits(cast("Any", SimpleNamespace(id=name, created_by=by)), review)


OLDER = waits("older", 10.0, 1.0)


@pytest.mark.parametrize(
    ("newer", "stays"),
    [
        (waits("newer", 10.0, 1.0), "older"),
        (waits("newer", 9.6, 1.0), "older"),
        (waits("newer", 9.4, 1.0), "newer"),
        (waits("newer", 11.0, 1.0), "older"),
        (waits("newer", 99.0, 0.5), "newer"),
        (waits("newer", 1.0, 1.5), "older"),
        (waits("newer", 1.0, 0.0, blocked=True), "older"),
        (waits("newer", 11.0, 1.0, by="token:ann"), "newer"),
        (waits("newer", 11.0, 1.5, by="token:ann"), "older"),
    ],
)
def test_what_was_read_stays_unless_the_newer_one_is_better(newer: Waits, stays: str) -> None:
    found = live([newer, OLDER])
    assert found is not None
    assert found.summary.id == stays


def test_what_cannot_be_approved_gives_way() -> None:
    blocked = waits("blocked", 1.0, blocked=True)
    for newer in (waits("newer", 99.0, 9.0), waits("newer", 99.0, 9.0, blocked=True)):
        found = live([newer, blocked])
        assert found is not None
        assert found.summary.id == "newer"
    assert live([]) is None
    assert live([blocked]) is blocked
