"""The floor while it is being seated: what is on each device, what power is left, what is served.

Owns these books and the one look at what a change would do to them. It refuses to search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.planners.joint.seat.floor import NO_DOMAIN, Floor
from solvers.problems.joint import Floats
from solvers.problems.patterns import Pattern

DUST = 1e-6


@dataclass(slots=True)
class Seats:
    """Mutable books of one seating."""

    floor: Floor
    patterns: list[Pattern | None]
    left_w: Floats
    """Of each power domain; below 0 where it is exceeded."""
    served_rps: Floats
    replicas: list[int]
    """Of each workload."""
    eager: bool = False
    """Whether what stands goes on with the largest batches that it bears, instead of its own."""

    @staticmethod
    def empty(floor: Floor) -> Seats:
        """Nobody is seated."""
        workloads = len(floor.problem.workloads)
        return Seats(floor, [None] * len(floor.names), floor.room_w.copy(), np.zeros(workloads), [0] * workloads)

    def put(self, device: int, pattern: Pattern | None) -> None:
        """Make this the contents of a device."""
        self._book(device, self.patterns[device], -1)
        self.patterns[device] = pattern
        self._book(device, pattern, 1)

    def _book(self, device: int, pattern: Pattern | None, sign: int) -> None:
        if pattern is None:
            return
        problem = self.floor.problem
        for domain in self.floor.domain_of[device]:
            if domain != NO_DOMAIN:
                self.left_w[domain] -= sign * self.floor.dynamic_w(pattern)
        for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
            workload = problem.variants[variant].workload
            self.served_rps[workload] += sign * capacity
            self.replicas[workload] += sign

    def dynamic_w(self, device: int) -> float:
        """What a device draws above idle."""
        pattern = self.patterns[device]
        return 0.0 if pattern is None else self.floor.dynamic_w(pattern)

    def left_at(self, device: int) -> float:
        """What a device's power domains leave."""
        domains = self.floor.domain_of[device]
        known = domains[domains != NO_DOMAIN]
        return float(self.left_w[known].min()) if len(known) else float("inf")

    def short_rps(self, workload: int) -> float:
        """What of a workload's rate is left unserved."""
        least = self.floor.problem.workloads[workload].rate_least_rps
        short = least - float(self.served_rps[workload])
        return short if short > DUST * max(1.0, least) else 0.0

    def missing(self, workload: int) -> int:
        """Replicas missing below the owner's floor."""
        return max(0, self.floor.problem.workloads[workload].replicas_min - self.replicas[workload])

    def hurts(self, before: Pattern | None, after: Pattern | None, but: int) -> bool:
        """Whether a device's change leaves any workload but this one with less than it must be served."""
        problem = self.floor.problem
        change: dict[int, float] = {}
        for pattern, sign in ((before, -1), (after, 1)):
            for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True) if pattern else ():
                workload = problem.variants[variant].workload
                change[workload] = change.get(workload, 0.0) + sign * capacity
        return any(
            by_rps < 0
            and workload != but
            and self.served_rps[workload] + by_rps < problem.workloads[workload].rate_least_rps * (1 - DUST)
            for workload, by_rps in change.items()
        )

    def loss_usd(self, before: Pattern | None, after: Pattern | None) -> float:
        """$/h that a device's change counts in demand and replicas that it leaves unserved; below 0 for a gain."""
        problem = self.floor.problem
        change: dict[int, list[float]] = {}
        for pattern, sign in ((before, -1), (after, 1)):
            if pattern is None:
                continue
            for variant, capacity in zip(pattern.variants, pattern.capacity_rps, strict=True):
                entry = change.setdefault(problem.variants[variant].workload, [0.0, 0.0])
                entry[0] += sign * capacity
                entry[1] += sign
        loss = 0.0
        for workload, (capacity, replicas) in change.items():
            work = problem.workloads[workload]
            least = work.rate_least_rps
            now = max(0.0, least - self.served_rps[workload])
            then = max(0.0, least - self.served_rps[workload] - capacity)
            if least > 0:
                loss += work.unserved_usd * (then - now) / least
            lack = self.missing(workload)
            then_lack = max(0, work.replicas_min - self.replicas[workload] - int(replicas))
            loss += work.unserved_usd * (then_lack - lack) / max(1, work.replicas_min)
        return loss

    def worth(self, launch_usd_per_s: float, restart_part: float) -> float:
        """$/h of all devices, of what is left unserved, and of what must start: each launch by its seconds, and a part
        of what the replica itself costs.
        """
        problem, total = self.floor.problem, 0.0
        for device, pattern in enumerate(self.patterns):
            if pattern is None:
                continue
            total += pattern.usd_per_h
            left = [(item.variant, item.share_pct) for item in self.floor.held.get(device, ())]
            for member in zip(problem.networks(pattern.variants), pattern.shares_pct, strict=True):
                if member in left:
                    left.remove(member)
                    continue
                total += launch_usd_per_s * problem.variants[member[0]].launch_s
                total += restart_part * pattern.usd_per_h * member[1] / sum(pattern.shares_pct)
        for number, work in enumerate(problem.workloads):
            if work.rate_least_rps > 0:
                total += work.unserved_usd * self.short_rps(number) / work.rate_least_rps
            total += work.unserved_usd * self.missing(number) / max(1, work.replicas_min)
        return total
