"""Layouts on named devices: the one of several that is worth most once it is seated, and how jobs may grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from solvers.domain.ids import WorkloadId
from solvers.domain.policy import CostBasis, Policy, Term
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.change.solving import Solved
from solvers.planners.joint.change.whole_devices import ChangeTerms, Counted, counted, gentle, slights_usd
from solvers.planners.joint.propose.attempt import Attempt
from solvers.planners.joint.seat.seating import Terms, seat
from solvers.planners.joint.seat.seats import Seats
from solvers.planners.joint.seat.standing import breaks_usd
from solvers.problems.joint import WHOLE_PCT


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the solve found, and what counting did where that is all there is to it."""

    solved: Solved
    counted: Counted | None


def counted_for(attempt: Attempt) -> Counted | None:
    """Where counting is all there is to it: the best count, and the best of those that interrupt nobody."""
    policy, reading = attempt.request.snapshot.policy, attempt.reading
    gap = policy.gap_pct_target / 100
    found = counted(reading.problem, attempt.counting_deadline(), gap)
    if found is None or not reading.standing:
        return found
    terms = ChangeTerms(
        launch_usd_per_s=policy.launch_usd_per_s,
        restart_part=policy.gain_pct_min / 100,
        period_s=policy.interruption_over_s,
        remembered_s=policy.demand_lookback_s,
        gap=gap,
        bound_usd_per_h=found.bound_usd_per_h,
    )
    return replace(found, gentle=gentle(attempt.floor, terms, attempt.counting_deadline()))


def seats_of(attempt: Attempt, found: Found) -> Seats:
    """The layout that is worth most with its launches and interruptions, seated."""
    policy = attempt.request.snapshot.policy
    terms = terms_of(attempt)
    whole = found.counted
    mild = None if whole is None else whole.gentle
    others = (found.solved.held, None if whole is None else whole.layout, None if mild is None else mild.layout)
    layouts = (*(item for item in others if item is not None), found.solved.found)
    part, period_s = policy.gain_pct_min / 100, policy.interruption_over_s if mild is None else mild.period_s
    return min(
        (seat(attempt.floor, layout, terms) for layout in layouts),
        key=lambda item: (
            item.worth(policy.launch_usd_per_s, part)
            + breaks_usd(item, period_s)
            + (0.0 if whole is None else slights_usd(item))
        ),
    )


def terms_of(attempt: Attempt) -> Terms:
    """What seating is bound to."""
    policy = attempt.request.snapshot.policy
    return Terms(
        deadline=attempt.seating_deadline(),
        launch_usd_per_s=policy.launch_usd_per_s,
        quotas={str(name): gpus for name, gpus in attempt.reading.problem.quotas},
        job_most_pct=_job_most_pct(attempt),
        job_left_s=_job_left_s(attempt),
        jobs_first=_jobs_first(policy),
    )


def _job_most_pct(attempt: Attempt) -> Mapping[int, int]:
    """How far each job may grow: where share costs, no farther than in the first plan, else to its owner's bound; where
    memory costs, not to the whole device.
    """
    reading, first = attempt.reading, attempt.first
    bounds: dict[WorkloadId, int] = {WorkloadId(job.id): job.share_pct_sm_max for job in reading.snapshot.jobs}
    least = {WorkloadId(job.id): job.share_pct_sm_min for job in reading.snapshot.jobs}
    basis, free = reading.snapshot.policy.cost_basis, _jobs_first(reading.snapshot.policy)
    if basis is CostBasis.SHARE and not free:
        seated = () if first is None else first.assignments
        given = {item.workload: item.share_pct_sm for item in seated if item.kind is WorkloadKind.JOB}
        bounds = {job: given.get(job, least[job]) for job in bounds}
    if basis is CostBasis.MEMORY and not free:
        bounds = {job: max(least[job], min(share, WHOLE_PCT - 1)) for job, share in bounds.items()}
    jobs = {need.workload for need in reading.needs if need.kind is WorkloadKind.JOB}
    return {number: bounds[item.id] for number, item in enumerate(attempt.reading.problem.workloads) if item.id in jobs}


def _jobs_first(policy: Policy) -> bool:
    """Whether how fast jobs run counts before what devices cost."""
    terms = policy.terms
    return Term.TRAINING in terms and terms.index(Term.TRAINING) < terms.index(Term.COST)


def _job_left_s(attempt: Attempt) -> Mapping[int, float]:
    """What each job has still to do, as its owner reckons."""
    snapshot = attempt.reading.snapshot
    done = {item.workload: item.done for item in snapshot.job_statuses}
    left = {
        WorkloadId(job.id): (job.iterations_total - done.get(WorkloadId(job.id), 0)) * job.iteration_ms_reference / 1000
        for job in snapshot.jobs
    }
    return {number: left[item.id] for number, item in enumerate(attempt.reading.problem.workloads) if item.id in left}
