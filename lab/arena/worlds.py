"""Scenario files of kind `world`: a form becomes a `WorldScenario`, and that a bench.

Owns the assembly and the checks across parts of a file: models and GPU types that are named must be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from app.library import load_gpu_types, load_models
from app.marked import Where
from lab.arena.forms import CapForm, FleetForm, JobStreamForm, OfferForm, ServiceForm, TemplateForm, WorldForm
from lab.arena.loading import Document
from lab.arena.loads import load_of, mean_rps, philly_jobs, scaled
from lab.outcome import Bench
from lab.world.arrivals import JobArrival, JobPattern, Source, job_arrivals
from lab.world.ports import CLUSTER
from lab.world.replays import STUDIES, replay_of
from lab.world.scenario import JobEntry, PolicyChange, ScenarioFault, ScenarioFleet, TaskEntry, Traffic, WorldScenario
from solvers.domain.device import Device, GpuType, MigSlice, Node, Offer, PowerCap, PowerScope, PriceRow
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, ProjectName
from solvers.domain.workload import ModelVariant, Project, Service, TrainingJob
from solvers.sim.truth.truth import gpu_truth

# --- Fleets in short form become nodes and devices, with GPU types and prices of the built-in library


def fleet_of(form: WorldForm, document: Document) -> ScenarioFleet:
    """The fleet that a file describes. Raises InputError."""
    types: dict[str, GpuType] = {}
    nodes: list[Node] = []
    devices: list[Device] = []
    names: set[str] = set()
    for index, entry in enumerate(form.fleet):
        where = ("fleet", index)
        name = entry.name or entry.gpu_type
        if name in names:
            raise document.refusal((*where, "name"), f"another entry's nodes are called {name} too; give a name")
        names.add(name)
        known = _type(entry.gpu_type, types, (*where, "gpu_type"), document)
        with document.placing(*where):
            types[entry.gpu_type] = _priced(known, entry, where, document)
            for node, its in _nodes(entry, name, known, where, document):
                nodes.append(node)
                devices.extend(its)
    offers = tuple(_offer(each, types, index, document) for index, each in enumerate(form.offers))
    with document.placing():
        bare = ScenarioFleet(
            gpu_types=tuple(types[name] for name in sorted(types)), nodes=tuple(nodes), devices=tuple(devices)
        )
    caps = [cap for index, each in enumerate(form.power_caps) for cap in _caps(each, bare, index, document)]
    with document.placing():
        return replace(bare, power_caps=tuple(caps), offers=offers)


def _type(name: str, types: dict[str, GpuType], where: Sequence[str | int], document: Document) -> GpuType:
    if name in types:
        return types[name]
    library = {each.name: each for each in load_gpu_types()}
    known = sorted(each for each in library if gpu_truth(each) is not None)
    if name not in known:
        raise document.refusal(where, f"no GPU type {name}; those with simulated hardware are {', '.join(known)}")
    return library[GpuTypeName(name)]


def _priced(known: GpuType, entry: FleetForm, where: Sequence[str | int], document: Document) -> GpuType:
    if entry.usd_per_h is None:
        if known.price_row(entry.price_kind, entry.region) is None:
            raise document.refusal(
                (*where, "gpu_type"), f"no {entry.price_kind.value} price of {known.name} is known; say usd_per_h"
            )
        return known
    row = entry.made(PriceRow, kind=entry.price_kind, source="scenario")
    return _with_price(known, row, (*where, "usd_per_h"), document)


def _with_price(known: GpuType, row: PriceRow, where: Sequence[str | int], document: Document) -> GpuType:
    standing = [each for each in known.prices if (each.kind, each.region) == (row.kind, row.region)]
    if any(each.source == "scenario" and each != row for each in standing):
        raise document.refusal(
            where, f"another entry has another {row.kind.value} price of {known.name}; use a region of its own"
        )
    others = tuple(each for each in known.prices if each not in standing)
    return replace(known, prices=(*others, row))


def _nodes(
    entry: FleetForm, name: str, known: GpuType, where: Sequence[str | int], document: Document
) -> Iterator[tuple[Node, list[Device]]]:
    digits = len(str(entry.nodes - 1))
    for number in range(entry.nodes):
        rack = entry.rack or f"{name}-rack"
        if entry.nodes_per_rack is not None:
            rack = f"{rack}-{number // entry.nodes_per_rack}"
        node = entry.made(Node, id=NodeId(f"{name}-{number:0{digits}d}"), rack=rack)
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
        yield node, [slice_ for board in boards for slice_ in _slices(board, entry, known, where, document)]


def _slices(
    board: Device, entry: FleetForm, known: GpuType, where: Sequence[str | int], document: Document
) -> Iterator[Device]:
    if not entry.mig:
        yield board
        return
    offered = {profile.name: profile for profile in known.mig_profiles}
    for number, wanted in enumerate(entry.mig):
        if wanted not in offered:
            known_profiles = ", ".join(offered) or "none at all"
            raise document.refusal((*where, "mig", number), f"{known.name} has no slice {wanted}: {known_profiles}")
        profile = offered[wanted]
        yield replace(
            board,
            id=DeviceId(f"{board.id}.mig-{number}"),
            index=board.index * 16 + number,
            memory_mib=profile.memory_mib,
            sm_count=profile.sm_count,
            mig=MigSlice(parent=board.id, profile=wanted),
        )


def _offer(form: OfferForm, types: dict[str, GpuType], index: int, document: Document) -> Offer:
    where = ("offers", index)
    known = _type(form.gpu_type, types, (*where, "gpu_type"), document)
    if form.usd_per_h is not None:
        row = PriceRow(kind=form.price_kind, usd_per_h=form.usd_per_h, source="scenario")
        known = _with_price(known, row, (*where, "usd_per_h"), document)
    elif known.price_row(form.price_kind, "default") is None:
        raise document.refusal((*where, "gpu_type"), f"no {form.price_kind.value} price of {known.name} is known")
    types[form.gpu_type] = known
    with document.placing(*where):
        return form.made(Offer)


def _caps(form: CapForm, fleet: ScenarioFleet, index: int, document: Document) -> list[PowerCap]:
    there: dict[PowerScope, list[str]] = {
        PowerScope.DEVICE: [device.id for device in fleet.devices],
        PowerScope.NODE: [node.id for node in fleet.nodes],
        PowerScope.RACK: sorted({node.rack for node in fleet.nodes}),
        PowerScope.CLUSTER: [CLUSTER],
    }
    subjects = there[form.scope]
    if form.subject is not None:
        if form.subject not in subjects:
            raise document.refusal(("power_caps", index, "subject"), f"there is no {form.scope.value} {form.subject}")
        subjects = [form.subject]
    return [form.made(PowerCap, subject=subject) for subject in subjects]


# --- Training jobs that come by themselves: drawn from a pattern, or taken from the Philly trace
#
# Drawn by the stream's own seed, so that every contender and every seed of a run meets the same jobs; or by the run's,
# so that every contender meets them, and every seed others.


def jobs_of(form: WorldForm, document: Document, seed: int) -> tuple[JobEntry, ...]:
    """All jobs that a run under this seed meets. Raises InputError."""
    jobs = tuple(each.made(JobEntry) for each in form.jobs)
    for index, stream in enumerate(form.job_streams):
        place = ("job_streams", index)
        with document.placing(*place):
            source = Source(name=f"jobs/{stream.name}", seed=seed if stream.seed == "run" else stream.seed)
            jobs += stream_entries(stream, place, form.span, source, document)
    return jobs


def stream_entries(
    form: JobStreamForm, where: Where, span_s: float, source: Source, document: Document
) -> tuple[JobEntry, ...]:
    """The jobs of a stream within the run, by time. Raises InputError."""
    coming = _traced(form, where, span_s, document) if form.trace else _drawn(form, where, span_s, source, document)
    weights = np.array([template.weight for template in form.templates])
    picks = source.stream("templates").choice(len(weights), size=len(coming), p=weights / weights.sum())
    digits = len(str(max(0, len(coming) - 1)))
    return tuple(
        JobEntry(job=_job(form, f"{number:0{digits}d}", form.templates[int(pick)], each), at_s=each.at_s)
        for number, (each, pick) in enumerate(zip(coming, picks, strict=True))
    )


def _drawn(
    form: JobStreamForm, where: Where, span_s: float, source: Source, document: Document
) -> Sequence[JobArrival]:
    if form.jobs_per_h is None or form.iterations_median is None:
        raise document.refusal(where, "say jobs_per_h and iterations_median, or `trace: philly`")
    with document.placing(*where):
        pattern = form.made(JobPattern)
    return job_arrivals(pattern, source, span_s)


def _traced(form: JobStreamForm, where: Where, span_s: float, document: Document) -> Sequence[JobArrival]:
    for name in ("jobs_per_h", "iterations_median"):
        if getattr(form, name) is not None:
            raise document.refusal((*where, name), "a trace says itself when jobs come and how long they are")
    length_scale = form.time_scale if form.length_scale is None else form.length_scale
    found = philly_jobs(document, (*where, "trace"), form.begin, form.begin + span_s / form.time_scale)
    scaled_s = [(at_s * form.time_scale, took_s * length_scale) for at_s, took_s, gpus in found if gpus == 1]
    return tuple(JobArrival(at_s=at_s, takes_s=takes_s) for at_s, takes_s in scaled_s)


def _job(form: JobStreamForm, number: str, template: TemplateForm, coming: JobArrival) -> TrainingJob:
    iterations = coming.iterations or round(1000.0 * coming.takes_s / template.iteration_ms_reference)
    name = f"{form.name}-{number}"
    return template.made(TrainingJob, project=form.project, name=name, iterations_total=max(1, iterations))


FORM = WorldForm


def build(form: WorldForm, document: Document) -> Bench:
    """The bench of a file. Raises InputError."""
    from lab.world.world import World

    return World(scenario_of(form, document), partial(jobs_of, form, document))


def scenario_of(form: WorldForm, document: Document) -> WorldScenario:
    """The world of a file before it begins, with the jobs of seed 0. Raises InputError."""
    place = document.placing
    document.check_settings(form.policy, "policy")
    for index, policy in enumerate(form.policies):
        document.check_settings(policy, "policies", index)
    for index, change in enumerate(form.policy_changes):
        for number, policy in enumerate(change.policies):
            document.check_settings(policy, "policy_changes", index, "policies", number)
    models = _models(form, document)
    fleet = fleet_of(form, document)
    traffic = _all_traffic(form, document)
    faults = []
    for index, fault in enumerate(form.faults):
        with place("faults", index):
            faults.append(fault.made(ScenarioFault))
    with place():
        return form.made(
            WorldScenario,
            about=form.about(),
            fleet=fleet,
            models=models,
            projects=_projects(form),
            traffic=traffic,
            jobs=jobs_of(form, document, 0),
            tasks=tuple(each.made(TaskEntry) for each in form.tasks),
            policy_changes=tuple(each.made(PolicyChange) for each in form.policy_changes),
            faults=tuple(faults),
            **_replayed(form, document),
        )


def _replayed(form: WorldForm, document: Document) -> dict[str, Any]:
    """The studies that a file replays, and their scatter unless it says another. Raises InputError."""
    if form.truth is None:
        return {}
    where = ("truth", "replay")
    for place, name in enumerate(form.truth.replay):
        if name not in STUDIES:
            raise document.refusal((*where, place), f"no study {name} can be replayed; known: {', '.join(STUDIES)}")
    made = replay_of(form.truth.replay, lambda *parts: document.rows(where, *parts))
    noises = [surface.noise for surface in made.times.values()]
    said = "latency_noise" in form.model_fields_set or not noises
    return {"replay": made} | ({} if said else {"latency_noise": median(noises)})


def _projects(form: WorldForm) -> tuple[Project, ...]:
    declared = {project.name for project in form.projects}
    named = {service.project for service in form.services}
    named |= {each.job.project for each in form.jobs} | {each.task.project for each in form.tasks}
    named |= {stream.project for stream in form.job_streams}
    return (*form.projects, *(Project(name=ProjectName(name)) for name in sorted(named - declared)))


def _models(form: WorldForm, document: Document) -> tuple[ModelVariant, ...]:
    """The networks that a file names, by name; each must be known, as GPU types must. Raises InputError."""
    known: dict[str, ModelVariant] = {model.name: model for model in (*load_models(), *form.models)}
    types = {str(gpu_type.name) for gpu_type in load_gpu_types()}
    models, gpu_types = _named(form)
    for name, where in models:
        if name not in known:
            raise document.refusal(where, f"no model {name} in the library; `models:` declares others")
    for name, where in gpu_types:
        if name not in types:
            raise document.refusal(where, f"no GPU type {name} in the library")
    return tuple(known[name] for name in sorted({name for name, _ in models}))


def _named(form: WorldForm) -> tuple[list[tuple[str, Where]], list[tuple[str, Where]]]:
    """Networks and GPU types, each with its place in the file."""
    models: list[tuple[str, Where]] = []
    types: list[tuple[str, Where]] = []
    for index, service in enumerate(form.services):
        at = ("services", index)
        models.append((service.model, (*at, "model")))
        models += [(name, (*at, "alternatives", number)) for number, name in enumerate(service.alternatives)]
        types += [(name, (*at, "gpu_types_allowed", number)) for number, name in enumerate(service.gpu_types_allowed)]
    models += [(each.job.model, ("jobs", at, "job", "model")) for at, each in enumerate(form.jobs)]
    models += [(each.task.model, ("tasks", at, "task", "model")) for at, each in enumerate(form.tasks)]
    types += [(e.job.gpu_type_reference, ("jobs", at, "job", "gpu_type_reference")) for at, e in enumerate(form.jobs)]
    for index, stream in enumerate(form.job_streams):
        for number, template in enumerate(stream.templates):
            place = ("job_streams", index, "templates", number)
            models.append((template.model, (*place, "model")))
            types.append((template.gpu_type_reference, (*place, "gpu_type_reference")))
    return models, types


def _all_traffic(form: WorldForm, document: Document) -> tuple[Traffic, ...]:
    found: dict[str, Traffic] = {}
    for index, entry in enumerate(form.services):
        for each in _traffic(entry, index, form, document):
            if each.service.id in found:
                raise document.refusal(("services", index, "name"), f"there is a service {each.service.id} already")
            found[each.service.id] = each
    return tuple(found.values())


def _traffic(form: ServiceForm, index: int, world: WorldForm, document: Document) -> Iterator[Traffic]:
    where = ("services", index)
    load = load_of(form.load, (*where, "load"), document)
    declared = mean_rps(load, world.span) if form.rate_rps_declared is None else form.rate_rps_declared
    if declared is None:
        raise document.refusal((*where, "rate_rps_declared"), f"a load that is {form.load.pattern} needs it to be said")
    with document.placing(*where):
        first = form.made(Traffic, service=form.made(Service, rate_rps_declared=declared), load=load)
        yield from (first,) if form.copies is None else _copies(first, form.copies, form.last_copy)


def _copies(first: Traffic, count: int, last: float) -> Iterator[Traffic]:
    digits = len(str(count - 1))
    for number in range(count):
        factor = last ** (number / max(1, count - 1))
        name, declared = f"{first.service.name}-{number:0{digits}d}", first.service.rate_rps_declared * factor
        service = replace(first.service, name=name, rate_rps_declared=declared)
        yield replace(first, service=service, load=scaled(first.load, factor))
