"""Planning from a file: the same chain of planners and the same verifier as in a cycle, without server and database.
What planners keep from one plan to the next is in a file too, where one is named.

Explanations have the same shape, values and words as a server's. The exit status is 0 only when the plan verifies.
Demand that cannot be served is no error: it is said with numbers. Commands import this page where they need it: it
loads planners and solvers.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import typer

from app import own_planners
from app.cli.files import STANDARD, Seal, StrangeFileError, check_target, decode, placed, read_value, write_value
from app.cli.output import CommandError, Exit, Format, number, rows, show, usd
from app.cli.tables import (
    answered_line,
    binding_lines,
    candidate_table,
    finding_lines,
    known_question,
    split_question,
    unique,
    way_lines,
    why_not_lines,
)
from app.errors import FieldsError
from app.records import plain
from app.services.explaining.explaining import Types, WhyNot, choices, gaps, told, why_not
from app.services.explaining.sentences import demand_sentence, owner_sentences, places_of
from app.services.explaining.solves import ExplainQuestion, Solves, answered_anew, insight_of
from app.services.whatif.changes import apply_changes, changes_of
from app.services.whatif.made import DEADLINE_S_MAX, Made, Wish, planned
from app.services.whatif.outcome import Outcome, outcome_of
from app.services.whatif.question import Pictures, WhatIfQuestion
from app.services.whatif.question import answer as answer_whatif
from app.workers.solve_pool import PoolLimits, SolvePool, load_planners
from headroom_client import Client, Document
from solvers.cycle.attempts import Asking
from solvers.cycle.owners import StandingOwners
from solvers.cycle.ports import Forgetful, Recollection
from solvers.cycle.record import Lane
from solvers.domain.codec import digest, from_plain
from solvers.domain.evidence import Insight, Reason, ReasonCode, SilentReporter
from solvers.domain.ids import GpuTypeName, WorkloadId
from solvers.domain.ownership import owners_of
from solvers.domain.plan import Plan, Proposal, Unplaced
from solvers.domain.policy import PlannerSetting, Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import Demand
from solvers.engines.deadline import Deadline
from solvers.errors import FieldError, InputError, NotFoundError, did_you_mean
from solvers.planners import registry
from solvers.planners.base import Planner, PlanRequest
from solvers.verify.checks import verify
from solvers.version import VERSION

TELL_S, TELL_S_PER_DEVICE = 0.05, 0.0005
"""What it takes to read a plan back, verify it and tell it."""
LATE_PART, PLAN_PART_MIN = 0.15, 0.5
"""Of a deadline: so long after it the answer may be told, and so much of it is the planner's in any case."""
MEMORY = Seal(what="headroom planner memory", form=1, name="memory file", maker="plan --memory")
SHORT_SHOWN = 20
FINDINGS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """Where a plan goes and what is said of it."""

    out: str | None
    output: Format
    quiet: bool = False
    why_not: str | None = None
    memory: str | None = None
    """Where planners keep what they know from one plan to the next."""


@dataclass(slots=True, kw_only=True)
class FileMemory:
    """What planners kept of a cluster's plans, in a file, as a server keeps it in its database."""

    file: str
    cluster: str
    told: str = "begins"
    """What came of reading it."""
    states: dict[str, bytes] = field(default_factory=dict)
    writable: bool = True

    @classmethod
    def of(cls, file: str, cluster: str) -> FileMemory:
        """What the file holds; nothing where it cannot be used, which is told."""
        if not Path(file).exists():
            return cls(file=file, cluster=cluster)
        try:
            stored = MEMORY.read(file)
            if (stored["cluster"], stored["version"]) != (cluster, VERSION):
                raise InputError(f"{file}: this memory is of {stored['cluster']} and version {stored['version']}")
            states = {str(key): base64.b64decode(text, validate=True) for key, text in stored["states"].items()}
        except (InputError, KeyError, AttributeError, TypeError, binascii.Error) as error:
            told = error.message if isinstance(error, InputError) else f"{file}: this memory file is damaged"
            typer.echo(f"headroom: {told}; planned without it", err=True)
            return cls(file=file, cluster=cluster, told=told, writable=not isinstance(error, StrangeFileError))
        return cls(file=file, cluster=cluster, told="read", states=states)

    def recall(self, planner: str) -> bytes | None:
        """What it kept last."""
        return self.states.get(planner)

    def keep(self, planner: str, state: bytes) -> None:
        """For the next plan."""
        self.states[planner] = state

    def write(self) -> None:
        """Unless the file is something else altogether. Raises CommandError."""
        states = {key: base64.b64encode(state).decode() for key, state in self.states.items()}
        if self.writable:
            MEMORY.write(self.file, version=VERSION, cluster=self.cluster, states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings of planners for one look; they hold beside the policy's and before them."""

    settings: tuple[PlannerSetting, ...] = ()

    def check(self, wish: Wish) -> None:
        """Raise InputError for a planner or a parameter that there is not."""
        known_planner(wish.planner)
        name = wish.planner
        mine = own_planners.load_planner(name) if name is not None and own_planners.is_own(name) else None
        for item in self.settings:
            if mine is None or item.planner != mine.spec.name:
                known_planner(item.planner)
                registry.create(item.planner, {item.name: item.value})
            else:
                registry.with_settings(mine, {item.name: item.value})

    def check_asked(self, wish: Wish, picture: Snapshot) -> None:
        """Raise InputError for a planner that nobody asks for this plan."""
        chains = [policy.planners for policy in (picture.policy, *picture.policies)]
        asked = [
            own_planners.called(name) for name in ([wish.planner] if wish.planner else chain.from_iterable(chains))
        ]
        for item in self.settings:
            if item.planner not in asked:
                told = ", ".join(dict.fromkeys(asked))
                raise InputError(f"--set {item.planner}.{item.name}: {item.planner} makes no plan here; asked: {told}")

    def made(self, planner: str, policy: Policy) -> Planner:
        """A planner of Headroom's or one's own, tuned."""
        made = own_planners.create(planner)
        settings = registry.settings_of(policy, made.spec.name)
        settings |= {item.name: item.value for item in self.settings if item.planner == made.spec.name}
        return registry.with_settings(made, settings)


def read_settings(given: Iterable[str]) -> tuple[PlannerSetting, ...]:
    """What `--set` says. Raises InputError for what is not NAME.PARAMETER=VALUE."""
    found = []
    for text in given:
        names, equals, written = text.partition("=")
        planner, dot, parameter = names.rpartition(".")
        if not (equals and dot and planner and parameter):
            raise InputError(f"--set {text}: write PLANNER.PARAMETER=VALUE")
        found.append(PlannerSetting(planner=planner, name=parameter, value=_value(written)))
    return tuple(found)


def _value(written: str) -> bool | float | str:
    """JSON where it is a number or a truth value, else the text itself."""
    try:
        read = json.loads(written)
    except ValueError:
        return written
    return read if isinstance(read, bool) else float(read) if isinstance(read, int | float) else written


def wished(lane: str = Lane.ACT.value, planner: str | None = None, **more: Any) -> Wish:
    """How to plan, as options say it. Raises InputError for a planner that there is not."""
    known_planner(planner)
    return Wish(lane=Lane(lane), planner=planner, **timed(more))


def timed(asked: Document) -> Document:
    """What is asked of time and work: where work is all, it ends the search, however long it takes here."""
    alone = asked.get("work_units") is not None and asked.get("deadline_s") is None
    return {**asked, "deadline_s": DEADLINE_S_MAX} if alone else asked


def plan_file(file: str, wish: Wish, showing: Showing, tuning: Tuning) -> None:
    """Plan from a snapshot's file and say what came of it. Raises CommandError unless the plan verifies."""
    out, output = showing.out, showing.output
    for target in (out, showing.memory):
        if target is not None:
            check_target(target)
    if out is not None and showing.memory is not None and Path(out).resolve() == Path(showing.memory).resolve():
        raise InputError(f"{out}: this file cannot hold both the plan and what planners keep")
    tuning.check(wish)
    with solving(tuning) as pool:
        clock, asking = Deadline(math.inf), _asking(pool)
        snapshot = read_snapshot(file, wish.planner)
        tuning.check_asked(wish, snapshot)
        if showing.why_not is not None:
            known_question(showing.why_not, workloads_of(snapshot), [item.name for item in snapshot.gpu_types])
        memory = None if showing.memory is None else FileMemory.of(showing.memory, snapshot.cluster)
        read_s = clock.elapsed_s
        spent_s: list[float] = []
        recollection = Recollection(think=pool.think, memory=memory or Forgetful(), default=snapshot.policy.name)
        remembering = _timed(replace(asking, propose=recollection.propose), clock, spent_s)
        made = planned(snapshot, in_time(wish, snapshot, clock.crowding), remembering)
        planned_s = sum(spent_s)
        outcome = outcome_of(made)
        if out is not None:
            write_value(out, made.plan)
        if memory is not None:
            memory.write()
        answer = plain(outcome) | {"memory": None if memory is None else memory.told}
        found = made.insight if showing.quiet else insight_of(made, wish)
        insight = answer["insight"] = plain(told(found, None, None))
        told_s = clock.elapsed_s - read_s - planned_s
        answer |= {"read_s": round(read_s, 3), "planned_s": round(planned_s, 3), "told_s": round(told_s, 3)}
        if showing.why_not is not None:
            answer["why_not"] = why_not_offline(made, showing.why_not, found, wish, asking)
    parts = [
        *_head(outcome),
        *([] if showing.quiet else [*candidate_table(insight["candidates"]), *binding_lines(insight)]),
        *_short(made.plan.unplaced),
        *([] if showing.quiet else way_lines(insight)),
        *(why_not_lines(answer["why_not"]) if "why_not" in answer else []),
        *_found(outcome),
        f"read in {read_s:.2f} s, planned in {planned_s:.2f} s, verified and told in {told_s:.2f} s",
    ]
    if out == STANDARD:
        typer.echo(f"headroom: {_head(outcome)[1]}", err=True)
    else:
        show(answer, output, parts)
    if not outcome.verified:
        raise CommandError("the verifier refutes this plan", Exit.FOUND_WRONG)


def read_snapshot(file: str, planner: str | None) -> Snapshot:
    """A picture whose works name models that it has, as a server asks of documents, and whose policy names a planner
    that there is, unless only `planner` is to be asked. Raises InputError naming file and place.
    """
    found = read_value(Snapshot, file)
    chain = found.policy.planners
    if planner is None and chain and not set(chain) & set(registry.names()):
        near = did_you_mean(chain[0], registry.names(), all_known=True)
        raise InputError(f"{file}: /policy/planners: there is no planner {chain[0]}{near}")
    models = {model.name for model in found.models}
    for works in ("services", "jobs", "tasks"):
        for place, work in enumerate(getattr(found, works)):
            if work.model not in models:
                near = did_you_mean(work.model, models)
                raise InputError(f"{file}: /{works}/{place}/model: there is no model {work.model}{near}")
    return found


def _timed(asking: Asking, clock: Deadline, spent_s: list[float]) -> Asking:
    """The same; what planners take is added."""

    def propose(planner: str, request: PlanRequest) -> Proposal:
        begun_s = clock.elapsed_s
        try:
            return asking.propose(planner, request)
        finally:
            spent_s.append(clock.elapsed_s - begun_s)

    return replace(asking, propose=propose)


def in_time(wish: Wish, picture: Snapshot, crowding: float) -> Wish:
    """With as much less time to plan as verifying and telling take beyond a moment after the deadline; `crowding`:
    seconds that a second of work takes here.
    """
    if wish.deadline_s is None:
        return wish
    telling_s = crowding * (TELL_S + TELL_S_PER_DEVICE * len(picture.with_offers().devices))
    left_s = (1 + LATE_PART) * wish.deadline_s - telling_s
    return replace(wish, deadline_s=min(wish.deadline_s, max(PLAN_PART_MIN * wish.deadline_s, left_s)))


def known_planner(name: str | None) -> None:
    """Raise InputError for a planner that nobody knows, and as `own.load_planner` does for one of a file."""
    if name is not None and own_planners.is_own(name):
        own_planners.load_planner(name)
    elif name is not None and name not in registry.names():
        raise InputError(f"there is no planner {name}{did_you_mean(name, registry.names(), all_known=True)}")


@contextmanager
def planner_child() -> Iterator[Asking]:
    """Planners as `solving` runs them, without memories."""
    with solving(Tuning()) as pool:
        yield _asking(pool)


def _asking(pool: SolvePool) -> Asking:
    return Asking(propose=pool.propose, verify=verify, reporter=SilentReporter(), called=own_planners.called)


@contextmanager
def solving(tuning: Tuning) -> Iterator[SolvePool]:
    """Planners in a child process, as a server runs them: at the deadline there is an answer, the best found so far."""
    clock = Deadline(math.inf)
    load_planners()
    # What is slow to load is slow to say anything at all.
    limits = PoolLimits(grace_s=PoolLimits().grace_s * clock.crowding)
    pool = SolvePool(tuning.made, SilentReporter(), limits, start="fork")
    try:
        # Now, so that the child has none of what is read hereafter but what it is sent.
        pool.warm()
        yield pool
    finally:
        pool.close()


def _head(outcome: Outcome) -> list[str]:
    moves, waiting = outcome.moves, outcome.waiting_usd_per_h
    short = "nothing"
    if outcome.workloads_short:
        many = "workload" if outcome.workloads_short == 1 else "workloads"
        lacks = f", {number(outcome.rate_rps_short)} requests/s short" if outcome.rate_rps_short else ""
        short = f"{outcome.workloads_short} {many}{lacks}"
    by_type = ", ".join(f"{use.gpu_type} {use.in_use}/{use.total}" for use in outcome.gpus if use.in_use)
    return [
        f"plan {outcome.plan}",
        f"by {outcome.planner}: {usd(outcome.cost_usd_per_h, per_hour=True)}, {outcome.gap_told}",
        answered_line(plain(outcome)),
        f"unserved: {short} (weighted {number(outcome.unserved)}), SLO risk {number(outcome.slo_risk)}",
        *([f"jobs undone would be worth {usd(waiting, per_hour=True)}"] if waiting else []),
        *([f"full batches carry {number(outcome.capacity_rps)} requests/s"] if outcome.capacity_rps else []),
        *([f"training runs as on {number(outcome.training_rate)} reference GPUs"] if outcome.training_rate else []),
        f"GPUs in use: {outcome.gpus_in_use} of {outcome.gpus_total}" + (f" ({by_type})" if by_type else ""),
        f"{outcome.replicas} replicas: {moves.starts} started, {moves.stops} stopped, {moves.moved} moved,"
        f" {moves.changed} changed in place",
        f"power planned: {number(outcome.power_w)} W, {number(outcome.energy_kwh_per_day)} kWh a day with cooling",
        f"verified: {'yes' if outcome.verified else 'no'}",
    ]


def _short(unplaced: Sequence[Unplaced]) -> list[Any]:
    if not unplaced:
        return []
    worst = sorted(unplaced, key=lambda item: (-item.rate_rps_short, item.workload))
    lines = [(item.workload, item.rate_rps_short or None, _blocks(item.reasons)) for item in worst[:SHORT_SHOWN]]
    more = len(worst) - len(lines)
    return [rows(("short", ">rps", "what blocks it"), lines), *([f"and {more} more"] if more else [])]


def _blocks(reasons: Sequence[Reason]) -> str:
    """What blocks a workload, and of what nobody measured, on which GPU types."""
    subjects: dict[ReasonCode, list[str]] = {}
    for each in reasons:
        subjects.setdefault(each.code, []).append(each.subject)
    unmeasured = f"no profile: it was not measured on {', '.join(subjects.get(ReasonCode.NO_PROFILE, ()))}"
    return "; ".join(unmeasured if code is ReasonCode.NO_PROFILE else code.value.replace("_", " ") for code in subjects)


def _found(outcome: Outcome) -> list[str]:
    lines = finding_lines(outcome.findings)
    more = len(lines) - FINDINGS_SHOWN
    return [*lines[:FINDINGS_SHOWN], *([f"and {more} more findings"] if more > 0 else [])]


def explained(file: str, wish: Wish, workload: str, *, slo_curve: bool) -> tuple[str, Document]:
    """A workload's whole name, and why it is where it is in a plan made now; shaped like a server's answer."""
    picture = read_snapshot(file, wish.planner)
    name = name_in(picture, workload)
    with planner_child() as asking:
        made = planned(picture, wish, asking)
    plan, outcome = made.plan, outcome_of(made)
    types = {str(device.id): str(device.gpu_type) for device in picture.with_offers().devices}
    owners = owners_of(picture)
    policy = owners.policy_for(WorkloadId(name))
    demands = (*picture.demands, *(Demand.declared(each.id, each.rate_rps_declared) for each in picture.services))
    standing = StandingOwners.of(plan.assignments, plan.planner, plan.parts)
    answer = {
        "summary": {**_summary(plan), "answered": outcome.answered, "stood_in": outcome.stood_in},
        "gap_told": outcome.gap_told,
        "cheaper": None,
        "assignments": plain(choices(plan, types, name)),
        "unplaced": plain(gaps(plan.unplaced, name)),
        "waiting": None,
        "insight": plain(told(insight_of(made, wish), None, name)),
        "owners": owner_sentences(owners, standing, name, places_of(picture.with_offers().devices)),
        "demand": next((demand_sentence(each, policy) for each in demands if each.service == name), None),
        "why_not": None,
    }
    if slo_curve:
        answer["slo_curve"] = curve(picture, wish, name)
    return name, answer


def curve(picture: Snapshot, wish: Wish, name: str) -> Any:
    """What a service's promise costs at several lengths."""
    with planner_child() as asking:
        return plain(Solves.of(picture, wish, asking).slo_curve(name))


def live(client: Client) -> Snapshot:
    """The picture of a server's fleet as it is now."""
    return decode(Snapshot, client.snapshot(), client.server)


def why_not_offline(made: Made, asked: str, insight: Insight | None, wish: Wish, asking: Asking) -> Document:
    """Why a service is not on a GPU type; where it could be, with a plan that has it there. Raises CommandError."""
    service, gpu_type = split_question(asked)
    workload = name_in(made.picture, service)
    try:
        answer = plain(why_not(made.plan, insight, (workload, gpu_type), Types.of(made.picture)))
    except NotFoundError as error:
        raise CommandError(error.message, Exit.NOT_FOUND) from None
    answer["forced"] = None
    if answer["verdict"] in ("dearer", "not_dearer", "no_room") and workload in made.picture.services_by_id():
        answer["forced"] = plain(Solves.of(made.picture, wish, asking).forced(workload, gpu_type))
    return cast("Document", answer)


def why_not_anew(client: Client, stored: Document) -> Document:
    """What plans made now of a server's fleet add to what a stored plan says of a service and a GPU type."""
    picture = live(client)
    if stored["workload"] not in picture.services_by_id():
        return {**stored, "forced": None}
    question = ExplainQuestion(workload=stored["workload"], why_not=GpuTypeName(stored["gpu_type"]))
    with planner_child() as asking:
        found = answered_anew(picture, question, asking, from_plain(WhyNot, stored))
    return {**plain(found.why_not), "forced": plain(found.forced)}


def workloads_of(picture: Snapshot) -> list[str]:
    return [str(item.id) for items in (picture.services, picture.jobs, picture.tasks) for item in items]


def name_in(picture: Snapshot, workload: str) -> str:
    """`project/name` of a workload given by either form. Raises CommandError when it is unknown or not unique."""
    names = workloads_of(picture)
    if "/" not in workload:
        return unique(workload, names)
    if workload not in names:
        raise CommandError(f"there is no workload {workload}", Exit.NOT_FOUND)
    return workload


def _summary(plan: Plan) -> Document:
    return {
        "id": str(digest(plan)),
        "generation": None,
        "state": "made from a file",
        "planner": plan.planner,
        "cost_usd_per_h": plan.objective.cost_usd_per_h,
        "bound_usd_per_h": plan.bound_usd_per_h,
    }


def simulated(file: str, question: Document, files: Sequence[str]) -> Document:
    """What would change if files of changes were applied to a snapshot's file; shaped like a server's answer."""
    known_planner(question.get("planner"))
    place = ", ".join(files)
    try:
        changes = changes_of(question.get("changes", {}))
        asked = WhatIfQuestion(**{**timed(question), "changes": changes, "lane": Lane(question["lane"])})
    except FieldError as error:
        raise InputError(f"{place}: {placed(error.field, error.message)}") from None
    before = read_snapshot(file, asked.planner)
    try:
        after = apply_changes(before, changes)
    except FieldsError as error:
        faults = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in error.faults)
        raise InputError(f"{place}: {faults}") from None
    pictures = Pictures(before=before, after=after, types=after.gpu_types, complete=lambda picture: picture)
    with planner_child() as asking:
        return cast("Document", plain(answer_whatif(asked, pictures, asking)))
