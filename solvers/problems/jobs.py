"""What it is worth to run a training job: the one rule that planners, the objective and the gate share.

An hour on the whole of its reference GPU is worth what its owner declared; elsewhere as much more or less as it is
faster or slower there, by share, SMs and fp32 peak, whatever else the fleet has; waiting, nothing. So it runs slowly
where that costs less than it is worth, takes a device of its own only if it is worth that, and waits else. What it
could do and does not counts with the cost. A job of no or little declared value is worth more than its energy, so that
it runs in spare share.

Where the policy puts `training` before `cost`, or bills shares or memory (a job then has no spare share, all that it
has is billed to it), a job must run: one that waits is unserved demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from solvers.domain.policy import CostBasis, Policy, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob
from solvers.problems.fleet import DeviceClass, Fleet
from solvers.problems.needs import Need, iterations_per_s

ENERGY_TIMES = 2.0
"""A job is worth so many times its energy at least: at lower clocks it takes more of it."""
VALUE_USD_LEAST = 1e-3


def trains_first(policy: Policy) -> bool:
    """Whether how fast jobs run counts before what devices cost."""
    return policy.before_cost(Term.TRAINING)


def must_run(policy: Policy) -> bool:
    """Whether a job that waits is unserved demand, whatever it is worth."""
    return trains_first(policy) or policy.cost_basis is not CostBasis.DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorth:
    usd_per_h: float
    """At its best."""
    best_per_s: float
    """Iterations per second then."""
    by_class: tuple[float, ...]
    """Its speed with all SMs of a device of each of the fleet's classes, as part of its best."""
    alone_usd: tuple[float, ...]
    """What a device of each class costs that runs nothing else, $/h."""

    def earned_usd(self, device_class: int, share_pct: float) -> float:
        """What running there is worth, $/h; no more than at its best."""
        return self.usd_per_h * min(1.0, self.by_class[device_class] * share_pct / 100)

    def opens(self, device_class: int, share_pct: float) -> bool:
        return self.earned_usd(device_class, share_pct) >= self.alone_usd[device_class]


def job_worth(snapshot: Snapshot, fleet: Fleet, need: Need, job: TrainingJob) -> JobWorth:
    """By the devices that it may ever use."""
    types, eligible = snapshot.gpu_types_by_name(), {int(item) for item in fleet.class_of[fleet.eligible(need)]}
    speeds = [
        iterations_per_s(job, types, item.gpu_type) * item.sm_part if number in eligible else 0.0
        for number, item in enumerate(fleet.classes)
    ]
    best = max(speeds, default=0.0) * job.share_pct_sm_max / 100
    parts = tuple(speed / best if best > 0 else 0.0 for speed in speeds)
    usd_per_wh = snapshot.policy.usd_per_wh(snapshot.taken_at_s)
    energy_usd = max(_energy_usd(fleet.classes, parts, usd_per_wh), default=0.0)
    return JobWorth(
        usd_per_h=max(
            job.value_usd_per_h * best * job.iteration_ms_reference / 1000, ENERGY_TIMES * energy_usd, VALUE_USD_LEAST
        ),
        best_per_s=best,
        by_class=parts,
        alone_usd=tuple(item.expected_usd_per_h + usd_per_wh * item.limit_w for item in fleet.classes),
    )


def _energy_usd(classes: Iterable[DeviceClass], parts: Iterable[float], usd_per_wh: float) -> list[float]:
    """$/h for the energy of all that a job could do at its best, if it did that on devices of each class."""
    pairs = zip(classes, parts, strict=True)
    return [usd_per_wh * (item.limit_w - item.idle_w) / part for item, part in pairs if part > 0]
