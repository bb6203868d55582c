"""Whether a plan is worth its changes: the one rule of hysteresis.

The gate promotes by it, the chain of planners chooses among sound plans by it, and the joint planner among its own, so
that none of them picks what another would hold. The standing target and the plan are judged by the same snapshot and
the same objective, its terms in the policy's order. A plan that serves more, risks less or moves what stands on lost
devices is urgent. Any other only saves: it must save as much as an amount, as a part of what it touches costs now (the
bill of the workloads, or by the device basis the cost of the devices) and as what its launches are worth; or, where a
term of which more is better decides, grow by the policy's part. The churn budget counts starts and stops of replicas,
but for those on lost devices and for new replicas that serve more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from solvers.domain.change import ChangeKind, Transition, diff
from solvers.domain.ids import ReplicaId
from solvers.domain.plan import Plan
from solvers.domain.policy import DUST, RISING, CostBasis, Objective, Term
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import cost_by_device
from solvers.problems.fleet import open_fleet, silent_nodes


@dataclass(frozen=True, kw_only=True)
class Step:
    """From the standing target to a plan. `standing` is the target's worth under the same snapshot."""

    snapshot: Snapshot
    standing: Objective
    plan: Plan
    transition: Transition

    @staticmethod
    def of(snapshot: Snapshot, standing: Objective, plan: Plan) -> Step:
        """With the changes that it takes."""
        launch_s = {model.name: model.launch_s for model in snapshot.models}
        transition = diff(snapshot.target, plan, launch_s)
        return Step(snapshot=snapshot, standing=standing, plan=plan, transition=transition)

    @property
    def first(self) -> bool:
        """Whether nothing was ever promoted, so that there is nothing to weigh it against."""
        return self.snapshot.target.generation == 0

    @cached_property
    def lost(self) -> frozenset[ReplicaId]:
        """See `lost_replicas`."""
        return lost_replicas(self.snapshot)

    @property
    def better(self) -> bool:
        """Whether the plan is better in the first term, in the policy's order, by which it differs from the target."""
        term = self.plan.objective.decisive(self.standing, self.snapshot.policy.terms)
        return term is not None and self.plan.objective.key((term,)) < self.standing.key((term,))

    @property
    def serves_more(self) -> bool:
        """Whether it is better and leaves less unserved."""
        return self.better and self.plan.objective.unserved < self.standing.unserved - DUST

    @property
    def urgent(self) -> bool:
        """Whether small gain does not count, as far as the snapshot tells."""
        now, then = self.standing, self.plan.objective
        less_risk = self.better and then.slo_risk < now.slo_risk - DUST and then.unserved <= now.unserved + DUST
        moved = any(change.subject in self.lost for change in self.transition.changes)
        return self.first or self.serves_more or less_risk or moved

    @property
    def saved_usd_per_h(self) -> float:
        """What it costs less."""
        return self.standing.cost_usd_per_h - self.plan.objective.cost_usd_per_h

    @cached_property
    def asked_usd_per_h(self) -> float:
        """What it must save if saving is all that it does."""
        policy = self.snapshot.policy
        launches_usd = policy.launch_usd_per_s * sum(change.cost_s for change in self.transition.changes)
        return max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * self._touched_usd_per_h(), launches_usd)

    @property
    def gains_enough(self) -> bool:
        """Whether it is better by enough, urgent or not."""
        policy = self.snapshot.policy
        if self.plan.objective.rises(self.standing, policy.terms, policy.gain_pct_min / 100):
            return True
        return self.better and self.saved_usd_per_h >= self.asked_usd_per_h

    @property
    def counted_changes(self) -> int:
        """Starts and stops that the churn budget counts."""
        more = self.serves_more
        counted = (
            change
            for change in self.transition.changes
            if change.subject not in self.lost and not (more and change.kind is ChangeKind.START)
        )
        voluntary = Transition(changes=tuple(counted))
        return voluntary.process_starts + voluntary.process_stops

    @property
    def within_churn(self) -> bool:
        """Whether one promotion may cause that many; the first plan may cause any number."""
        return self.first or self.counted_changes <= self.snapshot.policy.changes_max

    @property
    def worthwhile(self) -> bool:
        """Whether to act on it at once, as far as the snapshot tells. What changes nothing can always be kept."""
        return not self.transition.changes or (self.within_churn and (self.urgent or self.gains_enough))

    def outweighs(self, other: Objective, term: Term) -> bool:
        """Whether it is so much better than another plan in one term that its own changes are worth it."""
        gain = other.key((term,))[0] - self.plan.objective.key((term,))[0]
        if not self.snapshot.target.assignments:
            return gain > DUST
        if term is Term.COST:
            return gain > DUST and gain >= self.asked_usd_per_h
        part = self.snapshot.policy.gain_pct_min / 100 if term in RISING else 0.0
        return gain > DUST and gain >= part * abs(other.key((term,))[0])

    def _touched_usd_per_h(self) -> float:
        """What stands of the workloads with changed replicas; by the device basis, all of the devices with changes."""
        snapshot, changes = self.snapshot, self.transition.changes
        ends = [end for change in changes for end in (change.before, change.after) if end is not None]
        held = {setting.device: setting for setting in snapshot.target.settings}
        if snapshot.policy.cost_basis is not CostBasis.DEVICE:
            workloads = {end.workload for end in ends}
            touched = tuple(item for item in snapshot.target.assignments if item.workload in workloads)
        else:
            devices = {end.device for end in ends} | {change.subject for change in changes if change.setting_after}
            touched = tuple(item for item in snapshot.target.assignments if item.device in devices)
        return sum(cost_by_device(snapshot, open_fleet(snapshot, {}), touched, held).values())


def worth_acting(steps: Iterable[Step]) -> list[int]:
    """Numbers of the steps that can be acted on at once; of all, where none can."""
    listed = list(steps)
    return [number for number, step in enumerate(listed) if step.worthwhile] or list(range(len(listed)))


def lost_replicas(snapshot: Snapshot) -> frozenset[ReplicaId]:
    """Replicas of the target whose device is gone, sick or silent."""
    silent = silent_nodes(snapshot)
    sick = {reading.device for reading in snapshot.device_telemetry if not reading.healthy}
    fine = {device.id for device in snapshot.devices if device.node not in silent and device.id not in sick}
    return frozenset(item.replica for item in snapshot.target.assignments if item.device not in fine)
