"""Planners under a clock stay what they are."""

from __future__ import annotations

from lab.arena.contenders import PlannersOf
from lab.arena.running import TimedPlanners
from solvers.domain.evidence import SilentReporter
from solvers.planners import registry
from tests import builders


def test_a_timed_planner_answers_as_before_and_is_counted() -> None:
    timed, plain = TimedPlanners(PlannersOf()), PlannersOf()
    request = builders.request(builders.lab([builders.service()]))
    for name in ("hetsev", "greedy"):
        ours, theirs = timed(name, ()), plain(name, ())
        assert ours.spec == theirs.spec
        assert ours.first_state() == theirs.first_state()
        told = ours.propose(request, b"", SilentReporter())
        assert told.plan == theirs.propose(request, b"", SilentReporter()).plan
        mine, others = (registry.think(each, request, b"", SilentReporter()) for each in (ours, theirs))
        assert (mine.proposal.plan, mine.state) == (others.proposal.plan, others.state)
    spent = {item.planner: item for item in timed.times()}
    assert (spent["hetsev"].calls, spent["greedy"].calls) == (2, 2)
    assert 0 < spent["hetsev"].wall_s_max <= spent["hetsev"].wall_s
