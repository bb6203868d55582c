"""The end of the chain: the standing target, restated and judged by today."""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.evidence import Fact, ReasonCode
from solvers.domain.workload import Affinity
from solvers.planners.registry import create, names, propose
from solvers.verify.checks import is_fatal, verify
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
    assert short.reasons[0].code is ReasonCode.WAITS_IN_LINE, "nothing stays as it is where nothing stands"


def test_keeping_what_lies_in_too_few_failure_domains_admits_it() -> None:
    picture = builders.lab([builders.service()])
    first = propose("greedy", builders.request(picture)).plan
    assert first is not None
    service = builders.service(affinity=Affinity(failure_domains_min=2))
    standing = replace(picture, services=(service,), target=builders.target(first.assignments, settings=first.settings))
    request = builders.request(standing)
    kept = propose("keep-target", request).plan
    assert kept is not None
    (short,) = kept.unplaced
    assert Fact(name="failure_domains_missing", value=1.0) in short.reasons[0].facts
    assert not is_fatal(verify(standing, kept, request.movable))


def test_keeping_replicas_that_claim_less_than_they_could_promises_what_they_claim() -> None:
    picture = builders.lab([builders.service(rate_rps_declared=40.0)])
    first = propose("greedy", builders.request(picture)).plan
    assert first is not None
    (only,) = first.assignments
    standing = replace(picture, target=builders.target([replace(only, capacity_rps=30.0)], settings=first.settings))
    request = builders.request(standing)
    kept = propose("keep-target", request).plan
    assert kept is not None
    (short,) = kept.unplaced
    assert 10.0 <= short.rate_rps_short <= 40.0
    assert not is_fatal(verify(standing, kept, request.movable))


def test_every_registered_planner_carries_its_own_name() -> None:
    assert [create(name).spec.name for name in names()] == list(names())
