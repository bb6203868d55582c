"""Training jobs that come by themselves: drawn from a pattern, or taken from the Philly trace.

Owns how a stream of forms becomes entries with names and lengths. Drawn when the file is read, with the stream's own
seed, so that every contender and every seed of a run meets the same jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lab.arena.document import Where
from lab.arena.forms_world import JobStreamForm, TemplateForm
from lab.arena.kinds import Context
from lab.arena.traces import philly_jobs
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName
from solvers.domain.workload import TrainingJob
from solvers.sim.arrivals import JobPattern, Source, job_arrivals
from solvers.sim.scenario import JobEntry


@dataclass(frozen=True, slots=True)
class _Coming:
    """A job before it has a template: its length in iterations, or in seconds of its reference GPU."""

    at_s: float
    iterations: int = 0
    takes_s: float = 0.0


def stream_entries(form: JobStreamForm, where: Where, span_s: float, context: Context) -> tuple[JobEntry, ...]:
    """The jobs of a stream within the run, by time. Raises InputError."""
    source = Source(name=f"jobs/{form.name}", seed=form.seed)
    coming = _traced(form, where, span_s, context) if form.trace else _drawn(form, where, span_s, source, context)
    weights = np.array([template.weight for template in form.templates])
    picks = source.stream("templates").choice(len(weights), size=len(coming), p=weights / weights.sum())
    digits = len(str(max(0, len(coming) - 1)))
    return tuple(
        JobEntry(job=_job(form, f"{number:0{digits}d}", form.templates[int(pick)], each), at_s=each.at_s)
        for number, (each, pick) in enumerate(zip(coming, picks, strict=True))
    )


def _drawn(form: JobStreamForm, where: Where, span_s: float, source: Source, context: Context) -> list[_Coming]:
    if form.jobs_per_h is None or form.iterations_median is None:
        raise context.refusal(where, "say jobs_per_h and iterations_median, or `trace: philly`")
    with context.document.placing(*where):
        pattern = JobPattern(
            jobs_per_h=form.jobs_per_h,
            iterations_median=form.iterations_median,
            iterations_sigma=form.iterations_sigma,
        )
    return [_Coming(each.at_s, iterations=each.iterations) for each in job_arrivals(pattern, source, span_s)]


def _traced(form: JobStreamForm, where: Where, span_s: float, context: Context) -> list[_Coming]:
    for name in ("jobs_per_h", "iterations_median"):
        if getattr(form, name) is not None:
            raise context.refusal((*where, name), "a trace says itself when jobs come and how long they are")
    length_scale = form.time_scale if form.length_scale is None else form.length_scale
    found = philly_jobs(context, (*where, "trace"), form.begin, form.begin + span_s / form.time_scale)
    return [_Coming(at_s * form.time_scale, takes_s=took_s * length_scale) for at_s, took_s, gpus in found if gpus == 1]


def _job(form: JobStreamForm, number: str, template: TemplateForm, coming: _Coming) -> TrainingJob:
    iterations = coming.iterations or round(1000.0 * coming.takes_s / template.iteration_ms_reference)
    return TrainingJob(
        project=ProjectName(form.project),
        name=f"{form.name}-{number}",
        model=ModelName(template.model),
        iterations_total=max(1, iterations),
        iteration_ms_reference=template.iteration_ms_reference,
        gpu_type_reference=GpuTypeName(template.gpu_type_reference),
        memory_mib=template.memory_mib,
        memory_mib_resident_min=template.memory_mib_resident_min,
        share_pct_sm_min=template.share_pct_sm_min,
        share_pct_sm_max=template.share_pct_sm_max,
        priority=template.priority,
        value_usd_per_h=template.value_usd_per_h,
    )
