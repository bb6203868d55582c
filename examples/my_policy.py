"""A policy of one's own in one file: the cheapest GPUs first, sized for the peak that this hour of the day usually has.

Try it without a server, tune it, and let it compete (docs/reference/own-policy.md says more):

    headroom plan --snapshot fleet.json --planner examples/my_policy.py:MyPlanner
    headroom planners examples/my_policy.py:MyPlanner
    headroom arena run examples/scenarios/twitter-autoscaling.yaml --planner examples/my_policy.py:MyPlanner --out runs

What it does in every cycle:

1. It notes how much is asked of each service now, as the peak of this hour of the day. Old peaks fade.
2. It sizes each service for the most of three rates: what the policy asks for anyway, and the known peaks of this hour
   and of the next one, as the next one comes near.
3. Service after service it takes the configuration that serves what is missing for the least money, on the fullest GPU
   that has room, where the service stands already if that is possible.

Everything hard is done by what all planners share. `Draft` knows the fleet's books: room, memory margins, MIG slices,
taints, power caps, quotas, budgets, failure domains, what is pinned. Its options are the measured configurations that
keep the service's promise. So what is left for a policy is what makes it that policy, and the plan stands up to the
verifier, which judges it as any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Stateless, Thought, kept, recalled
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.planners.tuning import Tune, check_tuned
from solvers.problems.needs import Need

# Who it is. Plans and records carry the name and the version; state is kept under both, so a new version starts afresh.
# The knobs say what it decides: shares, memory and batches come with the configurations that it chooses among.
SPEC = PlannerSpec(
    name="my-policy",
    version="1",
    knobs=(Knob.GPU_TYPE, Knob.REPLICAS, Knob.PLACEMENT, Knob.SHARE, Knob.MEMORY, Knob.BATCH),
)
FORM = "my-policy-1"
HOUR_S = 3600.0
HOURS = 24


@value
class Parameters:
    """What can be tuned, by name: `--set my-policy.headroom=1.3`. Defaults, ranges and meanings are published."""

    headroom: Annotated[float, Tune("capacity for so many times the peak that is known of the hour", 1, 10)] = 1.1
    fading: Annotated[float, Tune("part of an old peak that is left when its hour comes again", 0, 1)] = 0.9
    ahead_s: Annotated[float, Tune("how long before the next hour its peak counts as well", 0, HOUR_S)] = 900.0

    def __post_init__(self) -> None:
        check_tuned(self)


@value
class Peak:
    """The highest rate of a service that is known of one hour of the day (UTC), and when it was last looked at."""

    workload: WorkloadId
    hour: int
    rate_rps: float
    seen_at_s: float


@value
class Memory:
    """What is kept from cycle to cycle. A plain value: it is stored as bytes and handed back."""

    form: str
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MyPlanner(Stateless):
    """The policy. It is made without arguments; `Stateless` brings `first_state`. It is pure: time comes with the
    snapshot, and the same request and state give the same plan.
    """

    parameters: Parameters = field(default_factory=Parameters)

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        """The plan alone."""
        return self.think(request, state, reporter).proposal

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and the peaks to remember."""
        case = Case.of(request)
        peaks = self.learned(case, state)
        # `rate_rps` is what new capacity is sized for; `rate_rps_least`, the demand itself, is left alone.
        sized = {need.workload: self.sized_for(need, peaks, case.snapshot.taken_at_s) for need in case.needs}
        case = replace(case, needs=tuple(replace(need, rate_rps=sized[need.workload]) for need in case.needs))
        draft = Draft.of(request, case)
        for need in draft.needs:  # services and tasks by falling priority; training jobs are the draft's own business
            serve(draft, need)
        reporter.event("my_policy.planned", services=float(len(draft.needs)))
        reasons = tuple(_reason(need) for need in sorted(draft.needs, key=lambda need: need.workload))
        ordered = tuple(peaks[key] for key in sorted(peaks))
        return Thought(proposal=draft.proposal(SPEC, reasons), state=kept(Memory(form=FORM, peaks=ordered)))

    def learned(self, case: Case, state: bytes) -> dict[tuple[WorkloadId, int], Peak]:
        """What is known of the day's hours, this moment included. State of anybody else counts as none."""
        memory = recalled(Memory, state)
        known = memory.peaks if memory is not None and memory.form == FORM else ()
        peaks = {(item.workload, item.hour): item for item in known}
        now_s = case.snapshot.taken_at_s
        hour = _hour(now_s)
        for need in case.needs:
            if need.kind is not WorkloadKind.SERVICE:
                continue
            before = peaks.get((need.workload, hour))
            old_rps = 0.0 if before is None else before.rate_rps
            if before is not None and now_s - before.seen_at_s > HOUR_S:
                old_rps *= self.parameters.fading  # the hour has come again, a day later
            rate_rps = max(need.rate_rps_least, old_rps)
            peaks[need.workload, hour] = Peak(workload=need.workload, hour=hour, rate_rps=rate_rps, seen_at_s=now_s)
        return peaks

    def sized_for(self, need: Need, peaks: dict[tuple[WorkloadId, int], Peak], now_s: float) -> float:
        """The rate (requests/s) to have capacity for."""
        hours = {_hour(now_s), _hour(now_s + self.parameters.ahead_s)}
        known = [peaks[need.workload, hour].rate_rps for hour in hours if (need.workload, hour) in peaks]
        return max([need.rate_rps, *(self.parameters.headroom * rate_rps for rate_rps in known)])


def serve(draft: Draft, need: Need) -> None:
    """Replica after replica, what serves the rest for the least money; where nothing more fits, say why."""
    options = draft.options(need)
    if not len(options):
        draft.refuse(need)  # no profile, or nothing measured keeps the promise: the reasons are known
        return
    settled = draft.open(need)
    possible = np.ones(len(options), dtype=np.bool_)
    while possible.any() and (settled.rate_rps_wanting > 0 or len(settled.placed) < need.replicas_floor):
        missing_rps = max(settled.rate_rps_wanting, 1e-9)
        usd_per_h = np.ceil(missing_rps / options.capacity_rps) * options.weight_usd_per_h
        # Of options that cost the same the smallest: it leaves the most room for others.
        best = int(np.lexsort((options.share_pct, np.where(possible, usd_per_h, np.inf)))[0])
        option = draft.option(need, best)
        blocked = draft.put(settled, option, draft.at_home(need, draft.best_fit))
        if blocked is not None:
            draft.block(settled, blocked, option)
            possible[best] = False


def _hour(at_s: float) -> int:
    return int(at_s // HOUR_S) % HOURS


def _reason(need: Need) -> Reason:
    """Why a service got what it got. No plan without reasons: `headroom explain` shows them."""
    facts = (
        Fact(name="rate_rps", value=round(need.rate_rps_least, 6)),
        Fact(name="sized_for_rps", value=round(need.rate_rps, 6)),
    )
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=need.workload, facts=facts)
