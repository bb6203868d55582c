"""Melange: the cheapest mix of whole GPUs, proven against every other mix."""

from __future__ import annotations

import itertools

import numpy as np

from lab.baselines.melange import problem_of
from solvers.domain.ids import WorkloadId
from solvers.planners.case import Case
from solvers.planners.draft import Draft, on_whole_devices
from tests import builders
from tests.unit.lab.baselines.course import Course, farm, types_of


def test_every_replica_has_a_whole_gpu() -> None:
    plan = Course("melange", farm(builders.service(), builders.service("text", model="bert"))).step(
        vision=900, text=900
    )
    assert not plan.unplaced
    assert {item.share_pct_sm for item in plan.assignments} == {100}
    assert len({item.device for item in plan.assignments}) == len(plan.assignments)


def test_the_mix_is_the_cheapest_of_all() -> None:
    picture = farm(builders.service(rate_rps_declared=1500.0))
    draft = Draft.of(builders.request(picture), on_whole_devices(Case.of(builders.request(picture))))
    (need,) = draft.needs
    kinds = draft.fixed(need, 100)
    problem = problem_of(draft, [need], [(0, option) for option in kinds])
    tried = (np.array(counts) for counts in itertools.product(range(5), repeat=len(kinds)))
    best = min((counts for counts in tried if problem.feasible(counts)), key=problem.objective)
    plan = Course("melange", picture).step()
    assert need.workload == WorkloadId("demo/vision")
    used = ["v100" if "-v" in item.device else "t4" for item in plan.assignments]
    chosen = [used.count(option.gpu_type) for option in kinds]
    assert problem.objective(np.array(chosen)) == problem.objective(best)


def test_types_are_mixed_where_that_is_cheaper_or_needed() -> None:
    plan = Course("melange", farm(builders.service())).step(vision=5200)
    assert types_of(plan) == {"t4", "v100"}


def test_low_load_takes_the_cheap_type() -> None:
    assert types_of(Course("melange", farm(builders.service())).step(vision=50)) == {"t4"}
