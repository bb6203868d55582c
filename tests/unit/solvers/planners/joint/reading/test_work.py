"""LLM services in the joint problem: a pattern grants exactly what was found for so many sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.evidence import Resource, SilentReporter
from solvers.domain.plan import Assignment
from solvers.domain.profile import Interference
from solvers.models.serving.token_plans import TokenPromise, choices
from solvers.planners.base import Budget
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import read
from tests import builders, chats
from tests.judgement import judge


def test_a_pattern_grants_what_was_found() -> None:
    picture = chats.lab([chats.service()])
    reading = read(picture, builders.everything_movable(picture))
    problem = reading.problem
    (need,) = reading.needs
    assert need.tokens is not None
    names = {item.gpu_type for item in picture.token_profiles}
    served = set()
    for kind in range(problem.kinds):
        pool = problem.pools[int(problem.kind_pool[kind])]
        profile = need.tokens.profile(chats.MODEL, pool.gpu_type)
        assert profile is not None
        found = [
            item
            for item in choices(profile, TokenPromise.of(need, need.tokens, picture.policy.utilisation_max))
            if item.memory_mib <= pool.memory_mib and item.rate_rps > 0
        ]
        top = builders.gpu_type(pool.gpu_type).clock_mhz_sm_max
        pattern = judge(problem, kind, [0], [100])
        if not found or problem.kind_clock_mhz[kind] < top:
            assert pattern is None
            continue
        best = max(found, key=lambda item: item.rate_rps)
        assert pattern is not None
        assert pattern.batches == (best.sequences,)
        assert pattern.capacity_rps == (pytest.approx(best.rate_rps),)
        assert pattern.latency_ms == (pytest.approx(best.first_token_ms),)
        assert pattern.memory_mib == (best.memory_mib,)
        assert judge(problem, kind, [0], [90]) is None
        served.add(pool.gpu_type)
    # Beside its weights a T4 has no room for the longest prompt.
    assert served == names - {"t4"}


def test_whoever_has_a_gpu_alone_makes_nobody_crowded() -> None:
    pressing = Interference(pressure=0.3, sensitivity=0.4)
    names = ("a100", "l4", "t4", "v100")
    known = [replace(builders.profile("resnet50", name), interference=pressing) for name in names]
    picture = chats.lab([builders.service(), chats.service()], profiles=tuple(known))
    problem = read(picture, builders.everything_movable(picture)).problem
    llm = next(row for row, item in enumerate(problem.variants) if item.model == chats.MODEL)
    assert (problem.crowd == 1.0).all()
    assert (problem.pressure[:, llm] == 0.0).all()
    assert not np.isfinite(problem.mean_ms[:, llm, :-1]).any()


def test_a_standing_replica_is_a_standing_pattern() -> None:
    device = builders.device("c", 0, "a100")
    stands: Assignment = chats.assignment("demo/chat#0", device)
    picture = chats.lab([chats.service()], target=builders.target([stands]))
    ((pattern, devices),) = read(picture, builders.everything_movable(picture)).stands.pairs
    assert (devices, pattern.shares_pct) == (1, (100,))


def test_nothing_is_said_of_what_a_looser_promise_would_be_worth() -> None:
    """Their cells hold for one promise; a price of nothing would say that it does not bind."""
    picture = chats.lab([chats.service(), builders.service()])
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=2_000))
    insight = Joint().propose(request, b"", SilentReporter()).insight
    assert insight is not None
    priced = {item.subject for item in insight.prices if item.resource is Resource.LATENCY_MS}
    assert priced == {"demo/vision"}
