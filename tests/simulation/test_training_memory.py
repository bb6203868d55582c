"""A world with more training memory than its devices have: none is promised twice, and the way has its price."""

from __future__ import annotations

from dataclasses import replace

from lab.outcome import RunOutcome
from lab.world.scenario import JobEntry, Level
from lab.world.world import World, outcome_of
from solvers.domain.ids import GpuTypeName
from solvers.domain.policy import Term
from solvers.domain.workload import TrainingJob
from tests import builders
from tests.simulation.small_world import contender, planners, scenario


def jobs(least_mib: int | None) -> tuple[TrainingJob, ...]:
    """Nine of 12 GB, for six devices of 16 and 32 GB."""
    made = (
        builders.job(
            f"train-{number}",
            memory_mib=12_000,
            memory_mib_resident_min=least_mib,
            gpu_type_reference=GpuTypeName("v100"),
            iterations_total=100_000,
            iteration_ms_reference=100.0 + number,
        )
        for number in range(9)
    )
    return tuple(made)


def ran(least_mib: int | None) -> tuple[RunOutcome, int]:
    """Mudi in the small world as a fluid, where jobs run whatever they are worth, and by how much a device's memory was
    ever exceeded.
    """
    entries = tuple(JobEntry(job=job, at_s=5.0 * number) for number, job in enumerate(jobs(least_mib)))
    made = scenario(jobs=entries)
    policy = replace(made.policy, objective=(Term.UNSERVED, Term.SLO_RISK, Term.TRAINING, Term.COST))
    world = World(replace(made, level=Level.FLUID, policy=policy))
    mudi = contender("mudi")
    run = world.begin(mudi, 1, planners)
    over = 0

    def watch() -> None:
        nonlocal over
        over = max(over, *(cell.memory_mib_held - cell.device.memory_mib for cell in run.state.cells.values()))

    run.go(lambda _part: None, watch)
    return outcome_of(run, mudi), over


def test_more_jobs_run_at_once_and_pay_for_the_way() -> None:
    (stiff, stiff_over), (paging, paging_over) = ran(None), ran(4000)
    assert max(stiff_over, paging_over) <= 0
    begun = [sum(job.waited_s is not None for job in each.jobs) for each in (stiff, paging)]
    assert begun[0] < begun[1] == 9
    assert stiff.metric("swapped_gib") is None
    assert (paging.metric("swapped_gib") or 0.0) > 1.0
    assert (paging.metric("unsound_plans"), paging.metric("planner_failures")) == (0.0, 0.0)


def test_who_cannot_page_and_who_need_not_leave_a_world_as_it_is() -> None:
    # With all of its memory resident, a job that could page costs what one that cannot costs.
    (stiff, _), (whole, _) = ran(None), ran(12_000)
    assert whole.metric("swapped_gib") == 0.0
    told = {each.name for each in whole.metrics} - {each.name for each in stiff.metrics}
    assert told == {"swapped_gib", "fleet_memory_pct"}
    assert replace(whole, metrics=stiff.metrics) == stiff
    assert [each for each in whole.metrics if each.name not in told] == list(stiff.metrics)
