"""What stays where it is, whatever is planned, and what is then left to plan.

Owns the rule. Pinned replicas stay to the letter. A job that was evicted as often as it bears stays as if it were
pinned, and movable replicas beside either stay too, as long as today's rules allow it, they keep their promise and
their owner can pay: what is beside them cannot be planned anew. Everything that stays is on the fleet's books
afterwards and is taken off what is asked. It refuses to look at devices that nothing pinned stands on.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from solvers.domain.ids import DeviceId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.planners.joint.reading.work import Left, left_of
from solvers.planners.seating import standing_seat
from solvers.problems.fleet import Fleet, Search
from solvers.problems.needs import Need, pinned_assignments

DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Replicas by id, and what every need that can be planned still wants."""

    pinned: tuple[Assignment, ...]
    """Exhausted jobs included."""
    kept: tuple[Assignment, ...]
    left: tuple[Left, ...]

    @property
    def devices(self) -> frozenset[DeviceId]:
        """Those that cannot be planned anew."""
        return frozenset(item.device for item in self.pinned)


def staying_of(picture: Snapshot, movable: tuple[WorkloadId, ...], needs: tuple[Need, ...], fleet: Fleet) -> Staying:
    """Decide, and put what stays on the books."""
    books = _Books(picture, fleet)
    pinned = list(pinned_assignments(picture, movable))
    for item in pinned:
        books.put(item)
    planned = tuple(need for need in needs if need.refusal is None)
    jobs = {WorkloadId(job.id): job for job in picture.jobs}
    standing: dict[WorkloadId, list[Assignment]] = defaultdict(list)
    for item in sorted(picture.target.assignments, key=lambda item: item.replica):
        standing[item.workload].append(item)
    exhausted = set(_exhausted(picture, jobs))
    settled = {need.workload for need in planned if need.workload in exhausted}
    for need in planned:
        if need.workload in settled:
            stays = books.let_job_stay(need, standing[need.workload], jobs[need.workload])
            pinned.extend(stays)
            if not stays:
                settled.discard(need.workload)
    beside = {item.device for item in pinned}
    kept: list[Assignment] = []
    left: list[Left] = []
    for need in planned:
        if need.workload in settled:
            continue
        mine = [item for item in standing[need.workload] if item.device in beside]
        if need.kind is WorkloadKind.JOB:
            good = [(item, 0.0) for item in books.let_job_stay(need, mine, jobs[need.workload])]
        else:
            good = list(books.let_stay(need, mine))
        kept.extend(item for item, _ in good)
        usd_per_h = sum(books.usd_per_h(item) for item, _ in good)
        left.append(left_of(need, len(good), sum(capacity for _, capacity in good), usd_per_h))
    return Staying(
        pinned=tuple(sorted(pinned, key=lambda item: item.replica)),
        kept=tuple(sorted(kept, key=lambda item: item.replica)),
        left=tuple(left),
    )


def _exhausted(picture: Snapshot, jobs: Mapping[WorkloadId, TrainingJob]) -> Iterator[WorkloadId]:
    for status in picture.job_statuses:
        job = jobs.get(status.workload)
        if job is not None and status.evictions >= job.evictions_max:
            yield status.workload


class _Books:
    """The fleet's books, and what stands judged beside everything that stands."""

    def __init__(self, picture: Snapshot, fleet: Fleet) -> None:
        settings = {item.device: item for item in picture.target.settings}
        self.fleet = fleet
        self.appraisal = Appraisal.of(
            fleet, picture.profiles_by_key(), picture.policy, picture.target.assignments, settings
        )
        self.dedicated: set[str] = {item.id for item in picture.services if item.affinity.dedicated}

    def put(self, item: Assignment) -> None:
        """Take its room, whether or not it fits."""
        alone = item.workload in self.dedicated
        seat = standing_seat(self.fleet, item, dedicated=alone, power_w=item.power_w_planned)
        if seat is not None:
            self.fleet.put(seat)

    def usd_per_h(self, item: Assignment) -> float:
        """The bill by share."""
        return self.fleet.class_at(self.fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100

    def let_job_stay(self, need: Need, standing: list[Assignment], job: TrainingJob) -> tuple[Assignment, ...]:
        """The job's replica if it may stay exactly as it is."""
        for item in standing[:1]:
            inside = job.share_pct_sm_min <= item.share_pct_sm <= job.share_pct_sm_max
            if (
                item.model == job.model
                and inside
                and item.memory_mib_limit >= job.memory_mib
                and self._fits(need, item)
            ):
                self.put(item)
                return (item,)
        return ()

    def let_stay(self, need: Need, standing: list[Assignment]) -> Iterator[tuple[Assignment, float]]:
        """Replicas that may stay exactly as they are, with what they can be shown to serve."""
        budget = math.inf if need.budget_usd_per_h is None else need.budget_usd_per_h
        count = 0
        known = [item for item in standing if item.device in self.fleet.index]
        for item, shown_rps in zip(known, self.appraisal.capacities_rps(need, known), strict=True):
            price = self.usd_per_h(item)
            if shown_rps is None or count >= need.replicas_max or price > budget + DUST or not self._fits(need, item):
                continue
            self.put(item)
            count, budget = count + 1, budget - price
            yield item, min(shown_rps, item.capacity_rps)

    def _fits(self, need: Need, item: Assignment) -> bool:
        device = self.fleet.index.get(item.device)
        if device is None:
            return False
        quota = self.fleet.quota_left.get(need.project, math.inf)
        search = Search(
            need=need,
            share_pct=item.share_pct_sm,
            memory_mib=item.memory_mib_limit,
            power_w=item.power_w_planned,
        )
        return self.fleet.gpus(device, item.share_pct_sm) <= quota + DUST and self.fleet.fits(search, device)
