"""Replicas on devices before they have names: what planners hand to the writer of plans.

The record of one placed replica, and the settled state of one workload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from solvers.domain.evidence import Reason
from solvers.domain.ids import ProjectName
from solvers.domain.plan import Assignment
from solvers.domain.workload import WorkloadKind
from solvers.problems.choice import Option
from solvers.problems.fleet import Fleet, Seat
from solvers.problems.needs import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One replica on one device. `standing` is set when it stays exactly as it is; without an option nothing is known
    of its performance.
    """

    seat: Seat
    option: Option | None = None
    standing: Assignment | None = None

    @property
    def capacity_rps(self) -> float:
        """Rate it can be shown to serve."""
        return self.option.capacity_rps if self.option is not None else 0.0


@dataclass(slots=True, kw_only=True)
class Settled:
    """One workload after placement."""

    need: Need
    placed: list[Placed] = field(default_factory=list)
    blockers: list[Reason] = field(default_factory=list)
    fleet: Fleet

    @property
    def rate_rps_short(self) -> float:
        """What is left unserved; dust is nothing."""
        return self._below(self.need.rate_rps_least)

    @property
    def rate_rps_wanting(self) -> float:
        """What is missing to the rate that new capacity is sized for."""
        return self._below(self.need.rate_rps)

    def _below(self, rate_rps: float) -> float:
        short = rate_rps - sum(item.capacity_rps for item in self.placed)
        return short if short > 1e-6 * max(1.0, rate_rps) else 0.0

    @property
    def replicas_missing(self) -> int:
        """Replicas missing below the owner's floor."""
        return max(0, self.need.replicas_min - len(self.placed))

    @property
    def replicas_at_risk(self) -> int:
        """Replicas that are kept although they cannot be shown to keep their promise; jobs promise nothing."""
        if self.need.kind is WorkloadKind.JOB:
            return 0
        return sum(item.option is None for item in self.placed)

    @property
    def weight_usd_per_h(self) -> float:
        """Price of the room taken."""
        return sum(item.option.weight_usd_per_h for item in self.placed if item.option is not None)

    @property
    def usd_per_h(self) -> float:
        """The bill by share."""
        return sum(self.fleet.class_at(item.seat.device).usd_per_h * item.seat.share_pct / 100 for item in self.placed)

    @property
    def domains(self) -> frozenset[int]:
        """Failure domains in use."""
        return frozenset(int(self.fleet.failure_domain[item.seat.device]) for item in self.placed)

    def add(self, placed: Placed) -> None:
        """Take the room and remember it."""
        self.fleet.put(placed.seat)
        self.placed.append(placed)

    def clear(self) -> None:
        """Give all room back, keeping the list."""
        for item in self.placed:
            self.fleet.lift(item.seat)

    def restore(self) -> None:
        """Take all room again."""
        for item in self.placed:
            self.fleet.put(item.seat)


def seat_of(need: Need, option: Option, device: int) -> Seat:
    """What a replica of this option takes."""
    return Seat(
        workload=need.workload,
        project=need.project,
        device=device,
        share_pct=option.share_pct,
        memory_mib=option.memory_mib,
        power_w=option.power_w,
        dedicated=need.affinity.dedicated,
        press=option.press,
    )


def standing_seat(fleet: Fleet, assignment: Assignment, *, dedicated: bool, power_w: float) -> Seat | None:
    """What a standing replica takes; None when its device is gone."""
    device = fleet.index.get(assignment.device)
    if device is None:
        return None
    return Seat(
        workload=assignment.workload,
        project=ProjectName(assignment.workload.partition("/")[0]),
        device=device,
        share_pct=assignment.share_pct_sm,
        memory_mib=assignment.memory_mib_limit,
        power_w=power_w,
        dedicated=dedicated,
    )
