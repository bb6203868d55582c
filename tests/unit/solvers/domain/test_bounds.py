"""Bounds of projects: whatever is written and in whatever order, nothing gets further beyond a bound than it stood."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from solvers.domain.bounds import AskedTogether, exceeded
from solvers.domain.codec import digest, to_plain
from solvers.domain.ids import ProjectName
from solvers.domain.workload import Project, Service, Work
from tests import builders

DEMO = Project(name=ProjectName("demo"))
PRIORITIES, REPLICAS, DOLLARS = st.integers(0, 1000), st.integers(0, 16), st.integers(1, 400).map(lambda n: n / 4)
BOUNDED = st.builds(
    lambda priority, replicas, usd, count: replace(
        DEMO,
        priority_max=priority,
        quota_replicas_min=replicas,
        quota_budget_usd_per_h=usd,
        quota_workloads=count,
    ),
    st.none() | PRIORITIES, st.none() | st.integers(0, 40), st.none() | DOLLARS, st.none() | st.integers(0, 5),
)  # fmt: skip
SERVICES = st.builds(
    lambda name, priority, replicas, usd: builders.service(
        name, priority=priority, replicas_min=replicas, budget_usd_per_h=usd
    ),
    st.sampled_from("abc"), PRIORITIES, REPLICAS, st.none() | DOLLARS,
)  # fmt: skip
JOBS = st.builds(lambda name, priority: builders.job(name, priority=priority), st.sampled_from("ab"), PRIORITIES)
TASKS = st.builds(lambda priority: builders.task("a", priority=priority), PRIORITIES)


def standing(works: list[Work]) -> dict[str, float]:
    services = [work for work in works if isinstance(work, Service)]
    return {
        "priority_max": max((work.priority for work in works), default=0),
        "quota_replicas_min": sum(work.replicas_min for work in services),
        "quota_budget_usd_per_h": sum(one.budget_usd_per_h or math.inf for one in services),
        "quota_workloads": len({(type(work), work.name) for work in works}),
    }


@given(BOUNDED, st.lists(SERVICES | JOBS | TASKS, max_size=4), st.lists(SERVICES | JOBS | TASKS, max_size=12))
def test_no_accepted_write_leads_further_beyond(project: Project, first: list[Work], writes: list[Work]) -> None:
    limits = {bound: limit for bound in standing([]) if (limit := getattr(project, bound)) is not None}
    held = {(type(work), work.name): work for work in first}
    kept = AskedTogether(first)
    for work in writes:
        before, after = list(held.values()), list({**held, (type(work), work.name): work}.values())
        told = dict(exceeded([project], after, before))
        assert dict(kept.exceeded(project, work)) == told
        refused = set(told)
        was, now = standing(before), standing(after)
        own = max((item.priority for item in before if (type(item), item.name) == (type(work), work.name)), default=0)
        worse = {bound for bound, limit in limits.items() if now[bound] > limit and now[bound] > was[bound]}
        assert ("replicas_min" in refused) == ("quota_replicas_min" in worse)
        assert ("name" in refused) == ("quota_workloads" in worse)
        assert ("priority" in refused) == (work.priority > max(limits.get("priority_max", math.inf), own))
        if not refused:
            assert not worse
            held[type(work), work.name] = work
            kept.write(work)


@given(BOUNDED, st.lists(SERVICES | JOBS | TASKS, max_size=6))
def test_what_stands_may_stand_and_shrink(project: Project, works: list[Work]) -> None:
    assert list(exceeded([project], works, works)) == []
    less = [replace(work, priority=work.priority // 2) for work in works]
    assert [field for field, _ in exceeded([project], less, works) if field != "priority"] == []
    assert list(exceeded([DEMO], works)) == []


def test_every_bound_names_itself_the_value_and_the_project() -> None:
    project = replace(DEMO, priority_max=5, quota_replicas_min=1, quota_budget_usd_per_h=2.5, quota_workloads=2)
    works = [
        builders.service("a", replicas_min=2, budget_usd_per_h=3.0),
        builders.service("b", priority=1),
        builders.job(),
    ]
    assert dict(exceeded([project], works)) == {
        "priority": "TrainingJob demo/train: priority 10, where priority_max of project demo is 5",
        "replicas_min": "all services: replicas_min 3, where quota_replicas_min of project demo is 1",
        "budget_usd_per_h": "Service demo/b: no budget_usd_per_h, where quota_budget_usd_per_h of project demo is 2.5",
        "name": "services, jobs and tasks: 3 of them, where quota_workloads of project demo is 2",
    }


def test_dimes_do_not_add_up_to_more_than_they_are() -> None:
    works = [builders.service(name, budget_usd_per_h=usd) for name, usd in (("a", 0.1), ("b", 0.2))]
    assert list(exceeded([replace(DEMO, quota_budget_usd_per_h=0.3)], works)) == []


def test_projects_without_bounds_are_written_as_before() -> None:
    assert to_plain(DEMO) == {"name": "demo", "description": "", "quota_gpus": None}
    assert digest(replace(DEMO, priority_max=5)) != digest(DEMO)
