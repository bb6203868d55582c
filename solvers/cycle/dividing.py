"""A picture in parts: what each policy plans, in which order, and what it sees.

Parts come in the order of their most important workloads, then by name, the default policy last of equals. Of caps and
quotas a part gets what is left once all others have what was settled for them, or what they hold. A replica of one
policy that stands on a device of another is seen by both: its own policy plans it anew, as if its device were gone, and
the device's plans around it, so that there is room for it until it has a place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from solvers.domain.device import Offer, PowerCap, is_offered, offered_nodes
from solvers.domain.grouping import summed
from solvers.domain.ids import DeviceId, PolicyName, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.part import Cut
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Project
from solvers.planners.base import Budget, PlanRequest
from solvers.problems.fleet import under

# --- What of shared caps and quotas is left to a part of a fleet while others hold what they hold


CAP_W_LEAST = 1e-3
"""A cap of which nothing is left; no limit can be zero."""
CAP_W_SPARED = 0.05
"""Kept back of a cap that others draw under, so that what everybody rounds does not add up to more."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """The whole fleet, the devices of the part, and what others hold on the rest."""

    fleet: Snapshot
    devices: frozenset[DeviceId]
    others: tuple[Assignment, ...]
    settings: dict[DeviceId, DeviceSetting]

    def quotas(self) -> tuple[Project, ...]:
        used: dict[str, float] = defaultdict(float)
        for item in self.others:
            used[item.workload.split("/", 1)[0]] += item.share_pct_sm / 100 * self._parts.get(item.device, 0.0)
        return tuple(
            item if item.quota_gpus is None else replace(item, quota_gpus=max(0.0, item.quota_gpus - used[item.name]))
            for item in self.fleet.projects
        )

    def caps(self) -> Iterator[PowerCap]:
        """Every cap over a device of the part, with what is left of it."""
        members = under(self.fleet, self.fleet.devices)
        for cap in self.fleet.power_caps:
            inside = [self.fleet.devices[place].id for place in members[cap.scope, cap.subject]]
            if self.devices.isdisjoint(inside):
                continue
            others_w = sum(self._drawn_w.get(device, 0.0) for device in inside)
            spared_w = CAP_W_SPARED if others_w > 0.0 else 0.0
            yield replace(cap, limit_w=max(CAP_W_LEAST, cap.limit_w - others_w - spared_w))

    @cached_property
    def _parts(self) -> dict[DeviceId, float]:
        """Part of a whole GPU by device."""
        types = self.fleet.gpu_types_by_name()
        return {item.id: types[item.gpu_type].part_of(item) for item in self.fleet.devices if item.gpu_type in types}

    @cached_property
    def _drawn_w(self) -> dict[DeviceId, float]:
        """Watts of every device of others that draws any."""
        types = self.fleet.gpu_types_by_name()
        parents = {item.mig.parent for item in self.fleet.devices if item.mig is not None}
        added_w = summed(self.others, lambda item: item.device, lambda item: item.power_w_planned)
        found = {}
        for device in self.fleet.devices:
            unused = is_offered(device.node) and device.id not in added_w
            if device.id in self.devices | parents or device.gpu_type not in types or unused:
                continue
            gpu_type, part, setting = types[device.gpu_type], self._parts[device.id], self.settings.get(device.id)
            limit_w = gpu_type.power_limit_w_max * part
            if setting is not None and setting.power_limit_w is not None:
                limit_w = min(limit_w, setting.power_limit_w)
            found[device.id] = min(limit_w, gpu_type.idle_w * part + added_w[device.id])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one policy plans."""

    policy: Policy
    snapshot: Snapshot
    """Its own devices and workloads as a picture of its own; of shared caps and quotas what is left to it."""
    movable: tuple[WorkloadId, ...]
    budget: Budget
    own: frozenset[str]
    """Its workloads."""
    strangers: frozenset[str]
    """Replicas of others that stand on its devices."""
    elsewhere: tuple[Assignment, ...]
    """Its replicas that stand on devices of others."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan: no workloads, and nothing that stands but strangers."""
        target = self.snapshot.target
        gone = all(item.replica in self.strangers for item in target.assignments)
        return not self.own and gone and not target.settings

    def request(self, seed: int) -> PlanRequest:
        return PlanRequest(snapshot=self.snapshot, movable=self.movable, budget=self.budget, seed=seed)


class Division:
    """A picture that is planned part by part, each with this budget, or what its policy says where there is none."""

    def __init__(self, snapshot: Snapshot, movable: tuple[WorkloadId, ...], budget: Budget | None = None) -> None:
        self.snapshot, self.movable, self.budget = snapshot, movable, budget
        self.owners, self.works = owners_of(snapshot), snapshot.works
        self.places = frozenset(item.id for item in snapshot.devices)
        # By replica: as settled, else as it stands.
        self.reckoned = {str(item.replica): item for item in snapshot.target.assignments}
        self.settings = {item.device: item for item in snapshot.target.settings}

    @property
    def policies(self) -> tuple[Policy, ...]:
        """In the order of planning."""
        highest: dict[PolicyName, int] = defaultdict(lambda: -1)
        for work in self.works:
            name = self._owner(work.id).name
            highest[name] = max(highest[name], work.priority)
        default = self.snapshot.policy.name
        return tuple(
            sorted(self.owners.policies, key=lambda item: (-highest[item.name], item.name == default, item.name))
        )

    def part(self, policy: Policy) -> Part:
        """What a policy plans, now that those before it are settled."""
        own = frozenset(str(work.id) for work in self.works if self._owner(work.id).name == policy.name)
        devices = frozenset(item for item in self.places if self.owners.policy_at(item).name == policy.name)
        stands, strangers, elsewhere = self._standing(policy, own, devices)
        movable = tuple(item for item in self.movable if item in own)
        # What may not move is fixed where it is, by whoever owns the device; its own policy has no say in it.
        leaving = (item for item in elsewhere if item.workload in movable)
        return Part(
            policy=policy,
            snapshot=self._picture(policy, own, devices, (*stands, *strangers, *leaving)),
            movable=movable,
            budget=self.budget or Budget(deadline_s=policy.planner_deadline_s, work_units=policy.work_units),
            own=own,
            strangers=frozenset(item.replica for item in strangers),
            elsewhere=tuple(elsewhere),
        )

    def settle(self, part: Part, plan: Plan) -> None:
        """A part is planned: from now on this is what it holds."""
        for name in [name for name, item in self.reckoned.items() if item.workload in part.own]:
            del self.reckoned[name]
        fixed = [item for item in part.elsewhere if item.workload not in part.movable]
        planned = [item for item in plan.assignments if item.replica not in part.strangers]
        self.reckoned.update({item.replica: item for item in (*fixed, *planned)})
        devices = {device.id for device in part.snapshot.devices}
        self.settings = {name: item for name, item in self.settings.items() if name not in devices}
        self.settings.update({item.device: item for item in plan.settings if item.device in devices})

    def _owner(self, workload: str) -> Policy:
        return self.owners.policy_for(WorkloadId(workload))

    def _standing(
        self, policy: Policy, own: frozenset[str], devices: frozenset[DeviceId]
    ) -> tuple[list[Assignment], list[Assignment], list[Assignment]]:
        """What of the target is the part's own and in its place, stands in it but is another's, and is its own but
        stands elsewhere. What nobody knows any more is his whose device it is on.
        """
        known = {str(work.id) for work in self.works}
        stands: list[Assignment] = []
        strangers: list[Assignment] = []
        elsewhere: list[Assignment] = []
        for item in self.snapshot.target.assignments:
            here = item.device in devices
            lost = item.device not in self.places
            if item.workload in own:
                (stands if here or lost else elsewhere).append(item)
            elif here and item.workload in known:
                strangers.append(item)
            elif item.workload not in known and (here or (lost and policy.name == self.snapshot.policy.name)):
                stands.append(item)
        return stands, strangers, elsewhere

    def _picture(
        self, policy: Policy, own: frozenset[str], devices: frozenset[DeviceId], standing: Iterable[Assignment]
    ) -> Snapshot:
        whole, leaving = self.snapshot, own & set(self.movable)
        others = (item for item in self.reckoned.values() if item.device not in devices)
        remaining = Remaining(
            fleet=whole,
            devices=devices,
            others=tuple(item for item in others if item.workload not in leaving),
            settings=self.settings,
        )
        return whole.part(
            Cut(
                devices=devices,
                workloads=own,
                assignments=tuple(sorted(standing, key=lambda item: item.replica)),
                policy=policy,
                projects=remaining.quotas(),
                power_caps=tuple(remaining.caps()),
                offers=self._offers(policy),
            )
        )

    def _offers(self, policy: Policy) -> tuple[Offer, ...]:
        """What is offered to the policy's devices: a GPU on offer is whose pool would mean it, were it there."""
        types = self.snapshot.gpu_types_by_name()
        return tuple(
            offer
            for offer in self.snapshot.offers
            if offer.gpu_type in types
            and self.owners.policy_at(offered_nodes(replace(offer, count_max=1), types[offer.gpu_type])[0][1].id).name
            == policy.name
        )
