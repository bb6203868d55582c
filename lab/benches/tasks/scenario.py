"""Scenario files of kind `tasks`: kinds of inference tasks that come to a fleet in a pattern, and the fleet's conduct.

Owns the form. What the literature leaves open (how many inputs a task holds, when it is due) are fields of every kind
of task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from app.library import facts
from lab.arena.forms import Factor
from lab.arena.loading import Document, Heading, ScenarioForm
from lab.benches.tasks.run import Conduct, Entry, TaskLog, TaskRun, cluster
from lab.benches.tasks.schedulers import SchedulerInputs, scheduler
from lab.benches.tasks.work import Count, TaskArrivals, TaskKindForm, accuracy_lost_pct, coming, profiled, told
from lab.outcome import (
    About,
    Bench,
    Better,
    Metric,
    Planners,
    ProgressListener,
    RunContender,
    RunEvent,
    RunOutcome,
    ServiceOutcome,
    metric,
)
from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ServiceId
from solvers.models.base import Facts
from solvers.policies.oltunes.scores import IDLE_W
from solvers.sim.truth.truth import gpu_truth

# --- A bench of tasks: they come one by one to a heterogeneous cluster, and a scheduler puts them on its GPUs


MS_PER_S = 1000.0
PERCENT = 100.0


def latencies_s(entries: Sequence[Entry], until_s: float) -> Floats:
    """From arrival to end, or to the end of the run."""
    return np.array(
        [(until_s if each.ended_s is None else each.ended_s) - each.coming.at_s for each in entries], dtype=np.float64
    )


def metrics(log: TaskLog, kinds: Sequence[TaskKindForm]) -> tuple[Metric, ...]:
    entries = list(log.entries.values())
    return (*_service(log, entries, kinds), *_cluster(log, entries))


def _service(log: TaskLog, entries: Sequence[Entry], kinds: Sequence[TaskKindForm]) -> tuple[Metric, ...]:
    latency_s = latencies_s(entries, log.until_s)
    deadline_s = np.array([each.coming.task.deadline_s for each in entries])
    done = np.array([each.ended_s is not None for each in entries], dtype=np.bool_)
    urgent = np.array([each.coming.task.latency_critical for each in entries], dtype=np.bool_)
    late = (latency_s > deadline_s) | ~done
    launched_s = [log.until_s if each.launched_s is None else each.launched_s for each in entries]
    waited_s = np.array(launched_s) - np.array([each.coming.at_s for each in entries])
    inputs = float(sum(each.coming.task.inputs for each in entries if each.ended_s is not None))
    lost = accuracy_lost_pct(kinds)
    attempts = sum(each.attempts for each in entries)
    p50, p99 = (float(np.quantile(latency_s, part)) * MS_PER_S for part in (0.5, 0.99))
    lower, neither = Better.LOWER, Better.NEITHER
    return (
        metric("latency_ms_mean", float(latency_s.mean()) * MS_PER_S, lower),
        metric("latency_ms_p50", p50, lower),
        metric("latency_ms_p99", p99, lower),
        metric("queueing_ms_mean", float(waited_s.mean()) * MS_PER_S, lower),
        metric("jct_ms_mean", float((latency_s - waited_s).mean()) * MS_PER_S, lower),
        metric("latency_ms_mean_urgent", _mean(latency_s[urgent]) * MS_PER_S, lower),
        metric("latency_ms_mean_patient", _mean(latency_s[~urgent]) * MS_PER_S, lower),
        metric("throughput_inputs_per_s", inputs / log.until_s if log.until_s > 0.0 else 0.0, Better.HIGHER),
        metric("violation_pct", PERCENT * float(late.mean()), lower),
        metric("violation_pct_urgent", PERCENT * _mean(late[urgent].astype(np.float64)), lower),
        metric("accuracy_lost_pct", float(np.mean([lost[kinds[each.coming.kind].name] for each in entries])), lower),
        metric("tasks_unfinished", float((~done).sum()), lower),
        metric("groups_failed", float(log.failed), neither),
        metric("tasks_per_group", attempts / log.groups if log.groups else 0.0, neither),
    )


def _cluster(log: TaskLog, entries: Sequence[Entry]) -> tuple[Metric, ...]:
    span_s = max(log.until_s, 1e-9)
    used = PERCENT * np.array([board.utilised_s for board in log.boards]) / span_s
    held = PERCENT * np.array([board.held_s for board in log.boards]) / span_s
    energy_j = float(sum(board.energy_j for board in log.boards))
    counted = sum((each.tdp_w - IDLE_W) * each.epc_js for each in entries if each.ended_s is not None)
    epc = IDLE_W + counted / (span_s * len(log.boards))
    lower, neither = Better.LOWER, Better.NEITHER
    return (
        metric("utilisation_pct_mean", float(used.mean()), Better.HIGHER),
        metric("utilisation_pct_spread", float(used.max() - used.min()), lower),
        metric("gpus_idle_pct", PERCENT - float(held.mean()), neither),
        metric("gpus_never_used_pct", PERCENT * float((held <= 0.0).mean()), lower),
        metric("epc_score", float(epc), lower),
        metric("energy_j", energy_j, lower),
        metric("power_w_mean", energy_j / span_s, neither),
        metric("makespan_s", log.until_s, lower),
    )


def _mean(numbers: Floats) -> float:
    return float(numbers.mean()) if len(numbers) else 0.0


def by_kind(log: TaskLog, kinds: Sequence[TaskKindForm]) -> tuple[ServiceOutcome, ...]:
    """Tasks of every kind, as requests of a service are told; dropped are those that never ended."""
    found = []
    for number, kind in enumerate(kinds):
        entries = [each for each in log.entries.values() if each.coming.kind == number]
        if not entries:
            continue
        ended = [each for each in entries if each.ended_s is not None]
        ms = latencies_s(ended, log.until_s) * MS_PER_S
        due_ms = np.array([each.coming.task.deadline_s for each in ended]) * MS_PER_S
        late = int((ms > due_ms).sum())
        p50, p95, p99 = (float(np.quantile(ms, part)) if len(ms) else None for part in (0.5, 0.95, 0.99))
        found.append(
            ServiceOutcome(
                service=ServiceId(f"tasks/{kind.name}"),
                asked=float(len(entries)),
                completed=float(len(ended)),
                late=float(late),
                dropped=float(len(entries) - len(ended)),
                latency_ms_p50=p50,
                latency_ms_p95=p95,
                latency_ms_p99=p99,
                attained=late == 0 and len(ended) == len(entries),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Tasking:
    """Kinds of tasks, so many of them in a pattern, on a fleet. `profile_rows` solo measurements are known before."""

    about: About
    facts: Facts
    kinds: tuple[TaskKindForm, ...]
    fleet: tuple[tuple[GpuTypeName, int], ...]
    arrivals: TaskArrivals
    count: int
    profile_rows: int
    profiled_on: GpuTypeName
    conduct: Conduct = field(default_factory=Conduct)

    def run(self, contender: RunContender, seed: int, planners: Planners, progress: ProgressListener) -> RunOutcome:  # noqa: ARG002
        """All tasks, to the end. Raises EngineError for a contender that schedules no tasks."""
        known = SchedulerInputs(
            facts=told(self.kinds, self.facts, self.profiled_on),
            samples=profiled(self.kinds, [name for name, _ in self.fleet], self.profile_rows, seed),
            seed=seed,
        )
        name = contender.planners[0] if contender.planners else ""
        said = {each.name: json.loads(each.value) for each in contender.settings}
        tasks = coming(self.kinds, self.arrivals, self.count, seed)
        log = TaskRun(scheduler(name, known, said), self.conduct, tasks, seed, cluster(self.fleet)).go(progress)
        text = f"{len(tasks)} tasks in {log.groups} groups, {log.failed} of which failed"
        return RunOutcome(
            scenario=self.about.name,
            contender=contender.label,
            seed=seed,
            metrics=metrics(log, self.kinds),
            services=by_kind(log, self.kinds),
            deeds=(RunEvent(at_s=log.until_s, kind="tasks", text=text),),
        )


PROFILED_ON = "a100-40gb"


class TaskGpusForm(ScenarioForm):
    """Equal GPUs, each a device of its own."""

    gpu_type: str
    count: Annotated[int, Field(ge=1, le=100_000)] = 1


class TaskingForm(Heading):
    """Tasks that come one by one."""

    kind: Literal["tasks"]
    goal: str = "latency_ms_mean"
    better: Better = Better.LOWER
    fleet: Annotated[tuple[TaskGpusForm, ...], Field(min_length=1)]
    tasks: Annotated[tuple[TaskKindForm, ...], Field(min_length=1)]
    arrivals: Annotated[TaskArrivals, Field(discriminator="pattern")]
    count: Count = 1000
    rate_scale: Factor = 1.0
    """Multiplies the rates of all kinds."""
    profile_rows: Annotated[int, Field(ge=1, le=100_000)] = 504
    """Solo measurements that every scheduler has before the first task."""


FORM = TaskingForm


def build(form: TaskingForm, document: Document) -> Bench:
    """The bench of a file. Raises InputError."""
    names = [each.name for each in form.tasks]
    known = facts()
    for index, each in enumerate(form.tasks):
        where = ("tasks", index)
        if names.index(each.name) != index:
            raise document.refusal((*where, "name"), f"there are two kinds of tasks called {each.name}")
        if each.model not in known.models:
            raise document.refusal((*where, "model"), f"the library has no model {each.model}")
        if each.inputs[0] > each.inputs[1]:
            raise document.refusal((*where, "inputs"), "the fewest inputs come first")
    for index, gpus in enumerate(form.fleet):
        if gpu_truth(gpus.gpu_type) is None or gpus.gpu_type not in known.gpu_types:
            raise document.refusal(("fleet", index, "gpu_type"), f"there is no simulated GPU {gpus.gpu_type}")
    return form.made(
        Tasking,
        about=form.about(),
        facts=known,
        kinds=tuple(each.model_copy(update={"rate_per_s": each.rate_per_s * form.rate_scale}) for each in form.tasks),
        fleet=tuple((GpuTypeName(each.gpu_type), each.count) for each in form.fleet),
        profiled_on=GpuTypeName(PROFILED_ON),
    )
