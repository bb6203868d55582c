"""Planners under a clock stay what they are."""

from __future__ import annotations

from lab.arena.contenders import PlannersOf
from lab.arena.running import TimedPlanners
from solvers.domain.evidence import SilentReporter
from solvers.planners.base import Remembering
from tests import builders


def test_a_timed_planner_answers_as_before_and_is_counted() -> None:
    timed, plain = TimedPlanners(PlannersOf()), PlannersOf()
    request = builders.request(builders.lab([builders.service()]))
    for name, remembers in (("hetsev", True), ("greedy", False)):
        ours, theirs = timed(name, ()), plain(name, ())
        assert ours.spec == theirs.spec
        assert ours.first_state() == theirs.first_state()
        assert isinstance(ours, Remembering) is isinstance(theirs, Remembering) is remembers
        told = ours.propose(request, b"", SilentReporter())
        assert told.plan == theirs.propose(request, b"", SilentReporter()).plan
        if isinstance(ours, Remembering) and isinstance(theirs, Remembering):
            assert (
                ours.think(request, b"", SilentReporter()).state == theirs.think(request, b"", SilentReporter()).state
            )
    spent = {item.planner: item for item in timed.times()}
    assert (spent["hetsev"].calls, spent["greedy"].calls) == (2, 1)
    assert 0 < spent["hetsev"].wall_s_max <= spent["hetsev"].wall_s
