"""The target that a promoted plan becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.world.targets import next_target
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.ids import Generation
from solvers.errors import SupersededError
from solvers.planners import registry
from solvers.planners.base import Budget, PlanRequest
from tests import builders


def test_a_plan_becomes_the_next_generation_of_the_target_it_was_made_for_and_of_no_other() -> None:
    picture = builders.snapshot((builders.device("a", 0, "t4"),), (builders.service("one"),))
    plan = registry.propose("keep-target", PlanRequest(snapshot=picture, movable=(), budget=Budget(), seed=1)).plan
    assert plan is not None
    made = next_target(picture.target, plan, 12.5)
    assert made == Target(
        generation=Generation(1),
        plan=digest(plan),
        promoted_at_s=12.5,
        assignments=plan.assignments,
        settings=plan.settings,
    )
    with pytest.raises(SupersededError):
        next_target(replace(picture.target, generation=Generation(7)), plan, 12.5)
