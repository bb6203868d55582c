"""Fleets in short form become nodes and devices, with GPU types and prices of the built-in library.

Owns names (`<name>-0`, `<name>-0.gpu-0`), prices that a file overrides, and MIG slices. It refuses GPU types that the
simulated hardware does not know: a world has no unknown hardware.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.library import load_gpu_types
from lab.arena.forms_world import CapForm, FleetForm, OfferForm, WorldForm
from lab.arena.kinds import Context
from solvers.domain.device import Device, GpuType, MigSlice, Node, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId
from solvers.domain.offer import Offer
from solvers.sim.scenario import ScenarioFleet
from solvers.sim.truth.truth import gpu_truth
from solvers.sim.world.ports import CLUSTER


def fleet_of(form: WorldForm, context: Context) -> ScenarioFleet:
    """The fleet that a file describes. Raises InputError."""
    types: dict[str, GpuType] = {}
    nodes: list[Node] = []
    devices: list[Device] = []
    names: set[str] = set()
    for index, entry in enumerate(form.fleet):
        where = ("fleet", index)
        name = entry.name or entry.gpu_type
        if name in names:
            raise context.refusal((*where, "name"), f"another entry's nodes are called {name} too; give a name")
        names.add(name)
        known = _type(entry.gpu_type, types, (*where, "gpu_type"), context)
        with context.document.placing(*where):
            types[entry.gpu_type] = _priced(known, entry, where, context)
            for node, its in _nodes(entry, name, known, where, context):
                nodes.append(node)
                devices.extend(its)
    offers = tuple(_offer(each, types, index, context) for index, each in enumerate(form.offers))
    with context.document.placing():
        bare = ScenarioFleet(
            gpu_types=tuple(types[name] for name in sorted(types)), nodes=tuple(nodes), devices=tuple(devices)
        )
    caps = [cap for index, each in enumerate(form.power_caps) for cap in _caps(each, bare, index, context)]
    with context.document.placing():
        return replace(bare, power_caps=tuple(caps), offers=offers)


def _type(name: str, types: dict[str, GpuType], where: Sequence[str | int], context: Context) -> GpuType:
    if name in types:
        return types[name]
    library = {each.name: each for each in load_gpu_types()}
    known = sorted(each for each in library if gpu_truth(each) is not None)
    if name not in known:
        raise context.refusal(where, f"no GPU type {name}; those with simulated hardware are {', '.join(known)}")
    return library[GpuTypeName(name)]


def _priced(known: GpuType, entry: FleetForm, where: Sequence[str | int], context: Context) -> GpuType:
    if entry.usd_per_h is None:
        if known.price_row(entry.price_kind, entry.region) is None:
            raise context.refusal(
                (*where, "gpu_type"), f"no {entry.price_kind.value} price of {known.name} is known; say usd_per_h"
            )
        return known
    row = PriceRow(
        kind=entry.price_kind,
        usd_per_h=entry.usd_per_h,
        region=entry.region,
        interruptions_per_h=entry.interruptions_per_h,
        source="scenario",
    )
    return _with_price(known, row, (*where, "usd_per_h"), context)


def _with_price(known: GpuType, row: PriceRow, where: Sequence[str | int], context: Context) -> GpuType:
    standing = [each for each in known.prices if (each.kind, each.region) == (row.kind, row.region)]
    if any(each.source == "scenario" and each != row for each in standing):
        raise context.refusal(
            where, f"another entry has another {row.kind.value} price of {known.name}; use a region of its own"
        )
    others = tuple(each for each in known.prices if each not in standing)
    return replace(known, prices=(*others, row))


def _nodes(
    entry: FleetForm, name: str, known: GpuType, where: Sequence[str | int], context: Context
) -> Iterator[tuple[Node, list[Device]]]:
    digits = len(str(entry.nodes - 1))
    for number in range(entry.nodes):
        rack = entry.rack or f"{name}-rack"
        if entry.nodes_per_rack is not None:
            rack = f"{rack}-{number // entry.nodes_per_rack}"
        node = Node(
            id=NodeId(f"{name}-{number:0{digits}d}"),
            rack=rack,
            failure_domain=entry.failure_domain,
            region=entry.region,
            price_kind=entry.price_kind,
            taints=entry.taints,
        )
        boards = [
            Device(
                id=DeviceId(f"{node.id}.gpu-{index}"),
                node=node.id,
                gpu_type=known.name,
                index=index,
                memory_mib=entry.memory_mib or known.memory_mib,
                sm_count=known.sm_count,
                mode=entry.mode,
                colocation=entry.colocation,
            )
            for index in range(entry.devices_per_node)
        ]
        yield node, [slice_ for board in boards for slice_ in _slices(board, entry, known, where, context)]


def _slices(
    board: Device, entry: FleetForm, known: GpuType, where: Sequence[str | int], context: Context
) -> Iterator[Device]:
    if not entry.mig:
        yield board
        return
    offered = {profile.name: profile for profile in known.mig_profiles}
    for number, wanted in enumerate(entry.mig):
        if wanted not in offered:
            known_profiles = ", ".join(offered) or "none at all"
            raise context.refusal((*where, "mig", number), f"{known.name} has no slice {wanted}: {known_profiles}")
        profile = offered[wanted]
        yield replace(
            board,
            id=DeviceId(f"{board.id}.mig-{number}"),
            index=board.index * 16 + number,
            memory_mib=profile.memory_mib,
            sm_count=profile.sm_count,
            mig=MigSlice(parent=board.id, profile=wanted),
        )


def _offer(form: OfferForm, types: dict[str, GpuType], index: int, context: Context) -> Offer:
    where = ("offers", index)
    known = _type(form.gpu_type, types, (*where, "gpu_type"), context)
    if form.usd_per_h is not None:
        row = PriceRow(kind=form.price_kind, usd_per_h=form.usd_per_h, source="scenario")
        known = _with_price(known, row, (*where, "usd_per_h"), context)
    elif known.price_row(form.price_kind, "default") is None:
        raise context.refusal((*where, "gpu_type"), f"no {form.price_kind.value} price of {known.name} is known")
    types[form.gpu_type] = known
    with context.document.placing(*where):
        return Offer(
            name=form.name, gpu_type=known.name, count_max=form.count_max, price_kind=PriceKind(form.price_kind)
        )


def _caps(form: CapForm, fleet: ScenarioFleet, index: int, context: Context) -> list[PowerCap]:
    there: dict[PowerScope, list[str]] = {
        PowerScope.DEVICE: [device.id for device in fleet.devices],
        PowerScope.NODE: [node.id for node in fleet.nodes],
        PowerScope.RACK: sorted({node.rack for node in fleet.nodes}),
        PowerScope.CLUSTER: [CLUSTER],
    }
    subjects = there[form.scope]
    if form.subject is not None:
        if form.subject not in subjects:
            raise context.refusal(("power_caps", index, "subject"), f"there is no {form.scope.value} {form.subject}")
        subjects = [form.subject]
    return [PowerCap(scope=form.scope, subject=subject, limit_w=form.limit_w) for subject in subjects]
