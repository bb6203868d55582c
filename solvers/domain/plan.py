"""The answer: assignments of replicas to devices with all their knobs, device settings, what is left unplaced, cost and
objective.

A plan's id is the digest of its canonical form. How it is carried out is `change`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from solvers.domain.device import DeviceMode
from solvers.domain.evidence import Insight, Reason
from solvers.domain.grouping import summed
from solvers.domain.ids import DeviceId, Digest, Generation, ModelName, PolicyName, ReplicaId, WorkloadId
from solvers.domain.policy import Objective
from solvers.domain.value import late, value
from solvers.domain.workload import WorkloadKind


@value
class Envelope:
    """Bounds inside which an agent's governor may move batch and SM clock between plans."""

    batch_min: int
    batch_max: int
    clock_mhz_sm_min: int
    clock_mhz_sm_max: int


@value
class Assignment:
    """One replica on one device. Memory limit in MiB; latency is the planned percentile of the SLO, end to end where
    the SLO says so.
    """

    replica: ReplicaId
    kind: WorkloadKind
    workload: WorkloadId
    model: ModelName
    device: DeviceId
    share_pct_sm: int
    memory_mib_limit: int
    batch: int
    envelope: Envelope
    latency_ms_planned: float | None
    capacity_rps: float
    power_w_planned: float
    """Dynamic power above idle that this replica is planned to draw."""
    reasons: tuple[Reason, ...] = ()


@value
class DeviceSetting:
    """Device-wide knobs. None leaves the driver's default."""

    device: DeviceId
    mode: DeviceMode = DeviceMode.MPS
    clock_mhz_sm: int | None = None
    power_limit_w: float | None = None


@value
class Unplaced:
    """Demand (requests per second) or work that found no place, and what blocks it."""

    kind: WorkloadKind
    workload: WorkloadId
    rate_rps_short: float
    reasons: tuple[Reason, ...]


@value
class PlanPart:
    """What one policy contributed to a plan that several made: by which planner, or why its part stays as it stood."""

    policy: PolicyName
    planner: str
    planner_version: str
    objective: Objective
    bound_usd_per_h: float | None = None
    held: tuple[str, ...] = ()
    """Why nothing was changed, as decisions say it; empty: this is what the planner wants."""


@value
class Destination:
    """What a plan makes room for: where its owner wants to be as soon as what it starts is ready."""

    assignments: tuple[Assignment, ...]
    settings: tuple[DeviceSetting, ...]
    unplaced: tuple[Unplaced, ...]
    objective: Objective
    bound_usd_per_h: float | None = late(None)
    """Of serving what is served there, as a plan's is."""


@value
class Plan:
    """A complete wish for the fleet. `parent` is the generation it was computed against."""

    snapshot: Digest
    parent: Generation
    planner: str
    planner_version: str
    seed: int
    assignments: tuple[Assignment, ...]
    """Ordered by replica id."""
    settings: tuple[DeviceSetting, ...]
    """Ordered by device id."""
    unplaced: tuple[Unplaced, ...]
    objective: Objective
    bound_usd_per_h: float | None = None
    """Proven lower bound on the cost of serving what this plan serves, or, where it stands with less headroom than a
    plan made anew, of such a plan; None when the planner proves none.
    """
    parts: tuple[PlanPart, ...] = late(())
    """What each policy contributed, in the order of planning; empty where one policy decides on everything."""

    toward: Destination | None = late(None)
    """Where this is a stopover: what stands, with room elsewhere so that the next change interrupts nobody. It may cost
    more for some minutes; what it leads to is verified with it, and is what it is worth.
    """

    @property
    def arrived(self) -> Plan:
        """What it leads to, as a plan."""
        to = self.toward
        if to is None:
            return self
        return replace(
            self,
            assignments=to.assignments,
            settings=to.settings,
            unplaced=to.unplaced,
            objective=to.objective,
            bound_usd_per_h=to.bound_usd_per_h,
            toward=None,
        )

    @property
    def served_rps(self) -> Mapping[WorkloadId, float]:
        """What its replicas carry, by workload; of all others none."""
        return summed(self.assignments, lambda item: item.workload, lambda item: item.capacity_rps)

    @property
    def gap_pct(self) -> float | None:
        """How much dearer than the bound this plan can be, in percent of the bound."""
        if self.objective.cost_usd_per_h <= 0:
            return 0.0
        if self.bound_usd_per_h is None or self.bound_usd_per_h <= 0:
            return None
        return max(0.0, 100 * (self.objective.cost_usd_per_h / self.bound_usd_per_h - 1))


class ProposalStatus(StrEnum):
    """What a planner's answer is worth."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NOT_APPLICABLE = "not_applicable"
    NO_SOLUTION = "no_solution"


class PlannerEnding(StrEnum):
    """How a planner's search came to its end."""

    FINISHED = "finished"
    """By itself: it found what it looked for, or there was nothing more to look at."""
    WORK = "work"
    """Its counted work was used up; with equal inputs it ends alike."""
    DEADLINE = "deadline"
    """Its time was used up."""
    KILLED = "killed"
    """It overran its deadline and was killed."""
    FAILED = "failed"
    """It crashed, ran out of memory or broke its contract."""


@value
class Proposal:
    """A planner's answer: a status, a plan when there is one, and reasons that concern the whole."""

    status: ProposalStatus
    planner: str
    plan: Plan | None
    reasons: tuple[Reason, ...] = ()
    insight: Insight | None = None
    """What the planner found out on its way, for explanations; None when it tells nothing."""
    ending: PlannerEnding = late(PlannerEnding.FINISHED)
    failure: str | None = late(None)
    """Why the planner was stopped or failed, in words; the plan is then the best that it had handed over."""
    by: str | None = late(None)
    """Whose plan it is, where the planner's own was not the best."""
