"""Scenario files of kind `world`: a form becomes a `WorldScenario`, and that a bench.

Owns the assembly and the checks across parts of a file: models and GPU types that are named must be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from app.library import load_gpu_types, load_models
from lab.arena.document import Where
from lab.arena.fleets import fleet_of
from lab.arena.forms_world import ServiceForm, WorldForm
from lab.arena.job_streams import stream_entries
from lab.arena.kinds import Context
from lab.arena.loads import load_of, mean_rps, scaled
from solvers.domain.ids import GpuTypeName, ModelName, PolicyName, ProjectName
from solvers.domain.workload import ModelVariant, Project, Service
from solvers.sim.outcome import About, Bench
from solvers.sim.scenario import JobEntry, PolicyChange, ScenarioFault, TaskEntry, Traffic, WorldScenario

FORM = WorldForm


def build(form: WorldForm, context: Context) -> Bench:
    """The bench of a file. Raises InputError."""
    from solvers.sim.world.world import World

    return World(scenario_of(form, context))


def scenario_of(form: WorldForm, context: Context) -> WorldScenario:
    """The world of a file before it begins. Raises InputError."""
    place = context.document.placing
    library = _Models(form, context)
    fleet = fleet_of(form, context)
    traffic = _all_traffic(form, context)
    jobs = tuple(JobEntry(job=each.job, at_s=each.at) for each in form.jobs)
    for index, stream in enumerate(form.job_streams):
        with place("job_streams", index):
            jobs += stream_entries(stream, ("job_streams", index), form.span, context)
    tasks = tuple(TaskEntry(task=each.task, at_s=each.at) for each in form.tasks)
    faults = []
    for index, fault in enumerate(form.faults):
        with place("faults", index):
            faults.append(
                ScenarioFault(
                    kind=fault.kind, at_s=fault.at, lasts_s=fault.lasts, subject=fault.subject, factor=fault.factor
                )
            )
    with place():
        return WorldScenario(
            about=_about(form),
            level=form.level,
            span_s=form.span,
            warmup_s=form.warmup,
            fleet=fleet,
            models=library.used(),
            projects=_projects(form),
            traffic=traffic,
            jobs=jobs,
            tasks=tasks,
            policy=form.policy,
            policies=form.policies,
            policy_changes=tuple(PolicyChange(at_s=each.at, policies=each.policies) for each in form.policy_changes),
            profiling=form.profiling,
            rhythm=form.rhythm,
            governor=form.governor,
            boards_hold_caps=form.boards_hold_caps,
            faults=tuple(faults),
            warm_start=form.warm_start,
            latency_noise=form.latency_noise,
            launch_scale=form.launch_scale,
        )


def _about(form: WorldForm) -> About:
    return About(
        name=form.name,
        title=form.title,
        kind=form.kind,
        goal=form.goal,
        better=form.better,
        guard=form.guard,
        planners=tuple(form.planners),
        seeds=form.seeds,
    )


def _projects(form: WorldForm) -> tuple[Project, ...]:
    declared = {project.name for project in form.projects}
    named = {service.project for service in form.services}
    named |= {each.job.project for each in form.jobs} | {each.task.project for each in form.tasks}
    named |= {stream.project for stream in form.job_streams}
    return (*form.projects, *(Project(name=ProjectName(name)) for name in sorted(named - declared)))


@dataclass(frozen=True, slots=True)
class _Models:
    """The networks that a file names, each of which must be known."""

    form: WorldForm
    context: Context

    def used(self) -> tuple[ModelVariant, ...]:
        """By name. Raises InputError."""
        known: dict[str, ModelVariant] = {model.name: model for model in (*load_models(), *self.form.models)}
        types = {gpu_type.name for gpu_type in load_gpu_types()}
        found: dict[str, ModelVariant] = {}
        for name, where in self._named():
            if name not in known:
                raise self.context.refusal(where, f"no model {name} in the library; `models:` declares others")
            found[name] = known[name]
        for name, where in self._named_types():
            if name not in types:
                raise self.context.refusal(where, f"no GPU type {name} in the library")
        return tuple(found[name] for name in sorted(found))

    def _named(self) -> Iterator[tuple[str, Where]]:
        for index, service in enumerate(self.form.services):
            yield service.model, ("services", index, "model")
            for number, name in enumerate(service.alternatives):
                yield name, ("services", index, "alternatives", number)
        for index, entry in enumerate(self.form.jobs):
            yield entry.job.model, ("jobs", index, "job", "model")
        for index, each in enumerate(self.form.tasks):
            yield each.task.model, ("tasks", index, "task", "model")
        for index, stream in enumerate(self.form.job_streams):
            for number, template in enumerate(stream.templates):
                yield template.model, ("job_streams", index, "templates", number, "model")

    def _named_types(self) -> Iterator[tuple[str, Where]]:
        for index, service in enumerate(self.form.services):
            for number, name in enumerate(service.gpu_types_allowed):
                yield name, ("services", index, "gpu_types_allowed", number)
        for index, entry in enumerate(self.form.jobs):
            yield entry.job.gpu_type_reference, ("jobs", index, "job", "gpu_type_reference")
        for index, stream in enumerate(self.form.job_streams):
            for number, template in enumerate(stream.templates):
                yield template.gpu_type_reference, ("job_streams", index, "templates", number, "gpu_type_reference")


def _all_traffic(form: WorldForm, context: Context) -> tuple[Traffic, ...]:
    found: dict[str, Traffic] = {}
    for index, entry in enumerate(form.services):
        for each in _traffic(entry, index, form, context):
            if each.service.id in found:
                raise context.refusal(("services", index, "name"), f"there is a service {each.service.id} already")
            found[each.service.id] = each
    return tuple(found.values())


def _traffic(form: ServiceForm, index: int, world: WorldForm, context: Context) -> Iterator[Traffic]:
    where = ("services", index)
    load = load_of(form.load, (*where, "load"), context)
    declared = mean_rps(load, world.span) if form.rate_rps_declared is None else form.rate_rps_declared
    if declared is None:
        raise context.refusal((*where, "rate_rps_declared"), f"a load that is {form.load.pattern} needs it to be said")
    with context.document.placing(*where):
        first = Traffic(service=_service(form, declared), load=load, drop=form.drop, routing=form.routing)
        yield from (first,) if form.copies is None else _copies(first, form.copies, form.last_copy)


def _copies(first: Traffic, count: int, last: float) -> Iterator[Traffic]:
    digits = len(str(count - 1))
    for number in range(count):
        factor = last ** (number / max(1, count - 1))
        name, declared = f"{first.service.name}-{number:0{digits}d}", first.service.rate_rps_declared * factor
        service = replace(first.service, name=name, rate_rps_declared=declared)
        yield replace(first, service=service, load=scaled(first.load, factor))


def _service(form: ServiceForm, declared: float) -> Service:
    return Service(
        project=ProjectName(form.project),
        name=form.name,
        model=ModelName(form.model),
        slo=form.slo,
        rate_rps_declared=declared,
        class_lambda=form.class_lambda,
        priority=form.priority,
        replicas_min=form.replicas_min,
        replicas_max=form.replicas_max,
        gpu_types_allowed=tuple(GpuTypeName(each) for each in form.gpu_types_allowed),
        alternatives=tuple(ModelName(each) for each in form.alternatives),
        accuracy_pct_min=form.accuracy_pct_min,
        affinity=form.affinity,
        tolerations=form.tolerations,
        budget_usd_per_h=form.budget_usd_per_h,
        policy=None if form.policy is None else PolicyName(form.policy),
    )
