"""Snapshot and plan side by side, with the look-ups that checks need, and the findings that checks make of them.

Here is judged only who decides where, whether a replica of the plan stands already exactly so, whether it is pinned
(stands, and may not move), and how severe a finding is. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

from solvers.domain.codec import picture_digest
from solvers.domain.device import Device, DeviceMode, GpuType, Node, PriceRow, is_offered
from solvers.domain.evidence import Fact, Finding, FindingCode, Severity
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.verify.proof import ColumnProof

# --- Whose device it is and whose workload, read from the snapshot again
#
# A board has one owner with all its slices, the first by name of those whose pool means any of them; all else is the
# default policy's.


def read_owners(snapshot: Snapshot) -> tuple[dict[str, Policy], dict[str, Policy]]:
    """Policies by device and by workload, the default one left out."""
    pools = {policy.name: policy for policy in snapshot.policies if policy.pool is not None}
    pools.pop(snapshot.policy.name, None)
    nodes = {node.id: node for node in snapshot.nodes}
    boards: dict[str, Policy] = {}
    for name in sorted(pools, reverse=True):
        for device in snapshot.devices:
            if _means(pools[name], device, nodes.get(device.node)):
                boards[_board(device)] = pools[name]
    devices = {str(item.id): boards[_board(item)] for item in snapshot.devices if _board(item) in boards}
    named = {str(work.id): work.policy for work in snapshot.works if work.policy is not None}
    return devices, {work: pools[policy] for work, policy in named.items() if policy in pools}


def _board(device: Device) -> str:
    return device.id if device.mig is None else device.mig.parent


def _means(policy: Policy, device: Device, node: Node | None) -> bool:
    pool = policy.pool
    if pool is None:
        return False
    labels = set() if node is None else {(label.key, label.value) for label in node.labels}
    named = ((device.id, pool.devices), (device.node, pool.nodes), (device.gpu_type, pool.gpu_types))
    return all(not names or subject in names for subject, names in named) and all(
        (label.key, label.value) in labels for label in pool.labels
    )


class Picture:
    """Everything a check may look at, none of it to be changed."""

    def __init__(self, handed_in: Snapshot, plan: Plan, movable: Iterable[WorkloadId]) -> None:
        # With every offered GPU standing ready; the digest is of what was handed in.
        self.snapshot, self.snapshot_digest = handed_in.with_offers(), picture_digest(handed_in)
        snapshot = self.snapshot
        self.plan, self.movable = plan, frozenset(movable)
        self.standing = {item.replica: item for item in snapshot.target.assignments}
        self.devices = snapshot.devices_by_id()
        self.readings = {item.device: item for item in snapshot.device_telemetry}
        # GPUs cut into slices host nothing themselves.
        self.parents = frozenset(item.mig.parent for item in snapshot.devices if item.mig is not None)
        self.nodes, self.types = snapshot.nodes_by_id(), snapshot.gpu_types_by_name()
        self.services = {str(item.id): item for item in snapshot.services}
        self.jobs = {str(item.id): item for item in snapshot.jobs}
        self.tasks = {str(item.id): item for item in snapshot.tasks}
        self.models = snapshot.models_by_name()
        self.demands = {str(item.service): item for item in snapshot.demands}
        self.profiles = snapshot.profiles_by_key()
        self.token_profiles = {(item.model, item.gpu_type): item for item in snapshot.token_profiles}
        self.settings = {setting.device: setting for setting in plan.settings}
        # Of devices, known ones only.
        there = (item for item in plan.assignments if item.device in self.devices)
        self.on_device = dict(grouped(there, lambda item: item.device))
        self.of_workload = dict(grouped(plan.assignments, lambda item: item.workload))
        # Declared shortage by workload.
        self.short_rps: dict[str, float] = {}
        for unplaced in plan.unplaced:
            short_rps = self.short_rps.get(unplaced.workload, 0.0)
            self.short_rps[unplaced.workload] = short_rps + max(0.0, unplaced.rate_rps_short)
        # Policies by device and by workload that are not the default one.
        self.owners, self.wishers = read_owners(snapshot)
        self._proofs: dict[tuple[ModelName, GpuTypeName], ColumnProof | None] = {}
        self._company: dict[DeviceId, tuple[float, int]] = {}

    def policy_at(self, device: str) -> Policy:
        return self.owners.get(device, self.snapshot.policy)

    def policy_for(self, workload: str) -> Policy:
        return self.wishers.get(workload, self.snapshot.policy)

    def known(self, kind: WorkloadKind, workload: str) -> bool:
        if kind is WorkloadKind.SERVICE:
            return workload in self.services
        return workload in (self.jobs if kind is WorkloadKind.JOB else self.tasks)

    def stands(self, item: Assignment) -> bool:
        """Whether the standing target has this replica with the very same knobs."""
        before = self.standing.get(item.replica)
        return before is not None and knobs(before) == knobs(item)

    def pinned(self, item: Assignment) -> bool:
        """Whether the plan had no say in this replica."""
        return item.workload not in self.movable and self.stands(item)

    def host(self, item: Assignment) -> tuple[Device, GpuType, Node] | None:
        """Device, type and node of a replica; None when any of them is unknown."""
        device = self.devices.get(item.device)
        if device is None or device.gpu_type not in self.types or device.node not in self.nodes:
            return None
        return device, self.types[device.gpu_type], self.nodes[device.node]

    def clock_mhz_sm(self, device: Device) -> int:
        setting = self.settings.get(device.id)
        if setting is not None and setting.clock_mhz_sm is not None:
            return setting.clock_mhz_sm
        return self.types[device.gpu_type].clocks_mhz_sm[-1]

    def proof(self, item: Assignment, device: Device) -> ColumnProof | None:
        """What was measured of a replica's model on a device's type."""
        key = (item.model, device.gpu_type)
        if key not in self._proofs:
            profile = self.profiles.get(key)
            self._proofs[key] = None if profile is None else ColumnProof.of(profile)
        return self._proofs[key]

    def mode(self, device: Device) -> DeviceMode:
        """How replicas share a device: by the plan's setting, else as it is."""
        setting = self.settings.get(device.id)
        return device.mode if setting is None else setting.mode

    def interference(self, item: Assignment, device: Device) -> Interference | None:
        """How a replica presses and suffers; None where nobody knows, as of training jobs. Without limits on shares
        only what was measured without them counts.
        """
        profile = None if item.kind is WorkloadKind.JOB else self.profiles.get((item.model, device.gpu_type))
        if profile is None:
            return None
        return profile.unlimited if self.mode(device) is DeviceMode.TIME_SLICED else profile.interference

    def pressure(self, item: Assignment, device: Device) -> float:
        """What a replica presses its neighbours with, as far as that is known."""
        known = self.interference(item, device)
        share = max(0.0, self.share_of_gpu_pct(item, device))
        return 0.0 if known is None else known.pressure * float((share / 100) ** known.exponent)

    def company(self, device: Device) -> tuple[float, int]:
        """The sum of the known pressures on a device, and how many replicas on it press nobody knows how."""
        if device.id not in self._company:
            items = self.on_device.get(device.id, [])
            unknown = sum(self.interference(item, device) is None for item in items)
            self._company[device.id] = sum(self.pressure(item, device) for item in items), unknown
        return self._company[device.id]

    def price_usd_per_h(self, device: Device) -> float:
        """What the device's owner is billed for an hour: a MIG slice pays by its part of the memory."""
        row = self._price_row(device)
        return 0.0 if row is None else row.usd_per_h * self.gpu_part(device)

    def expected_usd_per_h(self, device: Device) -> float:
        """The same with what its interruptions are expected to cost; more for one that is slower than its type."""
        row = self._price_row(device)
        if row is None:
            return 0.0
        whole = row.usd_per_h + row.interruptions_per_h * self.policy_at(device.id).interruption_usd
        reading = self.readings.get(device.id)
        return whole * self.gpu_part(device) * (1.0 if reading is None else reading.price_factor)

    def _price_row(self, device: Device) -> PriceRow | None:
        gpu_type, node = self.types[device.gpu_type], self.nodes[device.node]
        kind = self.policy_at(device.id).price_kind or node.price_kind
        rows = {row.region: row for row in gpu_type.prices if row.kind is kind}
        return rows.get(node.region) or rows.get("default")

    def draws_power(self, device: Device) -> bool:
        """Whether a device counts in power domains: a GPU cut into slices is counted by its slices, and one that nobody
        rented draws nothing until it is used.
        """
        if device.gpu_type not in self.types or device.id in self.parents:
            return False
        return device.id in self.on_device or not is_offered(device.node)

    def gpu_part(self, device: Device) -> float:
        """Part of a whole GPU, for price, power and quota."""
        whole_mib = self.types[device.gpu_type].memory_mib
        return min(device.memory_mib, whole_mib) / whole_mib if device.mig is not None else 1.0

    def share_of_gpu_pct(self, item: Assignment, device: Device) -> float:
        """Share in percent of a whole GPU's SMs, which is what profiles measure."""
        part = device.sm_count / self.types[device.gpu_type].sm_count if device.mig is not None else 1.0
        return item.share_pct_sm * part


def knobs(item: Assignment) -> tuple[object, ...]:
    """What an agent would have to do something about."""
    return (
        item.kind,
        item.workload,
        item.model,
        item.device,
        item.share_pct_sm,
        item.memory_mib_limit,
        item.batch,
        item.envelope,
    )


# --- Findings: how severe, and whether they block
#
# A finding is fatal unless everything it is about had to stay as it is (pinned): a plan is not to blame for what it may
# not touch. Promises (latency, capacity, memory for the model) have one more excuse: a replica that stands already may
# stay although it can no longer be shown to keep its promise, if the plan says so by listing its workload among the
# unplaced.


def is_fatal(findings: Iterable[Finding]) -> bool:
    return any(item.severity is Severity.FATAL for item in findings)


def fatal(code: FindingCode, subject: str, **facts: float | str) -> Finding:
    return _finding(code, subject, Severity.FATAL, facts)


def about(
    picture: Picture, code: FindingCode, subject: str, involved: Iterable[Assignment], **facts: float | str
) -> Finding:
    """A finding about these assignments: a warning when all of them are pinned."""
    excused = all(picture.pinned(item) for item in involved)
    return _finding(code, subject, Severity.WARNING if excused else Severity.FATAL, facts)


def promise(picture: Picture, code: FindingCode, item: Assignment, **facts: float | str) -> Finding:
    """A finding about one replica's promise: also a warning when the replica stands and the plan declares its workload
    short.
    """
    declared = picture.stands(item) and item.workload in picture.short_rps
    excused = picture.pinned(item) or declared
    return _finding(code, item.replica, Severity.WARNING if excused else Severity.FATAL, facts)


def warning(code: FindingCode, subject: str, **facts: float | str) -> Finding:
    """What its owner should know, and has chosen."""
    return _finding(code, subject, Severity.WARNING, facts)


def shortage(picture: Picture, code: FindingCode, workload: str, **facts: float | str) -> Finding:
    """A finding about what a workload lacks: a warning when the plan declares it, fatal when it is silent."""
    declared = workload in picture.short_rps
    return _finding(code, workload, Severity.WARNING if declared else Severity.FATAL, facts)


def _finding(code: FindingCode, subject: str, severity: Severity, facts: dict[str, float | str]) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        subject=subject,
        facts=tuple(Fact(name=name, value=number) for name, number in sorted(facts.items())),
    )
