"""Kubernetes' horizontal autoscaler with its defaults, every replica on a whole GPU of a type chosen at random.

Owns the published rule: wanted = ceil(current x metric / target), nothing within the tolerance, at most a doubling or
four more per minute, and down only to the highest recommendation of the window. The metric is demand over capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.value import value
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought, kept, recalled
from solvers.planners.case import Case
from solvers.planners.draft import Draft, on_whole_devices
from solvers.planners.seating import Placed
from solvers.planners.traits import Sample, mean_rate_rps, sampled
from solvers.planners.tuning import Counts, Tune, TunedRecord
from solvers.problems.choice import Option
from solvers.problems.needs import Need

SPEC = PlannerSpec(
    name="k8s_hpa",
    about="Kubernetes' default autoscaler, each replica on a whole GPU of a random type",
    version="2",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT),
)
FORM = "k8s-hpa-2"
WHOLE_PCT = 100
MOMENTS_MAX = 1000
DUST = 1e-9


@value
class HpaParameters(TunedRecord):
    """The autoscaler's defaults. Times in seconds."""

    target: Annotated[float, Tune("demand over capacity that is aimed at", 0.01, 1)] = 0.80
    tolerance: Annotated[float, Tune("a metric this near to the target, as a part of it, changes nothing", 0, 1)] = 0.1
    down_window_s: Annotated[
        float, Tune("replicas fall to the highest recommendation within this window", 0, 86_400)
    ] = 300.0
    up_period_s: Annotated[
        float, Tune("within such a period replicas at most double, or grow by up_pods, whichever is more", 1, 86_400)
    ] = 60.0
    up_pods: Annotated[int, Tune("see up_period_s", 1, 1000)] = 4
    rate_window_s: Annotated[
        float, Tune("demand is the mean over so long; 0: the busiest moment that the snapshot tells of", 0, 86_400)
    ] = 120.0
    batches: Annotated[
        Counts, Tune("batch of each model, as in resnet50=8,bert=2; without one, the batch that serves most")
    ] = Counts()


@value
class Moment:
    """What was recommended at a moment, and how many replicas there were then."""

    at_s: float
    recommended: int
    current: int


@value
class Scaler:
    """One service's recent moments and rates, the oldest first."""

    workload: WorkloadId
    moments: tuple[Moment, ...] = ()
    rates: tuple[Sample, ...] = ()


@value
class HpaMemory:
    form: str = FORM
    scalers: tuple[Scaler, ...] = ()


def recommended(current: int, metric: float, parameters: HpaParameters) -> int:
    """The ratio rule. `metric`: demand over capacity."""
    ratio = metric / parameters.target
    if abs(ratio - 1) <= parameters.tolerance + DUST:
        return current
    return math.ceil(current * ratio - DUST)


def stabilised(current: int, wanted: int, now_s: float, moments: tuple[Moment, ...], parameters: HpaParameters) -> int:
    if wanted < current:
        recent = [item.recommended for item in moments if now_s - item.at_s < parameters.down_window_s]
        return min(current, max([wanted, *recent]))
    begun = [item.current for item in moments if now_s - item.at_s < parameters.up_period_s]
    base = min([current, *begun])
    return min(wanted, max(current, 2 * base, base + parameters.up_pods))


@dataclass(frozen=True, slots=True, kw_only=True)
class K8sHpa(Recalling):
    parameters: HpaParameters = field(default_factory=HpaParameters)
    spec: ClassVar[PlannerSpec] = SPEC

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        before = {item.workload: item for item in (recalled(HpaMemory, state) or HpaMemory()).scalers}
        draft = Draft.of(request, on_whole_devices(Case.of(request)))
        standing = draft.stand()
        for need in draft.needs:
            draft.keep(need, standing[need.workload], standing[need.workload])
        scalers, reasons = [], []
        for need in draft.needs:
            scaler, wanted = self._wanted(draft, need, before.get(need.workload, Scaler(workload=need.workload)))
            scalers.append(scaler)
            reasons.append(_reason(need, scaler.moments[-1], wanted))
            self._scale(draft, need, wanted)
        reporter.event("k8s_hpa.scaled", services=float(len(scalers)))
        ordered = tuple(sorted(scalers, key=lambda item: item.workload))
        return Thought(proposal=draft.proposal(SPEC, tuple(reasons)), state=kept(HpaMemory(scalers=ordered)))

    def _wanted(self, draft: Draft, need: Need, before: Scaler) -> tuple[Scaler, int]:
        running, now_s, parameters = draft.open(need).placed, draft.case.snapshot.taken_at_s, self.parameters
        seen = (item for item in before.rates if 0 <= now_s - item.at_s <= parameters.rate_window_s)
        rates = (*seen, sampled(draft.case, need))[-MOMENTS_MAX:]
        rate_rps = mean_rate_rps(rates, parameters.rate_window_s) if parameters.rate_window_s else need.rate_rps_least
        least = max(need.replicas_floor, 1 if need.rate_rps_least > 0 else 0)
        current, capacity_rps = len(running), sum(item.capacity_rps for item in running)
        # Without a replica there is no metric: the floor is started.
        asked = recommended(current, rate_rps / capacity_rps, parameters) if capacity_rps else least
        asked = min(max(asked, least), need.replicas_max)
        wanted = stabilised(current, asked, now_s, before.moments, parameters)
        longest_s = max(parameters.down_window_s, parameters.up_period_s)
        recent = [item for item in before.moments if 0 <= now_s - item.at_s < longest_s][1 - MOMENTS_MAX :]
        moments = (*recent, Moment(at_s=now_s, recommended=asked, current=current))
        return Scaler(workload=need.workload, moments=moments, rates=rates), max(wanted, min(least, asked))

    def _scale(self, draft: Draft, need: Need, wanted: int) -> None:
        """Stop the latest slots, or start replicas on types drawn at random."""
        settled = draft.open(need)
        for item in sorted(settled.placed, key=_slot, reverse=True)[: max(0, len(settled.placed) - wanted)]:
            draft.stop(need, item)
        kinds = draft.fixed(need, WHOLE_PCT, self.parameters.batches.by_name.get(need.model))
        if not kinds:
            draft.refuse(need)
            return
        generation = draft.case.snapshot.target.generation
        rng = draft.request.streams.stream(f"k8s_hpa.{generation}.{need.workload}")
        while len(settled.placed) < wanted:
            blocked = None
            for at in _drawn(rng, kinds):
                blocked = draft.put(settled, kinds[at], draft.best_fit)
                if blocked is None:
                    break
            if blocked is not None:
                draft.block(settled, blocked, kinds[0])
                return


def _drawn(rng: np.random.Generator, kinds: list[Option]) -> list[int]:
    """Types in random order, each as likely whatever its number of classes (prices, nodes) is; by class within one."""
    types = sorted({item.gpu_type for item in kinds})
    order = [types[int(at)] for at in rng.permutation(len(types))]
    return sorted(range(len(kinds)), key=lambda at: (order.index(kinds[at].gpu_type), at))


def _slot(item: Placed) -> tuple[int, str]:
    """Standing replicas by their ordinal."""
    name = "" if item.standing is None else item.standing.replica
    return int(name.rpartition("#")[2] or 0), name


def _reason(need: Need, moment: Moment, wanted: int) -> Reason:
    code = ReasonCode.KEPT_STANDING if wanted == moment.current else ReasonCode.CHEAPEST_FEASIBLE
    facts = (
        Fact(name="replicas", value=float(moment.current)),
        Fact(name="replicas_recommended", value=float(moment.recommended)),
        Fact(name="replicas_wanted", value=float(wanted)),
    )
    return Reason(code=code, subject=need.workload, facts=facts)
