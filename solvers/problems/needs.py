"""What each workload needs, whatever its kind: a rate under a latency promise, between so many replicas, under its
owner's rules.

Owns the reading of SLO kinds. A service's `latency` SLO bounds the request (scopes `end_to_end` and `window`) or the
execution; `deadline` bounds the request by the deadline; `throughput` sets a floor under the rate and no latency;
`tokens` bounds the first token and the time between tokens, and such a need carries what is known of the service's
requests and its networks' steps, or its refusal where nobody said how long requests are. An offline task needs its
remaining rate and no latency. A training job needs one replica with a range of share. Rates are the upper demand (or
the declared rate where none was observed), and with the policy's headroom or its allowance for noise, whichever is
larger, what new capacity is sized for.

A service is *open-ended*, its rate a floor, where nobody counts what is asked of it and it promises nothing about
waiting: a margin below full use is there for queues and would only keep a declared rate from being what it says. What
remains of it is for beliefs that err, and for controllers that end below the planned clock. As long as the demand of
any service that does promise something about waiting is uncounted, nobody may have begun to count, and nobody is
open-ended.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType, Taint
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, ServiceId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.domain.profile import TokenLengths, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DEMAND_BIN_S, Demand, DemandOrigin
from solvers.domain.value import value
from solvers.domain.workload import (
    Affinity,
    AntiAffinity,
    ModelVariant,
    OfflineTask,
    Service,
    Slo,
    SloKind,
    SloScope,
    TrainingJob,
    WorkloadKind,
)

UTILISATION_OPEN = 0.9
"""Of the time of a replica whose service is open-ended, where the policy allows no more to everybody."""


def open_ended_services(snapshot: Snapshot) -> frozenset[ServiceId]:
    """Services whose declared rate is a floor and who can use whatever comes on top."""
    counted = {item.service for item in snapshot.demands if item.origin is DemandOrigin.OBSERVED}
    uncounted = [item for item in snapshot.services if item.id not in counted]
    if not all(never_waits(item.slo) for item in uncounted):
        return frozenset()
    return frozenset(item.id for item in uncounted)


def never_waits(slo: Slo) -> bool:
    """Whether a promise says nothing of waiting: of execution alone, or a floor under the rate."""
    return slo.kind is SloKind.THROUGHPUT or (slo.kind is SloKind.LATENCY and slo.scope is SloScope.EXECUTION)


def limit_ms(slo: Slo) -> float | None:
    """Of a request, or of its first token; None where only throughput counts."""
    if slo.kind is SloKind.DEADLINE and slo.deadline_s is not None:
        return 1000 * slo.deadline_s
    return slo.first_token_ms if slo.kind is SloKind.TOKENS else slo.latency_ms


def utilisation_open(policy: Policy) -> float:
    """How busy a replica of an open-ended service may be planned to be."""
    return max(policy.utilisation_max, UTILISATION_OPEN)


TASK_REPLICAS_MAX = 16
"""An offline task may spread this far; its owner declares no bound of its own."""
JOB_MEMORY_STEP_MIB = 64


DOMAINS_MOST = 64
"""That anybody may ask for."""


@value
class TokenNeed:
    """What an LLM service promises beside the first token, whose limit is the need's; and what is known for it."""

    inter_token_ms: float
    lengths: TokenLengths
    profiles: tuple[TokenProfile, ...] = ()
    """Of its networks, on every GPU type that anything is known of."""

    def profile(self, model: ModelName, gpu_type: GpuTypeName) -> TokenProfile | None:
        return next((item for item in self.profiles if (item.model, item.gpu_type) == (model, gpu_type)), None)


@value
class Need:
    """One workload's wish in the planner's terms."""

    kind: WorkloadKind
    workload: WorkloadId
    project: ProjectName
    model: ModelName
    priority: int
    rate_rps: float
    """What new capacity is sized for, headroom or noise included; for a job 0."""
    rate_rps_least: float = 0.0
    """What must be served: capacity that stands is enough while it is not below this."""
    limit_ms: float | None = None
    """Of a request, or of its first token."""
    percentile: float = 99.0
    end_to_end: bool = False
    tokens: TokenNeed | None = None
    """Set for services that answer token by token; their replicas take whole GPUs."""
    replicas_min: int = 1
    replicas_max: int = 1
    gpu_types_allowed: tuple[GpuTypeName, ...] = ()
    tolerations: tuple[Taint, ...] = ()
    affinity: Affinity = Affinity(anti_affinity=AntiAffinity.OFF)
    domains_there: int = DOMAINS_MOST
    """Failure domains of devices that could serve it, as far as somebody looked."""
    budget_usd_per_h: float | None = None
    alternatives: tuple[ModelName, ...] = ()
    """Other networks that may serve it: the owner's, as far as they keep his floor on accuracy."""
    alternatives_refused: tuple[Reason, ...] = ()
    """Why the owner's other alternatives may not."""
    refusal: Reason | None = None
    """Set when no planner of ours can serve this SLO."""
    open_ended: bool = False
    """Whether its rate is a floor, and whatever it is given on top is of use."""

    def kept_ms(self, planned_ms: float) -> float:
        """Latency of a replica that is shown to keep its promise: what was planned may be from before that was
        tightened.
        """
        return planned_ms if self.limit_ms is None else min(planned_ms, self.limit_ms)

    @property
    def weight(self) -> float:
        """What one unit short counts in the objective."""
        return float(max(1, self.priority))

    @property
    def domains_floor(self) -> int:
        """Failure domains wanted: no more than can be had, since a replica beside the first is no step to another."""
        return max(1, min(self.affinity.failure_domains_min, self.domains_there, self.replicas_max))

    @property
    def replicas_floor(self) -> int:
        """Replicas wanted whatever the rate: the owner's floor, and one per failure domain as soon as anything must
        run.
        """
        spread = self.domains_floor if self.rate_rps > 0 or self.replicas_min else 0
        return min(max(self.replicas_min, spread), self.replicas_max)


def pinned_assignments(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> tuple[Assignment, ...]:
    """Standing replicas, by id, that a plan must keep as they are: of workloads that exist and may not move, on devices
    that exist.
    """
    known: set[str] = {service.id for service in snapshot.services}
    known |= {job.id for job in snapshot.jobs} | {task.id for task in snapshot.tasks}
    held = known - set(movable)
    devices = {device.id for device in snapshot.devices}
    standing = (item for item in snapshot.target.assignments if item.workload in held and item.device in devices)
    return tuple(sorted(standing, key=lambda item: item.replica))


def going_on(snapshot: Snapshot) -> frozenset[str]:
    """Workloads that still have work: every service, and jobs and tasks that are not done."""
    done: dict[str, int] = {status.workload: status.done for status in snapshot.job_statuses}
    total: dict[str, int] = {job.id: job.iterations_total for job in snapshot.jobs}
    total |= {task.id: task.inputs_total for task in snapshot.tasks}
    finite = (name for name, most in total.items() if done.get(name, 0) < most)
    return frozenset((*(service.id for service in snapshot.services), *finite))


def needs_of(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> tuple[Need, ...]:
    """Needs of the movable workloads that still have work, by kind, then falling priority, then id."""
    wanted = going_on(snapshot).intersection(movable)
    demands = snapshot.demands_by_service()
    catalogue, endless = snapshot.models_by_name(), open_ended_services(snapshot)
    services = [
        _with_tokens(
            _with_alternatives(
                replace(_of_service(item, demands.get(item.id), snapshot.policy), open_ended=item.id in endless),
                item,
                catalogue,
            ),
            item,
            snapshot.token_profiles,
        )
        for item in snapshot.services
        if item.id in wanted
    ]
    tasks = [_of_task(task) for task in snapshot.tasks if task.id in wanted]
    jobs = [_of_job(job) for job in snapshot.jobs if job.id in wanted]
    return tuple(_checked(need, catalogue) for need in (*_ordered(services), *_ordered([*tasks, *jobs])))


def _with_alternatives(need: Need, service: Service, catalogue: dict[ModelName, ModelVariant]) -> Need:
    """The need with the networks of its owner's list that are known to be accurate enough."""
    if not service.alternatives:
        return need
    permitted, refused = [], []
    for name in service.alternatives:
        model, floor = catalogue.get(name), service.accuracy_pct_min
        if model is None:
            facts: tuple[Fact, ...] = (Fact(name="catalogue", value="unknown"),)
            refused.append(Reason(code=ReasonCode.NO_PROFILE, subject=name, facts=facts))
        elif floor is not None and (model.accuracy_pct is None or model.accuracy_pct < floor):
            known = "unknown" if model.accuracy_pct is None else model.accuracy_pct
            facts = (Fact(name="accuracy_pct", value=known), Fact(name="accuracy_pct_min", value=floor))
            refused.append(Reason(code=ReasonCode.ACCURACY_TOO_LOW, subject=name, facts=facts))
        else:
            permitted.append(name)
    return replace(need, alternatives=tuple(permitted), alternatives_refused=tuple(refused))


def _with_tokens(need: Need, service: Service, profiles: tuple[TokenProfile, ...]) -> Need:
    between_ms = service.slo.inter_token_ms
    if service.slo.kind is not SloKind.TOKENS or between_ms is None:
        return need
    if service.tokens is None:
        facts = (Fact(name="profile_kind", value="tokens"), Fact(name="tokens", value="unknown"))
        return replace(need, refusal=Reason(code=ReasonCode.NO_PROFILE, subject=service.model, facts=facts))
    networks = {need.model, *need.alternatives}
    known = tuple(item for item in profiles if item.model in networks)
    return replace(need, tokens=TokenNeed(inter_token_ms=between_ms, lengths=service.tokens, profiles=known))


def _checked(need: Need, catalogue: dict[ModelName, ModelVariant]) -> Need:
    """Nothing can be started of a model that the catalogue does not know."""
    if need.model in catalogue or need.refusal is not None:
        return need
    facts = (Fact(name="catalogue", value="unknown"),)
    return replace(need, refusal=Reason(code=ReasonCode.NO_PROFILE, subject=need.model, facts=facts))


def _ordered(needs: list[Need]) -> list[Need]:
    return sorted(needs, key=lambda need: (-need.priority, need.kind, need.workload))


def sized_for_rps(rate_rps: float, policy: Policy) -> float:
    """What new capacity is sized for when so much must be served. The busiest of many bins holds the noise of counting
    already, so headroom and noise are not added: noise counts where headroom is less, at low rates.
    """
    return float(sizes_rps(np.array(rate_rps), policy))


def sizes_rps(rates_rps: Floats, policy: Policy) -> Floats:
    """Likewise, of many."""
    noise_rps = policy.demand_noise_sigmas * np.sqrt(rates_rps / DEMAND_BIN_S)
    return np.asarray(rates_rps + np.maximum(rates_rps * (policy.demand_headroom - 1), noise_rps))


def _of_service(service: Service, demand: Demand | None, policy: Policy) -> Need:
    rate = service.rate_rps_declared if demand is None else demand.rate_rps_upper
    slo = service.slo
    if slo.kind is SloKind.THROUGHPUT and slo.throughput_rps_min is not None:
        rate = max(rate, slo.throughput_rps_min)
    return Need(
        kind=WorkloadKind.SERVICE,
        workload=WorkloadId(service.id),
        project=service.project,
        model=service.model,
        priority=service.priority,
        rate_rps=sized_for_rps(rate, policy),
        rate_rps_least=rate,
        limit_ms=limit_ms(slo),
        percentile=slo.percentile,
        end_to_end=slo.scope is not SloScope.EXECUTION and slo.kind is not SloKind.TOKENS,
        replicas_min=service.replicas_min,
        replicas_max=service.replicas_max,
        gpu_types_allowed=service.gpu_types_allowed,
        tolerations=service.tolerations,
        affinity=service.affinity,
        budget_usd_per_h=service.budget_usd_per_h,
    )


def task_rate_rps(task: OfflineTask) -> float:
    """The rate a task needs: its floor, or all its inputs spread over its deadline."""
    if task.slo.kind is SloKind.THROUGHPUT:
        return task.slo.throughput_rps_min or 0.0
    return task.inputs_total / task.slo.deadline_s if task.slo.deadline_s else 0.0


def iterations_per_s(job: TrainingJob, types: dict[GpuTypeName, GpuType], gpu_type: GpuTypeName) -> float:
    """Speed of a job on a whole GPU if it scales with the fp32 peak; on a share of it, that part of it. The job's owner
    gave only the reference.
    """
    reference = types.get(job.gpu_type_reference)
    ratio = types[gpu_type].fp32_tflops / reference.fp32_tflops if reference is not None else 1.0
    return 1000 / job.iteration_ms_reference * ratio


def job_memory_mib(job: TrainingJob) -> int:
    return _in_steps(job.memory_mib)


def job_memory_mib_least(job: TrainingJob) -> int:
    """The lowest limit that a job's owner lets it have, with the rest of its memory on the host."""
    return _in_steps(job.memory_mib if job.memory_mib_resident_min is None else job.memory_mib_resident_min)


def _in_steps(memory_mib: int) -> int:
    return math.ceil(memory_mib / JOB_MEMORY_STEP_MIB) * JOB_MEMORY_STEP_MIB


def _of_task(task: OfflineTask) -> Need:
    return Need(
        kind=WorkloadKind.TASK,
        workload=WorkloadId(task.id),
        project=task.project,
        model=task.model,
        priority=task.priority,
        rate_rps=task_rate_rps(task),
        rate_rps_least=task_rate_rps(task),
        replicas_max=TASK_REPLICAS_MAX,
        gpu_types_allowed=task.gpu_types_allowed,
        tolerations=task.tolerations,
    )


def _of_job(job: TrainingJob) -> Need:
    return Need(
        kind=WorkloadKind.JOB,
        workload=WorkloadId(job.id),
        project=job.project,
        model=job.model,
        priority=job.priority,
        rate_rps=0.0,
        gpu_types_allowed=job.gpu_types_allowed,
        tolerations=job.tolerations,
    )
