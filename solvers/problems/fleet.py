"""The fleet as a set of bins: what is free on each device, who may go where, and where a replica fits best.

Owns the hard placement rules (usable devices, taints, colocation class, shares, memory, clients, anti-affinity, avoided
neighbours, their pressure, dedication, power caps, project quotas) as vectors over devices, so that one search over a
thousand devices costs microseconds. It refuses to choose configurations: it is told share, memory and power and answers
with a device or with the rule that left none.

Conventions shared with the verifier only through documentation: a device draws min(its power limit, idle + dynamic);
every known device counts its idle power in its power domains; half of a device's MPS clients stay free so that a
replica can be replaced without a gap; a MIG slice counts by its part of the GPU's memory for price, power and quota; a
GPU that is cut into slices hosts nothing itself; a device that nobody rented yet draws nothing until it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.domain.device import ColocationClass, Device, DeviceMode, GpuType, Node, PowerScope, Taint, is_offered
from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, ProjectName, WorkloadId
from solvers.domain.plan import DeviceSetting
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import AntiAffinity, WorkloadKind
from solvers.problems.choice import UNKNOWN, Press
from solvers.problems.needs import Need

Places = NDArray[np.intp]
"""Devices by number, rising."""
EPSILON = 1e-9


@dataclass(slots=True)
class PowerDomains:
    """One kind of power domain: index of each device's domain (-1: no cap) and what is left in each."""

    of_device: NDArray[np.intp]
    headroom_w: Floats

    def book(self, device: int, change_w: float) -> None:
        """A device draws so much more."""
        domain = self.of_device[device]
        if domain >= 0:
            self.headroom_w[domain] -= change_w

    def within(self, change_w: Floats, places: NDArray[np.intp]) -> Flags:
        """Which of these devices may each, alone, draw so much more."""
        domain = self.of_device[places]
        left = np.where(domain >= 0, self.headroom_w[domain], np.inf)
        return np.asarray(change_w <= left + EPSILON)


def under(snapshot: Snapshot, devices: Sequence[Device]) -> dict[tuple[PowerScope, str], Places]:
    """The devices, by place in the list, of every power domain that has a cap."""
    nodes = snapshot.nodes_by_id()
    members: dict[tuple[PowerScope, str], list[int]] = {(cap.scope, cap.subject): [] for cap in snapshot.power_caps}
    for place, device in enumerate(devices if members else ()):
        for scope, subject in (
            (PowerScope.DEVICE, device.id),
            (PowerScope.NODE, device.node),
            (PowerScope.RACK, nodes[device.node].rack),
            (PowerScope.CLUSTER, snapshot.cluster),
        ):
            if (scope, subject) in members:
                members[scope, subject].append(place)
    return {domain: np.array(places, dtype=np.intp) for domain, places in members.items()}


def power_domains(snapshot: Snapshot, devices: Sequence[Device], drawn_w: Floats) -> list[PowerDomains]:
    """Every kind of domain that has a cap, with each device drawing this much already."""
    kinds, inside = list[PowerDomains](), under(snapshot, devices)
    for scope in PowerScope:
        caps = {cap.subject: cap.limit_w for cap in snapshot.power_caps if cap.scope is scope}
        if not caps:
            continue
        of_device = np.full(len(devices), -1, dtype=np.intp)
        for index, subject in enumerate(sorted(caps)):
            of_device[inside[scope, subject]] = index
        headroom_w = np.array([caps[subject] for subject in sorted(caps)], dtype=np.float64)
        capped = of_device >= 0
        np.subtract.at(headroom_w, of_device[capped], drawn_w[capped])
        kinds.append(PowerDomains(of_device=of_device, headroom_w=headroom_w))
    return kinds


@dataclass(slots=True)
class CompanyBooks:
    pressure: Floats
    unknown: NDArray[np.intp]
    most: Floats
    """Two rows: the highest sum of pressures that everybody present bears while all are known, and beside unknown ones.
    """
    members: dict[int, list[Press]] = field(default_factory=dict)

    @staticmethod
    def of(devices: int) -> CompanyBooks:
        return CompanyBooks(np.zeros(devices), np.zeros(devices, dtype=np.intp), np.full((2, devices), math.inf))

    def book(self, device: int, press: Press, sign: int) -> None:
        """Someone comes (1) or goes (-1)."""
        present = self.members.setdefault(device, [])
        if sign > 0:
            present.append(press)
        else:
            present.remove(press)
        # Summed anew, so that what comes and goes leaves no dust.
        self.pressure[device] = math.fsum(item.pressure or 0.0 for item in present)
        self.unknown[device] = sum(item.pressure is None for item in present)
        known = [(item, item.pressure) for item in present if item.pressure is not None]
        self.most[0, device] = min((item.bears + own for item, own in known), default=math.inf)
        self.most[1, device] = min((item.bears_beside_unknown + own for item, own in known), default=math.inf)

    def bear(self, press: Press, places: NDArray[np.intp]) -> Flags:
        """At which of these devices it would slow nobody more than planned, nor be slowed so."""
        pressure, beside_unknown = self.pressure[places], self.unknown[places] > 0
        own = np.where(beside_unknown, press.bears_beside_unknown, press.bears)
        most = np.where(beside_unknown | (press.pressure is None), self.most[1, places], self.most[0, places])
        return np.asarray((pressure + (press.pressure or 0.0) <= most + EPSILON) & (pressure <= own + EPSILON))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Devices that are interchangeable to a configuration: same type, size, price and clock."""

    gpu_type: GpuTypeName
    usd_per_h: float
    """Of the device: a MIG slice has its part of the GPU's price."""
    expected_usd_per_h: float
    """The same with what its interruptions are expected to cost; more for one that is slower than its type."""
    memory_mib: int
    sm_part: float
    """SMs of the device over SMs of a whole GPU."""
    gpu_part: float
    """Part of a GPU for price, power and quota: 1 but for MIG slices."""
    exclusive: bool
    """Only one replica at a time."""
    clock_mhz_sm: int
    idle_w: float
    limit_w: float
    """Highest power the device may draw."""
    clock_lowered: bool = False
    """Whether it runs below its highest clock."""
    unlimited: bool = False
    """Whether the settings that hold put it in time slices: then shares do not divide it, and several may have it
    whole. A planner that does not say so itself gives a device in time slices to one replica at a time.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one replica takes on one device."""

    workload: WorkloadId
    project: ProjectName
    device: int
    share_pct: int
    memory_mib: int
    power_w: float
    dedicated: bool = False
    press: Press = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomSearch:
    """What is looked for: room of this size, on devices of this class (None: any), preferring failure domains not in
    `domains_used`.
    """

    need: Need
    share_pct: int
    memory_mib: int
    power_w: float
    device_class: int | None = None
    domains_used: frozenset[int] = frozenset()
    press: Press = UNKNOWN


@dataclass(slots=True)
class Fleet:
    """Mutable books of one planning run; never leaves the planner."""

    devices: list[Device]
    classes: list[DeviceClass]
    class_of: NDArray[np.intp]
    usable: Flags
    share_free: Floats
    memory_free: Floats
    clients_free: NDArray[np.intp]
    occupants: NDArray[np.intp]
    closed: NDArray[np.intp]
    """How many dedicated replicas stand on the device."""
    dynamic_w: Floats
    idle_w: Floats
    limit_w: Floats
    failure_domain: NDArray[np.intp]
    unrented: Flags
    """Offered GPUs: they draw nothing until they are used."""
    domains: list[PowerDomains]
    company: CompanyBooks
    foes: dict[WorkloadId, set[WorkloadId]]
    quota_left: dict[ProjectName, float]
    taints: list[frozenset[Taint]]
    index: dict[DeviceId, int]
    hosts: dict[WorkloadId, dict[int, int]] = field(default_factory=dict)
    _eligible: dict[tuple[object, ...], Flags] = field(default_factory=dict)
    _of_class: dict[int | None, Places] = field(default_factory=dict)

    def put(self, seat: Seat) -> None:
        """Take the seat's room, whether or not it fits."""
        self._book(seat, 1)

    def lift(self, seat: Seat) -> None:
        self._book(seat, -1)

    def _book(self, seat: Seat, sign: int) -> None:
        device = seat.device
        before = self._draw(device)
        self.share_free[device] -= sign * seat.share_pct
        self.memory_free[device] -= sign * seat.memory_mib
        self.clients_free[device] -= sign
        self.occupants[device] += sign
        self.closed[device] += sign * seat.dedicated
        self.dynamic_w[device] += sign * seat.power_w
        change = self._draw(device) - before
        for domains in self.domains:
            domains.book(device, change)
        self.company.book(device, seat.press, sign)
        if seat.project in self.quota_left:
            self.quota_left[seat.project] -= sign * self.gpus(device, seat.share_pct)
        held = self.hosts.setdefault(seat.workload, {})
        held[device] = held.get(device, 0) + sign
        if not held[device]:
            del held[device]

    def _draw(self, device: int) -> float:
        if self.unrented[device] and not self.occupants[device]:
            return 0.0
        return float(min(self.limit_w[device], self.idle_w[device] + self.dynamic_w[device]))

    def class_at(self, device: int) -> DeviceClass:
        return self.classes[int(self.class_of[device])]

    def gpus(self, device: int, share_pct: int) -> float:
        """Part of a whole GPU, for quotas."""
        return self.class_at(device).gpu_part * share_pct / 100

    def eligible(self, need: Need) -> Flags:
        """Devices this workload may ever use, by type, taints, colocation class and health."""
        key = (need.kind, need.tolerations, need.gpu_types_allowed)
        if key not in self._eligible:
            tolerated = set(need.tolerations)
            unfit = ColocationClass.INFERENCE if need.kind is WorkloadKind.JOB else ColocationClass.TRAINING
            allowed = set(need.gpu_types_allowed)
            fit = [
                taints <= tolerated and device.colocation is not unfit and (not allowed or device.gpu_type in allowed)
                for device, taints in zip(self.devices, self.taints, strict=True)
            ]
            if need.kind is WorkloadKind.JOB:
                # How a job slows others without limits nobody knows.
                fit = [each and not self.class_at(number).unlimited for number, each in enumerate(fit)]
            self._eligible[key] = np.asarray(self.usable & np.array(fit, dtype=bool))
        return self._eligible[key]

    def domains_open(self, need: Need, classes: NDArray[np.intp]) -> int:
        """Failure domains of devices of these classes that this workload may ever use."""
        return len(np.unique(self.failure_domain[self.eligible(need) & np.isin(self.class_of, classes)]))

    def companions(self, need: Need, places: Places) -> Flags:
        """Which of these devices' present occupants let this workload in."""
        allowed = self.closed[places] == 0
        shunned = set(self.foes.get(need.workload, ()))
        if need.affinity.anti_affinity is AntiAffinity.HARD:
            shunned.add(need.workload)
        for workload in shunned:
            held = self.hosts.get(workload)
            if held:
                allowed &= ~_among(places, held)
        if need.affinity.dedicated:
            allowed &= self.occupants[places] == 0
        return np.asarray(allowed)

    def fits(self, search: RoomSearch, device: int) -> bool:
        """Whether this very device has room under every rule."""
        return isinstance(self._sieve(search, np.array([device], dtype=np.intp)), np.ndarray)

    def room(self, search: RoomSearch) -> Places | ReasonCode:
        """Every device with room under every rule, or the rule that ruled out the last one."""
        return self._sieve(search, self._members(search.device_class))

    def find(self, search: RoomSearch) -> int | ReasonCode:
        """The device that fits best (least share left over), or the rule that ruled out the last one."""
        candidates = self.room(search)
        if isinstance(candidates, ReasonCode):
            return candidates
        score = self.share_free[candidates] + self.memory_free[candidates] / 1e9
        held = self.hosts.get(search.need.workload, {})
        if held and search.need.affinity.anti_affinity is AntiAffinity.SOFT:
            score += 1e4 * np.isin(candidates, list(held))
        if search.domains_used:
            score += 1e6 * np.isin(self.failure_domain[candidates], list(search.domains_used))
        return int(candidates[np.argmin(score)])

    def _members(self, device_class: int | None) -> Places:
        if device_class not in self._of_class:
            chosen = np.ones(len(self.devices), dtype=bool) if device_class is None else self.class_of == device_class
            self._of_class[device_class] = np.flatnonzero(chosen)
        return self._of_class[device_class]

    def open_to(self, need: Need, domains_shunned: frozenset[int], device_class: int) -> Places:
        """Devices of a class that may take this workload whatever its size, outside these failure domains."""
        places = self._members(device_class)
        fit = self.eligible(need)[places] & (self.clients_free[places] > 0) & self.companions(need, places)
        if domains_shunned:
            fit &= ~np.isin(self.failure_domain[places], list(domains_shunned))
        return np.asarray(places[fit])

    def replicas_bound(self, need: Need, devices: Places, sizes: tuple[Floats, Floats]) -> Floats:
        """Upper bound on the replicas of each size (share, memory) that open devices take, power aside."""
        share_pct, memory_mib = sizes
        share, memory = np.sort(self.share_free[devices]), np.sort(self.memory_free[devices])
        by_share = len(devices) - np.searchsorted(share, share_pct - EPSILON)
        by_memory = len(devices) - np.searchsorted(memory, memory_mib - EPSILON)
        one_each = np.minimum(by_share, by_memory).astype(np.float64)
        if need.affinity.dedicated or need.affinity.anti_affinity is AntiAffinity.HARD:
            return one_each
        stacked = np.minimum(np.sum(np.maximum(share, 0)) / share_pct, np.sum(np.maximum(memory, 0)) / memory_mib)
        clients = float(self.clients_free[devices].sum())
        return np.where(one_each > 0, np.minimum(np.floor(stacked + EPSILON), clients), 0.0)

    def _sieve(self, search: RoomSearch, places: Places) -> Places | ReasonCode:
        """Those of these devices that pass every rule, or the rule that ruled out the last one."""
        stages: tuple[tuple[ReasonCode, Callable[[Places], Flags]], ...] = (
            (ReasonCode.NO_DEVICE_OF_TYPE, lambda at: self.usable[at]),
            (ReasonCode.TAINTED, lambda at: self.eligible(search.need)[at]),
            (ReasonCode.NO_SHARE_LEFT, lambda at: self.share_free[at] >= search.share_pct - EPSILON),
            (ReasonCode.NO_MEMORY_LEFT, lambda at: self.memory_free[at] >= search.memory_mib - EPSILON),
            (ReasonCode.ANTI_AFFINITY, lambda at: self.companions(search.need, at)),
            (ReasonCode.CLIENTS_MAX, lambda at: self.clients_free[at] > 0),
            (ReasonCode.NEIGHBOURS_PRESSURE, lambda at: self.company.bear(search.press, at)),
            (ReasonCode.POWER_CAP, lambda at: self._within_power(search.power_w, at)),
        )
        for code, stage in stages:
            places = places[stage(places)]
            if not len(places):
                return code
        return places

    def _within_power(self, power_w: float, places: Places) -> Flags:
        fine = np.ones(len(places), dtype=bool)
        if not self.domains:
            return fine
        limit_w, drawn_w = self.limit_w[places], self.idle_w[places] + self.dynamic_w[places]
        before = np.minimum(limit_w, drawn_w)
        before[self.unrented[places] & (self.occupants[places] == 0)] = 0.0
        change = np.minimum(limit_w, drawn_w + power_w) - before
        for domains in self.domains:
            fine &= domains.within(change, places)
        return fine


def _among(places: Places, held: Mapping[int, int]) -> Flags:
    if len(places) == 1:
        return np.array([int(places[0]) in held], dtype=bool)
    return np.isin(places, list(held))


def silent_nodes(snapshot: Snapshot) -> set[NodeId]:
    """Nodes that never reported or not for longer than the policy bears."""
    limit_s = snapshot.policy.device_silent_after_s
    heard = {status.node for status in snapshot.node_statuses if status.age_s is not None and status.age_s <= limit_s}
    return {node.id for node in snapshot.nodes} - heard


def open_fleet(snapshot: Snapshot, held: dict[DeviceId, DeviceSetting]) -> Fleet:
    """Empty books of a snapshot's devices. `held` are the settings that must stay as they are."""
    types, nodes = snapshot.gpu_types_by_name(), snapshot.nodes_by_id()
    devices = sorted(
        (item for item in snapshot.devices if item.gpu_type in types and item.node in nodes), key=lambda item: item.id
    )
    classes = [_class_of(snapshot, item, nodes[item.node], types[item.gpu_type], held.get(item.id)) for item in devices]
    dearer = {reading.device: reading.price_factor for reading in snapshot.device_telemetry if reading.slow_factor > 1}
    for index, item in enumerate(devices if dearer else ()):
        expected = classes[index].expected_usd_per_h * dearer.get(item.id, 1.0)
        classes[index] = replace(classes[index], expected_usd_per_h=expected)
    distinct = sorted(set(classes), key=lambda item: (item.gpu_type, item.usd_per_h, repr(item)))
    position = {item: index for index, item in enumerate(distinct)}
    names = sorted({node.failure_domain for node in snapshot.nodes})
    failure_domains = {name: index for index, name in enumerate(names)}
    idle_w = np.array([item.idle_w for item in classes], dtype=np.float64)
    parents = {item.mig.parent for item in devices if item.mig is not None}
    idle_w[[index for index, item in enumerate(devices) if item.id in parents]] = 0.0
    unrented = np.array([is_offered(item.node) for item in devices], dtype=bool)
    margin_mib = snapshot.policy.memory_margin_mib
    each = list(zip(devices, classes, strict=True))
    return Fleet(
        devices=devices,
        classes=distinct,
        class_of=np.array([position[item] for item in classes], dtype=np.intp),
        usable=np.array(_usable(snapshot, devices, parents), dtype=bool),
        share_free=np.array(
            [100.0 * (_clients(snapshot, types[item.gpu_type], kind) if kind.unlimited else 1) for item, kind in each]
        ),
        memory_free=np.array([float(item.memory_mib - margin_mib) for item in devices], dtype=np.float64),
        clients_free=np.array(
            [_clients(snapshot, types[item.gpu_type], kind) for item, kind in each],
            dtype=np.intp,
        ),
        occupants=np.zeros(len(devices), dtype=np.intp),
        closed=np.zeros(len(devices), dtype=np.intp),
        dynamic_w=np.zeros(len(devices)),
        idle_w=idle_w,
        limit_w=np.array([item.limit_w for item in classes], dtype=np.float64),
        failure_domain=np.array([failure_domains[nodes[item.node].failure_domain] for item in devices], dtype=np.intp),
        unrented=unrented,
        domains=power_domains(snapshot, devices, np.where(unrented, 0.0, idle_w)),
        company=CompanyBooks.of(len(devices)),
        foes=_foes(snapshot),
        quota_left={
            project.name: project.quota_gpus for project in snapshot.projects if project.quota_gpus is not None
        },
        taints=[frozenset((*item.taints, *nodes[item.node].taints)) for item in devices],
        index={item.id: index for index, item in enumerate(devices)},
    )


def _class_of(
    snapshot: Snapshot, device: Device, node: Node, gpu_type: GpuType, held: DeviceSetting | None
) -> DeviceClass:
    part, row = gpu_type.part_of(device), snapshot.policy.price_row(gpu_type, node)
    price = 0.0 if row is None else row.usd_per_h
    clock = (held.clock_mhz_sm if held is not None else None) or gpu_type.clock_mhz_sm_max
    unlimited = held is not None and held.mode is DeviceMode.TIME_SLICED
    shared = device.mode is DeviceMode.MPS and (held is None or held.mode is DeviceMode.MPS)
    interruptions = 0.0 if row is None else row.interruptions_per_h * snapshot.policy.interruption_usd
    return DeviceClass(
        gpu_type=gpu_type.name,
        usd_per_h=price * part,
        expected_usd_per_h=(price + interruptions) * part,
        memory_mib=device.memory_mib,
        sm_part=device.sm_count / gpu_type.sm_count if device.mig is not None else 1.0,
        gpu_part=part,
        exclusive=not (shared or unlimited),
        clock_mhz_sm=clock,
        idle_w=gpu_type.idle_w * part,
        limit_w=gpu_type.power_limit_w_max * part,
        clock_lowered=clock < gpu_type.clock_mhz_sm_max,
        unlimited=unlimited,
    )


def _clients(snapshot: Snapshot, gpu_type: GpuType, kind: DeviceClass) -> int:
    if kind.exclusive:
        return 1
    room = int(gpu_type.mps_clients_max * kind.sm_part) // 2
    return max(1, min(snapshot.policy.replicas_per_device_max, room))


def _usable(snapshot: Snapshot, devices: list[Device], parents: set[DeviceId]) -> list[bool]:
    nodes, silent = snapshot.nodes_by_id(), silent_nodes(snapshot)
    sick = {reading.device for reading in snapshot.device_telemetry if not reading.healthy}
    return [
        item.schedulable
        and nodes[item.node].schedulable
        and item.node not in silent
        and item.id not in sick
        and item.id not in parents
        for item in devices
    ]


def _foes(snapshot: Snapshot) -> dict[WorkloadId, set[WorkloadId]]:
    foes: dict[WorkloadId, set[WorkloadId]] = {}
    for service in snapshot.services:
        for other in service.affinity.avoid_services:
            foes.setdefault(WorkloadId(service.id), set()).add(WorkloadId(other))
            foes.setdefault(WorkloadId(other), set()).add(WorkloadId(service.id))
    return foes
