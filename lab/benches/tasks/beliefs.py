"""What schedulers of tasks believe: latency and throughput of every configuration, and which few are worth keeping.

A task of several inputs takes as long as all its batches, so the latency that is scored, and held against the deadline,
is that of the task. Memory is no free knob here: a batch needs what it needs, rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from lab.benches.tasks.contract import Config, InferenceTask
from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.errors import InputError
from solvers.models.base import Facts, Queries
from solvers.planners.tuning import Tune
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.parameters import Shared
from solvers.policies.oltunes.queues import LOOKED_AT_MAX
from solvers.policies.oltunes.scores import Candidates, PowerTerms, TaskWish, epc_score, ever_full, run_ms, scored

BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
"""Table 3."""


@value
class SchedulerParameters(Shared):
    """The two switches are for finding out what a part is worth; without steps the window stays as it is."""

    memory_margin_mib: Annotated[float, Tune("min_mem: kept free on every GPU", 0, 100_000)] = 512.0
    memory_step_mib: Annotated[float, Tune("memory limits are multiples of this", 1, 100_000)] = 2048.0
    share_step_pct: Annotated[int, Tune("SM shares looked at are multiples of this", 5, 100)] = 10
    nearly_free: Annotated[
        float, Tune("when no GPU is empty: one with more than this part free, or done, counts as available", 0, 1)
    ] = 0.8
    looked_at_max: Annotated[int, Tune("tasks of each queue that are looked at for one group", 4, 100_000)] = (
        LOOKED_AT_MAX
    )
    learned_at_once: Annotated[int, Tune("outcomes that are learned together", 1, 10_000)] = 16
    with_affinity: Annotated[bool, Tune("whether affinity decides who may share")] = True
    with_tuning: Annotated[bool, Tune("whether spare memory is used to tune one task of a group")] = True

    @property
    def shares_pct(self) -> tuple[int, ...]:
        """Shares that are looked at, the whole GPU among them."""
        return (*range(self.share_step_pct, 100, self.share_step_pct), 100)


PROCESS_MIB = 400.0
"""What a process takes before it loads a model."""
MS_PER_S = 1000.0


def check_known(facts: Facts, task: InferenceTask) -> None:
    """Raises InputError for a model that nobody has described: its memory would be a guess."""
    if task.model not in facts.models:
        raise InputError(f"nobody has described the model {task.model} of task {task.id}", model=task.model)


def memory_mib(facts: Facts, model: ModelName, batch: int, parameters: SchedulerParameters) -> float:
    """Limit that batches of this size need, in whole steps."""
    known = facts.models[model]
    needed = PROCESS_MIB + known.memory_mib_weights + known.memory_mib_per_input * batch
    return float(np.ceil(needed / parameters.memory_step_mib) * parameters.memory_step_mib)


@value
class TaskChoice:
    """One of the configurations kept for a task (Eq. 6)."""

    gpu_type: GpuTypeName
    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTable:
    """Every configuration of a model on GPU types that are there, and what is predicted of it, one per row."""

    queries: Queries
    gpu_types: tuple[GpuTypeName, ...]
    memory_mib: Floats
    memory_part: Floats
    tdp_w: Floats
    latency_ms: Floats
    throughput_rps: Floats


class OltunesBeliefs:
    """A predictor with its answers of the moment. Learning gives a new one."""

    def __init__(self, facts: Facts, solo: LearnedSolo, parameters: SchedulerParameters) -> None:
        self.facts = facts
        self.solo = solo
        self.parameters = parameters
        self._tables: dict[tuple[ModelName, tuple[GpuTypeName, ...]], PredictionTable] = {}

    def table(self, model: ModelName, gpu_types: tuple[GpuTypeName, ...]) -> PredictionTable:
        """All configurations that the memory of these types allows."""
        key = (model, gpu_types)
        if key not in self._tables:
            self._tables[key] = self._predicted(model, gpu_types)
        return self._tables[key]

    def _predicted(self, model: ModelName, gpu_types: tuple[GpuTypeName, ...]) -> PredictionTable:
        rows = [
            (gpu_type, batch, share, needed)
            for gpu_type in gpu_types
            for batch in BATCHES
            if (needed := memory_mib(self.facts, model, batch, self.parameters))
            <= self.facts.gpu_types[gpu_type].memory_mib - self.parameters.memory_margin_mib
            for share in self.parameters.shares_pct
        ]
        types = tuple(row[0] for row in rows)
        queries = Queries.of(model, types, [row[1] for row in rows], [row[2] for row in rows])
        latency, throughput = self.solo.predict_both(queries)
        needed_mib = np.array([row[3] for row in rows])
        total_mib = np.array([float(self.facts.gpu_types[name].memory_mib) for name in types])
        return PredictionTable(
            queries=queries,
            gpu_types=types,
            memory_mib=needed_mib,
            memory_part=needed_mib / total_mib,
            tdp_w=np.array([self.facts.gpu_types[name].tdp_w for name in types]),
            latency_ms=latency.mean,
            throughput_rps=throughput.mean,
        )

    def choices(
        self, task: InferenceTask, gpu_types: Sequence[GpuTypeName], cluster_utilisation: float
    ) -> tuple[tuple[TaskChoice, ...], float]:
        """D of a task (Eq. 6), best first on each type, and its mean predicted time in seconds. No choices where none
        of its configurations fits any GPU.
        """
        allowed = tuple(sorted(set(gpu_types) & set(task.gpu_types_allowed or gpu_types)))
        table = self.table(task.model, allowed)
        batch = table.queries.batch
        run_s = run_ms(task.inputs, batch, table.latency_ms) / MS_PER_S
        rated = Candidates(
            configurations=table.queries,
            latency_ms=np.where(ever_full(task.inputs, batch), run_s * MS_PER_S, np.nan),
            throughput_rps=table.throughput_rps,
            epc=epc_score(_power_terms(table, run_s, self.parameters.idle_w)),
        )
        wish = TaskWish(
            latency_weight=task.latency_weight,
            deadline_ms=task.deadline_s * MS_PER_S,
            cluster_utilisation=min(1.0, max(0.0, cluster_utilisation)),
            slack_weight=self.parameters.alpha,
        )
        kept = [int(row) for row in scored(rated, wish).kept]
        choices = tuple(_choice(table, row) for row in kept)
        return choices, float(np.mean(run_s[kept])) if kept else 0.0


def _power_terms(table: PredictionTable, run_s: Floats, idle_w: float) -> PowerTerms:
    return PowerTerms(
        idle_w=idle_w,
        tdp_w=table.tdp_w,
        sm_utilisation=table.queries.share_pct / 100.0,
        memory_used=table.memory_part,
        latency_s=run_s,
    )


def _choice(table: PredictionTable, row: int) -> TaskChoice:
    config = Config(
        batch=int(table.queries.batch[row]),
        share_pct=int(table.queries.share_pct[row]),
        memory_mib=float(table.memory_mib[row]),
        latency_ms=float(table.latency_ms[row]),
        throughput_rps=float(table.throughput_rps[row]),
    )
    return TaskChoice(gpu_type=table.gpu_types[row], config=config)
