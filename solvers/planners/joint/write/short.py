"""What a joint plan leaves short, and why.

Owns the list of shortages: rates, replicas, failure domains and waiting jobs. Where another planner found the same
workload short, its reasons are told; else the owner's own bounds, else what every pool lacks. It refuses to hide one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Unplaced
from solvers.domain.workload import WorkloadKind
from solvers.planners.facts import RATE_STEPS
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seats import Seats
from solvers.problems.needs import Need


def shortages(
    reading: Reading,
    seats: Seats,
    assignments: tuple[Assignment, ...],
    hints: Mapping[WorkloadId, tuple[Reason, ...]],
) -> tuple[Unplaced, ...]:
    """Everything unplaced, ordered by kind and workload."""
    of_workload: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for item in assignments:
        of_workload[item.workload].append(item)
    numbers = {item.id: number for number, item in enumerate(seats.floor.problem.workloads)}
    nodes = reading.snapshot.nodes_by_id()
    domain = {device.id: nodes[device.node].failure_domain for device in reading.snapshot.devices}
    found = []
    for need in reading.needs:
        items = of_workload[need.workload]
        short = max(0.0, need.rate_rps_least - sum(item.capacity_rps for item in items))
        short = short if short > 1e-6 * max(1.0, need.rate_rps_least) + len(items) / RATE_STEPS else 0.0
        if need.kind is WorkloadKind.JOB:
            short = 0.0
        missing = max(0, need.replicas_min - len(items))
        spread = need.affinity.failure_domains_min
        lacks_domains = bool(items) and len({domain[item.device] for item in items}) < spread
        if not (short or missing or lacks_domains):
            continue
        reasons = [*_blockers(reading, seats, need, numbers, hints)]
        if missing and need.kind is not WorkloadKind.JOB:
            facts = (Fact(name="replicas_missing", value=float(missing)),)
            reasons.append(Reason(code=ReasonCode.REPLICAS_MIN, subject=need.workload, facts=facts))
        if lacks_domains:
            facts = (Fact(name="failure_domains_min", value=float(spread)),)
            reasons.append(Reason(code=ReasonCode.ANTI_AFFINITY, subject=need.workload, facts=facts))
        found.append(
            Unplaced(
                kind=need.kind,
                workload=need.workload,
                rate_rps_short=math.ceil(short * 1e4) / 1e4,
                reasons=tuple(dict.fromkeys(reasons)),
            )
        )
    return tuple(sorted(found, key=lambda item: (item.kind, item.workload)))


def _blockers(
    reading: Reading,
    seats: Seats,
    need: Need,
    numbers: Mapping[WorkloadId, int],
    hints: Mapping[WorkloadId, tuple[Reason, ...]],
) -> Iterator[Reason]:
    if need.kind is WorkloadKind.JOB:
        yield Reason(code=ReasonCode.WAITS_IN_LINE, subject=need.workload)
    if need.refusal is not None:
        yield need.refusal
        return
    if need.workload in hints:
        yield from hints[need.workload]
        return
    number = numbers.get(need.workload)
    refused = [reason for (workload, _), reason in sorted(reading.refusals.items()) if workload == need.workload]
    if number is not None:
        yield from _of_owner_or_room(seats, number)
    yield from refused


def _of_owner_or_room(seats: Seats, number: int) -> Iterator[Reason]:
    problem = seats.floor.problem
    work = problem.workloads[number]
    if seats.replicas[number] >= work.replicas_max:
        facts = (Fact(name="replicas_max", value=float(work.replicas_max)),)
        yield Reason(code=ReasonCode.REPLICAS_MAX, subject=work.id, facts=facts)
        return
    if math.isfinite(work.budget_usd_per_h):
        facts = (Fact(name="budget_usd_per_h", value=round(work.budget_usd_per_h, 6)),)
        yield Reason(code=ReasonCode.BUDGET, subject=work.id, facts=facts)
    quota = dict(problem.quotas).get(work.project)
    if quota is not None:
        facts = (Fact(name="quota_gpus_left", value=round(quota, 6)),)
        yield Reason(code=ReasonCode.QUOTA, subject=work.id, facts=facts)
    variants = [at for at, item in enumerate(problem.variants) if item.workload == number]
    told: set[str] = set()
    for pool, item in enumerate(problem.pools):
        if item.gpu_type in told or not problem.allowed[pool, variants].any():
            continue
        told.add(item.gpu_type)
        idle = sum(seats.patterns[device] is None for device in seats.floor.devices(pool))
        code = ReasonCode.POWER_CAP if idle and problem.caps else ReasonCode.NO_SHARE_LEFT
        yield Reason(code=code, subject=item.gpu_type, facts=(Fact(name="devices_idle", value=float(idle)),))
