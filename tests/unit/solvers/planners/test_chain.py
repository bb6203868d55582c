"""The end of the chain: the standing target, restated and judged by today."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.evidence import ReasonCode
from solvers.planners.registry import create, names, propose
from tests import builders


def test_keeping_the_target_restates_it() -> None:
    picture = builders.lab([builders.service()])
    first = propose("greedy", builders.request(picture)).plan
    assert first is not None
    standing = replace(picture, target=builders.target(first.assignments, settings=first.settings))
    kept = propose("keep-target", builders.request(standing)).plan
    assert kept is not None
    assert (kept.assignments, kept.settings, kept.unplaced) == (first.assignments, first.settings, ())
    assert kept.objective.cost_usd_per_h == first.objective.cost_usd_per_h
    assert (kept.objective.unserved, kept.objective.churn) == (0.0, 0.0)


def test_keeping_an_empty_target_admits_what_is_short() -> None:
    kept = propose("keep-target", builders.request(builders.lab([builders.service()]))).plan
    assert kept is not None
    (short,) = kept.unplaced
    assert (short.workload, short.rate_rps_short) == ("demo/vision", 100.0)
    assert short.reasons[0].code is ReasonCode.KEPT_STANDING


def test_every_registered_planner_carries_its_own_name() -> None:
    assert [create(name).spec.name for name in names()] == list(names())
