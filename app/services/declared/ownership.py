"""Who owns what, and what a policy, a pool or a workload may not say because something else already says otherwise.

A write that would give a knob two owners, or one that cannot do its work, is refused at its field with both sides
named: a GPU in two pools, a GPU whose slices are in two, a controller that only moves the clock beside planners that
take it for constant, two answers to one question within a chain, a workload that nothing in its pool may host. Where a
rule resolves a contradiction, nothing is refused. The rule of ownership is the core's, its wording is `sentences`'.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app import kinds
from app.records import record
from app.services.declared.tokens import Deed
from app.services.planning.snapshots import read_bound_policies, read_policy
from app.store import documents, plans, targets
from solvers.cycle.owners import StandingOwners
from solvers.domain.bounds import AskedTogether
from solvers.domain.change import Target
from solvers.domain.codec import Plain, from_plain
from solvers.domain.device import ColocationClass, Device, Node
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName, ProjectName, WorkloadId
from solvers.domain.ownership import Owners, by_name, claims_on, device_owners, gpus_of
from solvers.domain.policy import DEFAULT_POLICY, Policy, governor_of
from solvers.domain.workload import OfflineTask, Service, TrainingJob, Work
from solvers.planners import registry

SHOWN_MAX = 3
SHARED_QUESTIONS = frozenset({"anti_affinity", "fit", "leftover"})
"""Settings that are rules of a place, not of a planner: a chain has one answer to each."""
Contradiction = tuple[str, str]
"""A pointer and what contradicts what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    """Policies with the fleet they divide, and the workloads that name them."""

    default: Policy
    bound: tuple[Policy, ...]
    nodes: dict[NodeId, Node]
    devices: tuple[Device, ...]
    works: tuple[Work, ...]

    @property
    def owners(self) -> Owners:
        bound = {policy.name: policy for policy in self.bound}
        return Owners(
            default=self.default,
            bound=bound,
            of_device=device_owners(self.bound, self.nodes, self.devices),
            of_workload={},
        )

    def with_policy(self, policy: Policy) -> Estate:
        if policy.name == DEFAULT_POLICY:
            return replace(self, default=policy)
        others = (item for item in self.bound if item.name != policy.name)
        return replace(self, bound=by_name((*others, policy)))


def read_estate(session: Session, *, works: bool = False, node: str | None = None) -> Estate:
    """As it is stored now; with the workloads where these matter, and with one node's devices alone where named (none
    while no policy has a pool).
    """
    bound = read_bound_policies(session)
    devices: tuple[Device, ...] = ()
    nodes: tuple[Node, ...] = ()
    if node is None:
        devices, nodes = documents.values(session, kinds.DEVICE, Device), documents.values(session, kinds.NODE, Node)
    elif bound:
        devices, nodes = _at(session, node)
    found: list[Work] = []
    for kind in kinds.workloads() if works else ():
        found += documents.values(session, kind, kind.domain)
    return Estate(
        default=read_policy(session),
        bound=bound,
        nodes={item.id: item for item in nodes},
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        works=tuple(found),
    )


def read_owners(session: Session) -> Owners:
    """Who has what now. While no policy has a pool nothing of the fleet is read."""
    if any(policy.pool is not None for policy in read_bound_policies(session)):
        return read_estate(session).owners
    return Owners(default=read_policy(session), bound={}, of_device={}, of_workload={})


def _at(session: Session, node: str) -> tuple[tuple[Device, ...], tuple[Node, ...]]:
    """The devices of a node, and itself: of a large fleet most is elsewhere, and decoding is what takes time."""
    devices = documents.all_specs(session, kinds.DEVICE, node_id=node)
    nodes = documents.all_specs(session, kinds.NODE, id=node)
    return tuple(from_plain(Device, each.spec) for each in devices), tuple(
        from_plain(Node, each.spec) for each in nodes
    )


def works_of(session: Session, project: ProjectName) -> tuple[Work, ...]:
    found = ((kind, documents.all_specs(session, kind, project)) for kind in kinds.workloads())
    return tuple(from_plain(kind.domain, stored.spec) for kind, specs in found for stored in specs)


Homes = frozenset[tuple[ColocationClass, GpuTypeName]]
"""What kinds of devices a pool has."""


class Estates:
    """What documents are judged beside, read once for all that one transaction writes, which tells what it wrote."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._bound: tuple[Policy, ...] | None = None
        self._homes: dict[PolicyName, Homes] | None = None
        self._standing: dict[ProjectName, AskedTogether] = {}

    @property
    def bound(self) -> tuple[Policy, ...]:
        if self._bound is None:
            self._bound = read_bound_policies(self.session)
        return self._bound

    def homes(self, policy: Policy) -> Homes:
        if self._homes is None:
            estate = read_estate(self.session)
            self._homes = {item.name: _homes(estate, item) for item in estate.bound}
        return self._homes.get(policy.name, frozenset())

    def standing(self, project: ProjectName) -> AskedTogether:
        """What the workloads of a project ask for; nobody else adds to it while its document is locked."""
        if project not in self._standing:
            self._standing[project] = AskedTogether(works_of(self.session, project))
        return self._standing[project]

    def wrote(self, value: object) -> None:
        if isinstance(value, Policy):
            self._bound = None
        if isinstance(value, Policy | Node | Device):
            self._homes = None
        if isinstance(value, Service | TrainingJob | OfflineTask) and value.project in self._standing:
            self._standing[value.project].write(value)


def policy_faults(session: Session, policy: Policy) -> Iterator[Contradiction]:
    yield from _clock(policy)
    yield from _answers(policy)
    if policy.name == DEFAULT_POLICY:
        if policy.pool is not None:
            yield "/pool", f"the policy {DEFAULT_POLICY} has whatever is in no pool, and none of its own"
        return
    estate = read_estate(session, works=True).with_policy(policy)
    mine = [work for work in estate.works if work.policy == policy.name]
    if policy.pool is None:
        if mine:
            said = f"{_some(work.id for work in mine)} would be without devices: {policy.name} plans them"
            yield "/pool", said
        return
    yield from (("/pool", said) for said in _overlaps(estate, policy.name))
    homes = _homes(estate, policy)
    for work in mine:
        yield from (("/pool", said) for said in _homeless(homes, policy, work))


def workload_faults(estates: Estates, work: Work) -> Iterator[Contradiction]:
    """What speaks against the policy that a workload names; that it exists is checked elsewhere."""
    if work.policy is None or work.policy == DEFAULT_POLICY:
        return
    policy = next((item for item in estates.bound if item.name == work.policy), None)
    if policy is None:
        if documents.find(estates.session, kinds.POLICY, (work.policy,)) is not None:
            yield "/policy", f"the policy {work.policy} has no pool, so nothing could host {work.id}"
        return
    yield from (("/policy", said) for said in _homeless(estates.homes(policy), policy, work))


def fleet_faults(estates: Estates, item: Node | Device) -> Iterator[Contradiction]:
    """What speaks against a node or device as it would be."""
    if not estates.bound:
        return
    devices, nodes = _at(estates.session, item.id if isinstance(item, Node) else item.node)
    policy, held = read_policy(estates.session), {node.id: node for node in nodes}
    estate = Estate(default=policy, bound=estates.bound, nodes=held, devices=devices, works=())
    if isinstance(item, Node):
        pointer, changed = "/labels", replace(estate, nodes={item.id: item})
    else:
        others = tuple(device for device in estate.devices if device.id != item.id)
        pointer, changed = "/id", replace(estate, devices=(*others, item))
    yield from ((pointer, said) for said in _overlaps(changed, None))


def _clock(policy: Policy) -> Iterator[Contradiction]:
    """A controller that can do nothing but move the clock needs a plan that leaves it open."""
    known = set(registry.names())
    if not governor_of(policy.governor).clock_alone or not set(policy.planners) <= known:
        return
    leaving_open = [name for name in registry.names() if registry.create(name).spec.leaves_clock_open]
    if not any(name in leaving_open for name in policy.planners):
        said = (
            f"{policy.governor} moves the clock alone, and {', '.join(policy.planners)} plan for a constant one: name "
            f"another controller, or a planner that leaves the clock open ({', '.join(leaving_open)})"
        )
        yield "/governor", said


def _answers(policy: Policy) -> Iterator[Contradiction]:
    """One question, one answer: which of them would hold depends on who happens to have a plan."""
    said: dict[str, tuple[str, object]] = {}
    for index, item in enumerate(policy.planner_settings):
        if item.name not in SHARED_QUESTIONS or item.planner not in policy.planners:
            continue
        planner, answer = said.setdefault(item.name, (item.planner, item.value))
        if answer != item.value:
            detail = f"{item.name} is {item.value} for {item.planner} and {answer} for {planner} in one chain"
            yield f"/planner_settings/{index}/value", detail


def _overlaps(estate: Estate, about: PolicyName | None) -> Iterator[str]:
    """GPUs that several pools mean, and such of which a pool means only some slices while another means the rest."""
    twice: dict[tuple[PolicyName, ...], list[str]] = {}
    for gpu in gpus_of(estate.devices):
        claims = claims_on(estate.bound, estate.nodes, gpu)
        if len(claims) > 1 and about in (None, *claims):
            twice.setdefault(tuple(sorted(claims)), []).append(gpu[0].board)
        elif len(gpu) > 1 and len(claims) == 1:
            (policy, meant), *_ = claims.items()
            slices = {device.id for device in gpu if device.mig is not None}
            if about in (None, policy) and slices - set(meant) and slices & set(meant):
                yield (
                    f"clock and power of {gpu[0].board} would have two owners: the pool of {policy} means "
                    f"{_some(sorted(slices & set(meant)))}, and not {_some(sorted(slices - set(meant)))}"
                )
    for policies, boards in sorted(twice.items()):
        yield f"{_some(boards)} would be in the pools of {' and '.join(policies)}: every knob has one owner"


def _homes(estate: Estate, policy: Policy) -> Homes:
    owners = estate.owners
    mine = (device for device in estate.devices if owners.policy_at(device.id).name == policy.name)
    return frozenset((device.colocation, device.gpu_type) for device in mine)


def _homeless(homes: Homes, policy: Policy, work: Work) -> Iterator[str]:
    """A workload that no device of its pool may ever host; an empty pool may yet get one."""
    if not homes:
        return
    unfit = ColocationClass.INFERENCE if isinstance(work, TrainingJob) else ColocationClass.TRAINING
    allowed = {gpu_type for colocation, gpu_type in homes if colocation is not unfit}
    if not allowed:
        yield f"every device in the pool of {policy.name} is for {unfit.value} only, so none could host {work.id}"
    elif work.gpu_types_allowed and not allowed & set(work.gpu_types_allowed):
        wanted = ", ".join(work.gpu_types_allowed)
        yield f"the pool of {policy.name} has {', '.join(sorted(allowed))}, and {work.id} may only run on {wanted}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = f" and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else ""
    return ", ".join(listed[:SHOWN_MAX]) + rest


LISTED_MAX = 20
"""Devices that an event names; it tells how many there are."""


@record
class PolicyLine:
    """A policy that decides on anything: its chain, which planner of it made what stands, its controller, how much it
    owns, and why its part of the standing plan was left as it stood, if it was.
    """

    policy: str
    planners: tuple[str, ...]
    planner: str
    governor: str
    devices: int
    workloads: int
    held: tuple[str, ...]


def standing_of(session: Session, target: Target) -> StandingOwners:
    if target.plan is None:
        return StandingOwners.of((), None)
    planner, parts = plans.makers(session, target.plan)
    return StandingOwners.of(target.assignments, planner, parts)


def policy_lines(
    owners: Owners, standing: StandingOwners, devices: Iterable[str], works: Iterable[str]
) -> tuple[PolicyLine, ...]:
    """Every policy that decides on anything, with how much of the fleet and of the workloads."""
    counts = Counter(owners.policy_at(DeviceId(device)).name for device in devices)
    hosted = Counter(owners.policy_for(WorkloadId(workload)).name for workload in works)
    held = {part.policy: part.held for part in standing.parts}
    return tuple(
        PolicyLine(
            policy=policy.name,
            planners=policy.planners,
            planner=standing.planner_of(policy),
            governor=policy.governor,
            devices=counts[policy.name],
            workloads=hosted[policy.name],
            held=held.get(policy.name, ()),
        )
        for policy in owners.policies
    )


def note_moves(session: Session, before: Estate, after: Estate, deed: Deed) -> None:
    """Write down which devices changed hands, or whose owner is another planner or controller now."""
    old, new = before.owners, after.owners
    moved: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for device in after.devices:
        was, now = old.policy_at(device.id), new.policy_at(device.id)
        if _words(was) != _words(now):
            moved[now.name, _words(was), _words(now)].append(device.id)
    for (policy, was_said, now_said), devices in sorted(moved.items()):
        facts: dict[str, Plain] = {
            "owned_before": was_said,
            "owns_now": now_said,
            "devices": len(devices),
            "listed": list[Plain](sorted(devices)[:LISTED_MAX]),
        }
        deed.note(session, "ownership.moved", f"policies/{policy}", facts)


def misgoverned(session: Session, owners: Owners) -> tuple[WorkloadId, ...]:
    """AskedTogether workloads on devices whose node was told another controller than their policy names now."""
    told = targets.governors_told(session)
    wrong = (item for item in told if owners.policy_at(DeviceId(item.device)).governor != item.governor)
    return tuple(sorted({WorkloadId(item.workload) for item in wrong}))


def _words(policy: Policy) -> str:
    return f"{policy.name} (planners {', '.join(policy.planners)}; governor {policy.governor})"
