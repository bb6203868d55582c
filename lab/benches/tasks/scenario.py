"""Scenario files of kind `tasks`: kinds of inference tasks that come to a fleet in a pattern, and the fleet's conduct.

Owns the form. What the literature leaves open (how many inputs a task holds, when it is due) are fields of every kind
of task.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.library import facts
from lab.arena.forms import Duration, Factor
from lab.arena.kinds import Context, ScenarioForm
from lab.arena.sources import Heading, about
from lab.benches.tasks.bench import Tasking
from lab.benches.tasks.run import Conduct
from lab.benches.tasks.work import ArrivalPace, TaskKind
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import NAME_PATTERN
from solvers.sim.outcome import Bench, Better
from solvers.sim.truth.truth import gpu_truth

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Part = Annotated[float, Field(ge=0, le=1)]
PROFILED_ON = "a100-40gb"


class TaskGpusForm(ScenarioForm):
    """Equal GPUs, each a device of its own."""

    gpu_type: str
    count: Annotated[int, Field(ge=1, le=100_000)] = 1


class TaskKindForm(ScenarioForm):
    """Tasks of one model."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: str
    family: str | None = None
    """Whose most accurate kind accuracy is held against; the model itself where nobody says."""
    rate_per_s: Annotated[float, Field(gt=0, le=1e6)]
    """Tasks per second on average, before `rate_scale`."""
    slo_ms: Annotated[float, Field(gt=0, le=1e9)]
    """Limit of one batch of `batch` inputs; a task is due after as long for all its batches, one after the other."""
    inputs: tuple[Count, Count]
    """Fewest and most inputs of a task; every number between is as likely."""
    batch: Annotated[int, Field(ge=1, le=256)] = 8
    """The owner's own batch: what schedulers use that do not tune."""
    urgent_part: Part = 0.9
    """Part of these tasks that is latency-critical."""
    patient_factor: Factor = 1.0
    """What the deadline of the other ones is multiplied by."""
    heavy: bool = False
    """Whether owners ask for a large GPU."""
    accuracy_pct: Annotated[float, Field(gt=0, le=100)] | None = None
    compute_memory_ratio: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Eq. 1 of OLTunes; without it, as the simulated GPU tells a profiler."""


class TaskUniformForm(ScenarioForm):
    """Evenly spaced, each kind on its own."""

    pattern: Literal["uniform"]


class TaskPoissonForm(ScenarioForm):
    """At random, at a constant rate."""

    pattern: Literal["poisson"]


class TaskBurstsForm(ScenarioForm):
    """Calm and bursts take turns at random, each kind on its own; factors are of the kind's mean rate."""

    pattern: Literal["bursts"]
    calm_factor: Annotated[float, Field(ge=0, le=1e3)]
    burst_factor: Annotated[float, Field(ge=0, le=1e3)]
    calm: Duration
    burst: Duration


class TaskConductForm(ScenarioForm):
    """How the fleet behaves."""

    deploy: Duration = 0.1
    """Until a launched group begins, beside moving its weights: processes are warm."""
    deploy_failed_pct: Annotated[float, Field(ge=0, le=100)] = 0.5
    """Of groups that fail to deploy for no fault of theirs."""
    tick: Annotated[Duration, Field(gt=0)] = 0.005
    """Schedulers act at multiples of this."""
    monitor: Annotated[Duration, Field(gt=0)] = 2.0
    """How fast measured utilisation forgets."""
    report: Annotated[Duration, Field(gt=0)] = 0.05
    """How old what monitors tell may be; what a scheduler itself changed it knows at once."""
    unfinished_after: Annotated[Duration, Field(gt=0)] = 600.0
    """After the last arrival a run is broken off."""
    mig: bool = False
    """Whether wishes for MIG slices are granted."""


class TaskingForm(Heading):
    """Tasks that come one by one."""

    kind: Literal["tasks"]
    goal: str = "latency_ms_mean"
    better: Better = Better.LOWER
    fleet: Annotated[tuple[TaskGpusForm, ...], Field(min_length=1)]
    tasks: Annotated[tuple[TaskKindForm, ...], Field(min_length=1)]
    arrivals: Annotated[TaskUniformForm | TaskPoissonForm | TaskBurstsForm, Field(discriminator="pattern")]
    count: Count = 1000
    rate_scale: Factor = 1.0
    """Multiplies the rates of all kinds."""
    profile_rows: Annotated[int, Field(ge=1, le=100_000)] = 504
    """Solo measurements that every scheduler has before the first task."""
    conduct: TaskConductForm = TaskConductForm()


FORM = TaskingForm


def build(form: TaskingForm, context: Context) -> Bench:
    """The bench of a file. Raises InputError."""
    names = [each.name for each in form.tasks]
    known = facts()
    for index, each in enumerate(form.tasks):
        where = ("tasks", index)
        if names.index(each.name) != index:
            raise context.refusal((*where, "name"), f"there are two kinds of tasks called {each.name}")
        if each.model not in known.models:
            raise context.refusal((*where, "model"), f"the library has no model {each.model}")
        if each.inputs[0] > each.inputs[1]:
            raise context.refusal((*where, "inputs"), "the fewest inputs come first")
    for index, gpus in enumerate(form.fleet):
        if gpu_truth(gpus.gpu_type) is None or gpus.gpu_type not in known.gpu_types:
            raise context.refusal(("fleet", index, "gpu_type"), f"there is no simulated GPU {gpus.gpu_type}")
    return Tasking(
        about=about(form, form.kind),
        facts=known,
        kinds=tuple(_kind(each, form.rate_scale) for each in form.tasks),
        fleet=tuple((GpuTypeName(each.gpu_type), each.count) for each in form.fleet),
        pace=_pace(form),
        count=form.count,
        profile_rows=form.profile_rows,
        profiled_on=GpuTypeName(PROFILED_ON),
        conduct=Conduct(
            deploy_s=form.conduct.deploy,
            deploy_failed_pct=form.conduct.deploy_failed_pct,
            tick_s=form.conduct.tick,
            monitor_s=form.conduct.monitor,
            report_s=form.conduct.report,
            unfinished_after_s=form.conduct.unfinished_after,
            mig=form.conduct.mig,
        ),
    )


def _kind(form: TaskKindForm, rate_scale: float) -> TaskKind:
    return TaskKind(
        name=form.name,
        model=ModelName(form.model),
        family=form.family or form.model,
        rate_per_s=form.rate_per_s * rate_scale,
        slo_ms=form.slo_ms,
        inputs_min=form.inputs[0],
        inputs_max=form.inputs[1],
        batch=form.batch,
        urgent_part=form.urgent_part,
        patient_factor=form.patient_factor,
        heavy=form.heavy,
        accuracy_pct=form.accuracy_pct,
        compute_memory_ratio=form.compute_memory_ratio,
    )


def _pace(form: TaskingForm) -> ArrivalPace:
    arrivals = form.arrivals
    if not isinstance(arrivals, TaskBurstsForm):
        return ArrivalPace(pattern=arrivals.pattern)
    return ArrivalPace(
        pattern=arrivals.pattern,
        calm_factor=arrivals.calm_factor,
        burst_factor=arrivals.burst_factor,
        calm_s=arrivals.calm,
        burst_s=arrivals.burst,
    )
