"""Which policy decides where: the owner of every device and of every workload.

A GPU and its slices have one owner together, because clock and power are the GPU's. A GPU that several pools mean
belongs to the first of their policies by name, so that there is always exactly one owner; writes that would lead there
are refused elsewhere. Whatever no pool means belongs to the default policy, and so does every workload that names no
policy with a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from solvers.domain.device import Device, Node
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, NodeId, PolicyName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Owners by device and by workload; what is not among them is the default policy's."""

    default: Policy
    bound: Mapping[PolicyName, Policy]
    """Policies with a pool, by name."""
    of_device: Mapping[DeviceId, PolicyName]
    of_workload: Mapping[WorkloadId, PolicyName]

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All of them: those with a pool by name, the default one last."""
        return (*self.bound.values(), self.default)

    def policy_at(self, device: DeviceId) -> Policy:
        return self.bound.get(self.of_device.get(device, self.default.name), self.default)

    def policy_for(self, workload: WorkloadId) -> Policy:
        return self.bound.get(self.of_workload.get(workload, self.default.name), self.default)


def owners_of(snapshot: Snapshot) -> Owners:
    """Owners in a picture; GPUs on offer belong to the pool that would mean them, were they there."""
    fleet = snapshot.with_offers()
    bound = {policy.name: policy for policy in by_name(snapshot.policies) if policy.name != snapshot.policy.name}
    return Owners(
        default=snapshot.policy,
        bound=bound,
        of_device=device_owners(bound.values(), fleet.nodes_by_id(), fleet.devices),
        of_workload={
            WorkloadId(work.id): work.policy
            for work in snapshot.works
            if work.policy is not None and work.policy in bound
        },
    )


def by_name(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    return tuple(sorted((policy for policy in policies if policy.pool is not None), key=lambda policy: policy.name))


def device_owners(
    policies: Iterable[Policy], nodes: Mapping[NodeId, Node], devices: Iterable[Device]
) -> dict[DeviceId, PolicyName]:
    """The policy of every device that a pool means."""
    found: dict[DeviceId, PolicyName] = {}
    for gpu in gpus_of(devices):
        claims = claims_on(policies, nodes, gpu)
        if claims:
            found.update((device.id, min(claims)) for device in gpu)
    return found


def gpus_of(devices: Iterable[Device]) -> tuple[tuple[Device, ...], ...]:
    """Devices by the board they are on: a whole GPU with its slices."""
    boards = grouped(devices, lambda device: device.board)
    return tuple(tuple(board) for _, board in sorted(boards.items()))


def claims_on(
    policies: Iterable[Policy], nodes: Mapping[NodeId, Node], gpu: tuple[Device, ...]
) -> dict[PolicyName, tuple[DeviceId, ...]]:
    """Policies whose pools mean a board or a part of it, with the devices of it that they mean."""
    found = {}
    for policy in policies:
        pool = policy.pool
        if pool is not None:
            meant = tuple(device.id for device in gpu if pool.holds(device, nodes.get(device.node)))
            if meant:
                found[policy.name] = meant
    return found


def moved_by(plan: Plan, whole: Snapshot, movable: tuple[WorkloadId, ...]) -> tuple[WorkloadId, ...]:
    """Workloads that a plan had a say in: not those of a policy whose part stays as it stood."""
    held = {part.policy for part in plan.parts if part.held}
    if not held:
        return movable
    owners = owners_of(whole)
    return tuple(item for item in movable if owners.policy_for(item).name not in held)
