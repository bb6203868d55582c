"""What-if changes applied to a snapshot: the picture as it would be.

Owns what a change of work means for a picture: a rate is scaled in demand and declaration alike; what is removed still
stands in the target and has to be stopped. Every change that names something unknown is refused with a pointer. It
refuses to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

from app.services.whatif.changes import Changes, RateChange
from app.services.whatif.faults import Faults, merged
from app.services.whatif.fleet import add_nodes, caps, lose, offers, prices, reporting
from solvers.domain.codec import Plain, from_plain, to_plain
from solvers.domain.ids import GpuTypeName, ServiceId
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand, DemandOrigin
from solvers.domain.workload import OfflineTask, Service, TrainingJob
from solvers.errors import FieldError
from solvers.planners import registry


def apply_changes(snapshot: Snapshot, changes: Changes) -> Snapshot:
    """The changed picture. Raises FieldsError naming every change that does not fit, by its place in the changes."""
    faults = Faults()
    said = _said_rates(snapshot, changes)
    snapshot = replace(snapshot, demands=merged(snapshot.demands, said.values(), lambda item: item.service))
    for step in (_put, _policy, _remove, partial(_rates, said=said), lose, add_nodes, caps, prices, offers):
        snapshot = step(snapshot, changes, faults)
    _check_references(snapshot, changes, faults)
    faults.settle()
    return snapshot


def _put(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:  # noqa: ARG001 - steps are called alike
    profiles = {(item.model, item.gpu_type): item for item in (*snapshot.profiles, *changes.profiles)}
    new_nodes = {item.id for item in changes.nodes} - {item.id for item in snapshot.nodes}
    return replace(
        snapshot,
        gpu_types=merged(snapshot.gpu_types, changes.gpu_types, lambda item: item.name),
        models=merged(snapshot.models, changes.models, lambda item: item.name),
        profiles=tuple(profiles[key] for key in sorted(profiles)),
        projects=merged(snapshot.projects, changes.projects, lambda item: item.name),
        nodes=merged(snapshot.nodes, changes.nodes, lambda item: item.id),
        node_statuses=reporting(snapshot, new_nodes),
        devices=merged(snapshot.devices, changes.devices, lambda item: item.id),
        services=merged(snapshot.services, changes.services, lambda item: item.id),
        jobs=merged(snapshot.jobs, changes.jobs, lambda item: item.id),
        tasks=merged(snapshot.tasks, changes.tasks, lambda item: item.id),
    )


def _said_rates(snapshot: Snapshot, changes: Changes) -> dict[ServiceId, Demand]:
    """What a service declares counts as its demand where it is new or says another rate than before."""
    before = snapshot.services_by_id()
    return {
        service.id: _declared(service.id, service.rate_rps_declared)
        for service in changes.services
        if service.id not in before or before[service.id].rate_rps_declared != service.rate_rps_declared
    }


def _declared(service: ServiceId, rate_rps: float) -> Demand:
    return Demand(
        service=service,
        rate_rps_mean=rate_rps,
        rate_rps_upper=rate_rps,
        origin=DemandOrigin.DECLARED,
        window_s=0.0,
        age_s=0.0,
    )


def _policy(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    if not changes.policy:
        return snapshot
    standing = cast("dict[str, object]", to_plain(snapshot.policy))
    try:
        policy = from_plain(Policy, cast("Plain", {**standing, **changes.policy}))
    except FieldError as error:
        faults.add(f"/policy{error.field}", error.message)
        return snapshot
    for index, planner in enumerate(policy.planners):
        faults.known("planner", planner, registry.names(), f"/policy/planners/{index}")
    try:
        registry.check_settings(policy)
    except FieldError as error:
        faults.add(f"/policy{error.field}", error.message)
    return replace(snapshot, policy=policy)


def _remove(snapshot: Snapshot, changes: Changes, faults: Faults) -> Snapshot:
    works: tuple[Service | TrainingJob | OfflineTask, ...] = (*snapshot.services, *snapshot.jobs, *snapshot.tasks)
    names = {str(item.id) for item in works}
    for index, name in enumerate(changes.remove):
        faults.known("workload", name, names, f"/remove/{index}")
    gone = {str(name) for name in changes.remove}
    return replace(
        snapshot,
        services=tuple(item for item in snapshot.services if item.id not in gone),
        jobs=tuple(item for item in snapshot.jobs if item.id not in gone),
        tasks=tuple(item for item in snapshot.tasks if item.id not in gone),
        demands=tuple(item for item in snapshot.demands if item.service not in gone),
    )


def _rates(snapshot: Snapshot, changes: Changes, faults: Faults, *, said: Mapping[ServiceId, Demand]) -> Snapshot:
    """Other rates. The factor for everybody leaves out what the same changes declare with a rate of its own."""
    if changes.rate_factor == 1.0 and not changes.rates:
        return snapshot
    known = [item.id for item in snapshot.services]
    single: dict[ServiceId, RateChange] = {}
    for index, item in enumerate(changes.rates):
        if faults.known("service", item.service, known, f"/rates/{index}/service"):
            if item.service in single:
                faults.add(f"/rates/{index}/service", f"{item.service} is named twice")
            single[item.service] = item
    everybody = changes.rate_factor
    demands = snapshot.demands_by_service()
    services, rates = [], []
    for service in snapshot.services:
        demand = demands.get(service.id) or _declared(service.id, service.rate_rps_declared)
        change = single.get(service.id) or RateChange(
            service=service.id, factor=1.0 if service.id in said else everybody
        )
        if change.rate_rps is not None:
            services.append(replace(service, rate_rps_declared=change.rate_rps))
            rates.append(_declared(service.id, change.rate_rps))
            continue
        factor = change.factor if change.factor is not None else 1.0
        services.append(replace(service, rate_rps_declared=min(service.rate_rps_declared * factor, 1e9)))
        rates.append(
            replace(demand, rate_rps_mean=demand.rate_rps_mean * factor, rate_rps_upper=demand.rate_rps_upper * factor)
        )
    return replace(
        snapshot, services=tuple(services), demands=merged(snapshot.demands, rates, lambda item: item.service)
    )


def _check_references(snapshot: Snapshot, changes: Changes, faults: Faults) -> None:
    """What new documents name must be there when all is applied."""
    models = {item.name for item in snapshot.models}
    types: set[GpuTypeName] = {item.name for item in snapshot.gpu_types}
    nodes = {item.id for item in snapshot.nodes}
    projects = {item.name for item in snapshot.projects}
    kinds: tuple[tuple[str, tuple[Service | TrainingJob | OfflineTask, ...]], ...] = (
        ("services", changes.services),
        ("jobs", changes.jobs),
        ("tasks", changes.tasks),
    )
    for field, works in kinds:
        for index, work in enumerate(works):
            place = f"/{field}/{index}"
            faults.known("project", work.project, projects, f"{place}/project")
            faults.known("model", work.model, models, f"{place}/model")
            for position, name in enumerate(work.gpu_types_allowed):
                faults.known("GPU type", name, types, f"{place}/gpu_types_allowed/{position}")
            for position, name in enumerate(getattr(work, "alternatives", ())):
                faults.known("model", name, models, f"{place}/alternatives/{position}")
    for index, device in enumerate(changes.devices):
        faults.known("node", device.node, nodes, f"/devices/{index}/node")
        faults.known("GPU type", device.gpu_type, types, f"/devices/{index}/gpu_type")
    for index, profile in enumerate(changes.profiles):
        faults.known("model", profile.model, models, f"/profiles/{index}/model")
        faults.known("GPU type", profile.gpu_type, types, f"/profiles/{index}/gpu_type")
