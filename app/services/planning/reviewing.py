"""A stored plan by the fleet as it is now: whether it could be promoted, and what it would change, in which order.

A plan that waits keeps its digest while the fleet moves on, so everything it claims is derived again from the present
picture: names that are gone, the verifier's findings, its cost and what it leaves unserved. One that serves less than
what stands, or keeps an SLO no more, is not promoted by approval; a rollback may be. How much each replica would carry
is believed otherwise each few minutes: a rate that was claimed is no obstacle, what is left unserved by now is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import islice
from math import isclose
from typing import Any

from app.records import record, record_of
from app.services.declared.tokens import BY_TOKEN
from app.services.explaining.sentences import places_of
from app.services.planning.rollout import terms_of
from app.services.whatif.made import Made, Wish, judged_anew, kept
from app.services.whatif.outcome import WorkloadChange, power_w_of, use_by_type, workload_changes
from app.store.plans import DIGEST, PlanState, PlanSummary
from solvers.cycle.attempts import Asking
from solvers.cycle.gate import asks_for, fatal_words
from solvers.cycle.record import CycleRecord, HoldReason, Lane
from solvers.cycle.target import leaving
from solvers.domain.change import Change, ChangeKind, Target, Transition, diff
from solvers.domain.codec import digest
from solvers.domain.evidence import Finding, FindingCode, Severity, SilentReporter
from solvers.domain.ids import DeviceId, Digest, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Plan, Unplaced
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ServiceMode
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.verify.checks import verify
from solvers.verify.picture import knobs

DUST = 1e-6
BLOCKERS_MAX = 20
_PROMISES = (FindingCode.CAPACITY_SHORT, FindingCode.LATENCY_EXCEEDED, FindingCode.ENVELOPE_INVALID)
_ASKING = Asking(propose=registry.propose, verify=verify, reporter=SilentReporter())


class Review:
    """What a picture says to a stored plan. Raises EngineError where what stands cannot be restated, which no living
    fleet ever was seen to do.
    """

    def __init__(self, picture: Snapshot, stored: Plan, lane: Lane, terms: Mapping[str, str] | None = None) -> None:
        """`terms`: what it was to tell processes of their documents when it was made, where that is kept."""
        wish = Wish(lane=lane)
        before, after = kept(picture, wish, _ASKING), judged_anew(stored, picture, wish, _ASKING)
        if before.plan is None or after.plan is None:
            raise EngineError("what stands cannot be judged now")
        self.picture, self.stored, self.gone = picture, stored, tuple(_gone(picture, stored))
        self._terms = terms
        self.places = places_of(picture.devices)
        # `after` is the plan by this picture, without workloads and devices that are gone.
        self.before = Made(picture=picture, plan=before.plan, chosen=before)
        self.after = Made(picture=picture, plan=after.plan, chosen=after)

    @cached_property
    def unsound(self) -> tuple[str, ...]:
        """Why it must not be promoted, whoever asks: findings with what they are about."""
        # A device is told once for all of its replicas.
        fatal = dict.fromkeys(fatal_words([item], self.places) for item in self._fatal if item.code not in _PROMISES)
        told = {item.replica: knobs(item) for item in self.after.plan.assignments}
        other = [
            f"foreign device ({item.replica})"
            for item in self.stored.assignments
            if not self.gone and told.get(item.replica) != knobs(item)
        ]
        return (*self.gone, *islice(fatal, BLOCKERS_MAX), *other[:BLOCKERS_MAX])

    @property
    def _fatal(self) -> Iterator[Finding]:
        """What the verifier holds against it, but for rates that its replicas were believed to carry."""
        claims = {item.replica for item in self.after.plan.assignments}
        for item in self.after.chosen.findings:
            claimed = item.code is FindingCode.CAPACITY_SHORT and item.subject in claims
            if item.severity is Severity.FATAL and not claimed:
                yield item

    @cached_property
    def worse(self) -> tuple[str, ...]:
        """Promises that it would not keep, and workloads that it would serve less than what stands does."""
        unkept = [fatal_words([item], self.places) for item in self._fatal if item.code in _PROMISES]
        return (*unkept[:BLOCKERS_MAX], *self._falls_short())

    def _falls_short(self) -> tuple[str, ...]:
        now, then = self.before.plan, self.after.plan
        if then.objective.unserved <= now.objective.unserved * (1 + DUST) + DUST:
            return ()
        lacking = {item.workload: item for item in now.unplaced}
        return tuple(
            told for item in then.unplaced if (told := _short(item, lacking.get(item.workload))) is not None
        ) or ("falls short (more is left unserved than as it stands)",)

    @property
    def blocked(self) -> tuple[str, ...]:
        """Why it cannot be approved."""
        return (*self.unsound, *self.worse, *self._retold)

    @cached_property
    def _retold(self) -> tuple[str, ...]:
        """Workloads whose processes it would tell of another document than it was made of: nobody read that plan."""
        if self._terms is None:
            return ()
        now = sorted(terms_of(self.picture, self.stored).items())
        changed = [name for name, told in now if self._terms.get(name) != told]
        return tuple(f"made before its document changed ({name})" for name in changed[:BLOCKERS_MAX])

    @property
    def added_usd_per_h(self) -> float:
        """What it costs more than what stands, to the cent."""
        return round(self.after.plan.objective.cost_usd_per_h - self.before.plan.objective.cost_usd_per_h, 2) + 0.0

    @cached_property
    def transition(self) -> Transition:
        """The changes from what stands to the plan."""
        return diff(self.picture.target, self.stored, {model.name: model.launch_s for model in self.picture.models})

    def undoes(self, made_for: Target) -> tuple[str, ...]:
        """Workloads that moved by themselves since the plan was made for that target, and that it moves again: nobody
        asked for these to wait.
        """
        auto = {work.id for work in self.picture.works if work.mode is ServiceMode.AUTO}
        made = (made_for, self.picture.target, self.stored)
        was, now, then = (_knobs_of(each.assignments) for each in made)
        return tuple(
            f"{name} (changed since generation {made_for.generation}; it would stand "
            f"{'as it did then' if then.get(name) == was.get(name) else 'otherwise again'})"
            for name in sorted(auto)
            if now.get(name) != was.get(name) and then.get(name) != now.get(name)
        )

    def asks(self, outdated: tuple[WorkloadId, ...]) -> bool:
        """Whether there is still something for somebody to decide."""
        return bool(asks_for(self.picture, self.transition, outdated))


def _knobs_of(assignments: Iterable[Assignment]) -> dict[str, set[tuple[object, ...]]]:
    found: dict[str, set[tuple[object, ...]]] = {}
    for item in assignments:
        found.setdefault(item.workload, set()).add(knobs(item))
    return found


@dataclass(frozen=True, slots=True)
class Waits:
    """A plan that waits for approval, by the fleet as it is now."""

    summary: PlanSummary
    review: Review

    def replaces(self, older: Waits) -> bool:
        """Whether this one waits on in place of one that was made before. What can be approved goes before what cannot;
        what somebody may have read stays, unless this serves more, costs less by what a change has to gain, or was
        asked for by somebody.
        """
        if older.review.blocked or self.review.blocked:
            return bool(older.review.blocked)
        mine, theirs = self.review.after.plan.objective, older.review.after.plan.objective
        if abs(mine.unserved - theirs.unserved) > DUST * (1 + theirs.unserved):
            return mine.unserved < theirs.unserved
        policy = self.review.picture.policy
        least_usd = max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * theirs.cost_usd_per_h)
        asked_for = self.summary.created_by.startswith(BY_TOKEN)
        return asked_for or theirs.net_usd_per_h - mine.net_usd_per_h >= max(least_usd, DUST)


def live(waits: Sequence[Waits]) -> Waits | None:
    """The one that waits on; of these, the newest first."""
    found: Waits | None = None
    for each in reversed(waits):
        found = each if found is None or each.replaces(found) else found
    return found


def short_plan(plan_id: str) -> str:
    return plan_id.removeprefix(DIGEST)[:12]


def cheaper_words(waiting: Iterable[PlanSummary]) -> str | None:
    """Which of the plans that could be approved saves most, and how to approve it; None where none saves anything."""
    fitting = (
        (item.added_usd_per_h, item.id) for item in waiting if not item.blocked and item.added_usd_per_h is not None
    )
    added, best = min(fitting, default=(0.0, ""))
    short = short_plan(best)
    return (
        f"plan {short} waits for approval and costs {_beside(added)} what stands: headroom approve {short}"
        if added < 0
        else None
    )


def known_by_now(item: PlanSummary, generation: int, looked: Mapping[str, datetime]) -> tuple[str, ...]:
    """What whoever decides on a plan that waits should know: whether it fits, what it costs beside what stands, whether
    that changed since it was made, and since when the planner sees it so.
    """
    if item.state is not PlanState.AWAITING_APPROVAL:
        return ()
    found, more = list[str](), len(item.blocked) - 1
    if item.blocked:
        found.append(f"cannot be approved now: {item.blocked[0]}{f' and {more} more' if more else ''}")
    elif item.added_usd_per_h is not None:
        found.append(f"costs {_beside(item.added_usd_per_h)} what stands")
    if generation != item.parent_generation:
        found.append(f"made for generation {item.parent_generation}, {generation} stands by now")
    if item.id in looked:
        found.append(f"as the planner saw it at {looked[item.id]:%H:%M:%S} UTC")
    return tuple(found)


def _beside(added: float) -> str:
    return f"${abs(added):.2f}/h {'less' if added < 0 else 'more'} than" if added else "as much as"


def matter_of(picture: Snapshot, plan: Plan) -> Digest:
    """What somebody has to decide on: the documents of the workloads on approve, and where the plan has them."""
    mine = {WorkloadId(work.id): work for work in picture.works if work.mode is ServiceMode.APPROVE}
    theirs = (item for item in plan.assignments if item.workload in mine)
    told: dict[str, Any] = {"latency_ms_planned": None, "capacity_rps": 0.0, "power_w_planned": 0.0, "reasons": ()}
    return digest((*mine.values(), *(replace(item, **told) for item in theirs)))


def _gone(picture: Snapshot, plan: Plan) -> Iterator[str]:
    devices, works = picture.devices_by_id(), {WorkloadId(work.id) for work in picture.works}
    lost = sorted({item.device for item in plan.assignments} - set(devices))
    yield from (f"unknown device ({device})" for device in lost[:BLOCKERS_MAX])
    ended = sorted({item.workload for item in plan.assignments} - works)
    yield from (f"unknown workload ({workload})" for workload in ended[:BLOCKERS_MAX])


def _short(item: Unplaced, before: Unplaced | None) -> str | None:
    more = item.rate_rps_short - (before.rate_rps_short if before is not None else 0.0)
    if before is not None and more <= DUST:
        return None
    what = f"{more:.4g} requests/s less than as it stands" if more > DUST else "without what it has as it stands"
    return f"falls short ({item.workload}: {what})"


# --- The difference, for people


@record
class PlanTotals:
    """A plan in numbers, by the fleet and the demand of now."""

    cost_usd_per_h: float
    power_w: float
    """Of the GPUs in use."""
    unserved: float
    """Weighted by priority."""
    rate_rps_short: float
    slo_risk: float
    workloads_short: int
    replicas: int
    gpus_in_use: int


@record
class HeldReplica:
    """A replica on a device, as a plan has it."""

    replica: str
    workload: str
    model: str
    share_pct_sm: int
    memory_mib_limit: int
    batch: int


@record
class DeviceDiff:
    """A device on which something changes."""

    device: str
    node: str | None
    gpu_type: str | None
    index: int | None
    before: tuple[HeldReplica, ...]
    after: tuple[HeldReplica, ...]
    setting_before: DeviceSetting | None
    setting_after: DeviceSetting | None


@record
class PlanStep:
    """One change. Steps are in the order in which agents make them: what frees comes before what takes; nodes work at
    the same time.
    """

    kind: ChangeKind
    subject: str
    """A replica, or a device."""
    workload: str | None
    device_before: str | None
    device_after: str | None
    node: str | None
    """Where it happens."""
    said: str
    launch_s: float
    goes_on_s: float
    """What ends serves on for so long, while what replaces it starts."""


@record
class PlanDiff:
    """What a plan would change against what stands now. Its tag is that of the current target: an approval that names
    it in If-Match is of what was read.
    """

    plan_id: str
    lane: Lane
    state: str
    generation: int
    """Of what stands."""
    standing: str | None
    fits: bool
    blocked: tuple[str, ...]
    """Why it cannot be approved now."""
    undoes: tuple[str, ...]
    """Workloads on auto that were changed since the plan was made, and that it would change again."""
    before: PlanTotals
    after: PlanTotals
    told: tuple[str, ...]
    """Of a plan that waits: what whoever decides should know by now."""
    workloads: tuple[WorkloadChange, ...]
    """Those that are served otherwise."""
    workloads_same: int
    devices: tuple[DeviceDiff, ...]
    steps: tuple[PlanStep, ...]


def difference(review: Review, summary: PlanSummary, made_for: Target) -> PlanDiff:
    """All of it. `made_for`: what stood when the plan was made."""
    rows, target = workload_changes(review.before, review.after), review.picture.target
    differing = tuple(row for row in rows if row.differs)
    changes = review.transition.changes
    return PlanDiff(
        plan_id=summary.id,
        lane=summary.lane,
        state=summary.state.value,
        generation=target.generation,
        standing=target.plan,
        fits=not review.blocked,
        blocked=review.blocked,
        undoes=review.undoes(made_for),
        told=summary.told,
        before=_totals(review.before),
        after=_totals(review.after),
        workloads=differing,
        workloads_same=len(rows) - len(differing),
        devices=tuple(_devices(review.picture, review.stored, changes)),
        steps=tuple(_steps(review, changes)),
    )


def tag_of(target: Target) -> str:
    """What names the standing target: after a restore a generation may stand for another plan."""
    return f"{target.generation}/{target.plan}"


def _totals(made: Made) -> PlanTotals:
    whole, plan = made.picture.with_offers(), made.plan
    return record_of(
        PlanTotals,
        plan.objective,
        power_w=power_w_of(whole, plan),
        rate_rps_short=sum(item.rate_rps_short for item in plan.unplaced),
        workloads_short=len(plan.unplaced),
        replicas=len(plan.assignments),
        gpus_in_use=sum(item.in_use for item in use_by_type(whole, plan)),
    )


def _devices(picture: Snapshot, plan: Plan, changes: Iterable[Change]) -> Iterator[DeviceDiff]:
    known, target = picture.devices_by_id(), picture.target
    touched = {each.device for change in changes for each in (change.before, change.after) if each is not None}
    touched |= {each.device for change in changes if (each := change.setting_after) is not None}
    settings = [{each.device: each for each in items} for items in (target.settings, plan.settings)]
    where = {name: (known[name].node, known[name].index) for name in touched if name in known}
    for name in sorted(touched, key=lambda name: (where.get(name, ("", 0)), name)):
        device = known.get(name)
        yield DeviceDiff(
            device=name,
            node=None if device is None else device.node,
            gpu_type=None if device is None else device.gpu_type,
            index=None if device is None else device.index,
            before=_held(target.assignments, name),
            after=_held(plan.assignments, name),
            setting_before=settings[0].get(name),
            setting_after=settings[1].get(name),
        )


def _held(items: Iterable[Assignment], device: DeviceId) -> tuple[HeldReplica, ...]:
    found = (record_of(HeldReplica, item) for item in items if item.device == device)
    return tuple(sorted(found, key=lambda item: item.replica))


def _steps(review: Review, changes: Iterable[Change]) -> Iterator[PlanStep]:
    homes = {device.id: device.node for device in review.picture.devices}
    going = {item.assignment.replica: item.retire_after_s for item in leaving(review.stored, review.picture)}
    for change in changes:
        before, after = change.before, change.after
        at = after or before
        device = DeviceId(change.subject) if at is None else at.device
        yield PlanStep(
            kind=change.kind,
            subject=change.subject,
            workload=None if at is None else at.workload,
            device_before=before.device if before is not None else None,
            device_after=after.device if after is not None else None,
            node=homes.get(device),
            said=_said(change, review.places),
            launch_s=change.cost_s,
            goes_on_s=going.get(before.replica, 0.0) if before is not None else 0.0,
        )


_KNOBS = {
    "share": ("share %", "share_pct_sm"), "memory": ("memory MiB", "memory_mib_limit"), "batch": ("batch", "batch"),
    "model": ("model", "model"), "clock": ("clock MHz", "clock_mhz_sm"), "power": ("power limit W", "power_limit_w"),
    "mode": ("mode", "mode"),
}  # fmt: skip
"""What a kind of change is about, by the last word of its name."""


def _said(change: Change, places: Mapping[str, str]) -> str:
    """What this step alone does: a replica of which several knobs change has a step for each."""
    before, after, knob = change.before, change.after, _KNOBS.get(change.kind.rpartition("_")[2])
    anew = f"with {after.share_pct_sm} % and batch {after.batch}" if after is not None else ""
    if knob is not None:
        pair = (before, after) if after is not None else (change.setting_before, change.setting_after)
        was, now = (_word(getattr(each, knob[1])) for each in pair)
        return f"{knob[0]} {was} -> {now}" + (f", {anew}" if change.kind is ChangeKind.SWAP_MODEL else "")
    if before is not None and after is not None:
        moves = change.kind is ChangeKind.MOVE
        was, now = (places.get(each.device, each.device) for each in (before, after))
        return f"move from {was} to {now}, {anew}" if moves else "another envelope"
    return f"start {anew}" if after is not None else "stop"


def _word(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# --- What stands, by the picture of a cycle that did not change it


PART_LEAST = 0.001
"""Of a rate: what a promise loses by being rounded is no shortage."""


def left_standing(record: CycleRecord) -> Plan | None:
    """The target as a plan for what this cycle saw: what it leaves short of what might move, for the reasons of the
    cycle's plan where that is short of the same; and the bound of that, where both serve as much. None where something
    else stands now.
    """
    decision, plan = record.decision, record.plan
    if decision is None or decision.promote or not _LATE.isdisjoint(decision.reasons):
        return None
    if plan is not None and HoldReason.NOTHING_TO_CHANGE in decision.reasons:
        return plan
    standing = kept(record.snapshot, Wish(lane=record.lane), _ASKING).plan
    if standing is None:
        return None
    served: defaultdict[WorkloadId, float] = defaultdict(float)
    for item in standing.assignments:
        served[item.workload] += item.capacity_rps
    why = {(item.kind, item.workload): item.reasons for item in (() if plan is None else plan.unplaced)}
    unplaced = tuple(
        replace(item, reasons=why.get((item.kind, item.workload), item.reasons))
        for item in standing.unplaced
        if item.rate_rps_short > PART_LEAST * (item.rate_rps_short + served[item.workload])
        or any(isinstance(fact.value, float) and fact.value > 0 for reason in item.reasons for fact in reason.facts)
    )
    bound = plan.bound_usd_per_h if plan is not None and _serve_alike(plan.objective, standing.objective) else None
    return replace(standing, unplaced=unplaced, bound_usd_per_h=bound)


def _serve_alike(one: Objective, other: Objective) -> bool:
    """Whether a bound of one is a bound of the other: both leave as much to do."""
    pairs = ((one.unserved, other.unserved), (one.waiting_usd_per_h, other.waiting_usd_per_h))
    return all(isclose(mine, its, rel_tol=DUST, abs_tol=DUST) for mine, its in pairs)


_LATE = frozenset({HoldReason.SUPERSEDED, HoldReason.LEASE_LOST})
