"""Internals: what each phase of the joint planner is worth, all of it and with one phase taken away at a time.

`python -m benchmarks.phases [--only PHASE …] [--families NAME …]` prints a table per family and writes
benchmarks/results/phases.json. Every plan is made in this process with counted work, so it is the same on any machine.
Owns what "without a phase" means: its function replaced by one that changes nothing. Cost is compared where as much is
served; who serves less, or changes more of what stands, is told beside it. HEADROOM_DATA adds Inferno's problem.
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.door.cases import after_change
from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.instances.inferno import inferno
from benchmarks.instances.melange import melange_slices
from benchmarks.instances.rented import inferno_snapshot, melange_snapshot
from benchmarks.instances.small import small
from lab.benches.rolling.problems import InfernoCase
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import CycleRecord, Lane
from solvers.domain.change import Target
from solvers.domain.codec import from_json
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.engines.deadline import portion
from solvers.models.worth import Step, worth_of
from solvers.planners.base import Budget, PlanRequest, Thought
from solvers.planners.joint import attempt, certificate, change, planner, spare, whole_devices, write
from solvers.planners.joint.change import reach_terms
from solvers.planners.joint.planner import Advance, Joint
from solvers.planners.joint.seat import jobs, seating, seats, standing
from solvers.planners.joint.solve import branch, groups, improve, listing, master, prospects, reach, solve
from solvers.planners.joint.solve.reach import Reached
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal

RESULTS = Path(__file__).resolve().parent / "results" / "phases.json"
RECORDED = Path(__file__).resolve().parents[1] / "tests"
SMALL_FIRST, SMALL = 20_000, 40
DEADLINE_S, CYCLE_S = 600.0, 30.0
DUST = 1e-6
AS_MUCH = 1e-3
"""Unserved demand that is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One picture, and what the planner remembers."""

    name: str
    picture: Snapshot
    units: int
    state: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a planner made of a subject."""

    usd_per_h: float
    unserved: float
    bound_usd_per_h: float
    changes: int
    """Starts and stops of what stands."""
    interrupted: int
    refused: bool
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A family without one phase. Percentages are of all the plans together, where as much is served."""

    phase: str
    family: str
    cost_pct: float
    worst_pct: float
    bound_pct: float
    less_served: int
    more_served: int
    changes: int
    """More than with it."""
    interrupted: int
    refused: int
    cpu_pct: float
    subjects: int
    """In which it took part."""
    differ: int
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """An attribute and what stands in for it."""

    owner: Any
    name: str
    other: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is swapped, and the code that could go."""

    swaps: tuple[Swap, ...]
    code: tuple[Any, ...]

    @property
    def lines(self) -> int:
        """Of the code."""
        return sum(len(inspect.getsource(item).splitlines()) for item in self.code)


AFTER_THE_SOLVE = ("seat: ", "spare: ", "write: ", "certificate: ")
_SOLVED: dict[str, Any] = {}
"""By subject, what the solve found with all phases: those after it need no other one, unless it asked the seating."""


def _solved(subject: str, search: Any, *rest: Any) -> Any:
    """As before, or anew."""
    if subject not in _SOLVED:
        return change.solved(search, *rest)
    return _SOLVED[subject]


def _kept(subject: str, search: Any, *rest: Any) -> Any:
    """Kept for phases after it, where nobody asked the seating on the way."""
    asked: list[bool] = []

    def mended() -> bool:
        asked.append(True)
        return bool(search.mended())

    found = change.solved(replace(search, mended=mended), *rest)
    if not asked:
        _SOLVED[subject] = found
    return found


def with_all(subject: Subject) -> tuple[Told, set[str]]:
    """The plan with all phases, and which of them took part."""
    part: set[str] = set()

    def seen(name: str, func: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            part.add(name)
            return func(*args, **more)

        return call

    with ExitStack() as stack:
        for name, phase in PHASES.items():
            for swap in phase.swaps:
                func = getattr(swap.owner, swap.name)
                if callable(func):
                    stack.enter_context(patch.object(swap.owner, swap.name, seen(name, func)))
                else:
                    part.add(name)
        stack.enter_context(patch.object(planner, "solved", partial(_kept, subject.name)))
        return told(subject), part


def without(phase: str, subject: Subject) -> Told:
    """The plan without one phase."""
    with ExitStack() as stack:
        for swap in PHASES[phase].swaps:
            stack.enter_context(patch.object(swap.owner, swap.name, swap.other))
        if phase.startswith(AFTER_THE_SOLVE):
            stack.enter_context(patch.object(planner, "solved", partial(_solved, subject.name)))
        return told(subject)


def thought(subject: Subject) -> Thought:
    """By the planner itself, with what it remembers."""
    budget = Budget(deadline_s=DEADLINE_S, work_units=subject.units)
    movable = movable_workloads(subject.picture, Lane.ACT)
    request = PlanRequest(snapshot=subject.picture, movable=movable, budget=budget, seed=1)
    return Joint().think(request, subject.state, SilentReporter())


def told(subject: Subject) -> Told:
    """Plan it and look at the plan."""
    begun_s = time.process_time()
    plan = thought(subject).proposal.plan
    cpu_s = time.process_time() - begun_s
    assert plan is not None
    picture, movable = subject.picture, movable_workloads(subject.picture, Lane.ACT)
    now = worth_of(picture, movable, picture.target.assignments, picture.target.settings).objective
    moves = Step.of(picture, now, plan).transition if picture.target.assignments else None
    return Told(
        usd_per_h=plan.objective.cost_usd_per_h + plan.objective.waiting_usd_per_h,
        unserved=plan.objective.unserved,
        bound_usd_per_h=plan.bound_usd_per_h or 0.0,
        changes=0 if moves is None else len(moves.changes),
        interrupted=_interrupted(picture, plan),
        refused=is_fatal(verify(picture, plan, movable)),
        cpu_s=cpu_s,
    )


def _interrupted(picture: Snapshot, plan: Plan) -> int:
    """Standing replicas on devices that do not hold both what stands and what is to come."""
    after = {
        item.device: [each for each in plan.assignments if each.device == item.device] for item in plan.assignments
    }
    count = 0
    for device, items in after.items():
        stands = [item for item in picture.target.assignments if item.device == device]
        kept = {item.replica for item in items}
        going = [item for item in stands if item.replica not in kept]
        room = sum(item.share_pct_sm for item in (*going, *items)) <= 100
        count += 0 if room else len(going)
    return count


def family(gpus: int, services: int, units: int, seeds: range) -> Iterator[Subject]:
    """Drawn, nothing standing."""
    for seed in seeds:
        name = f"{gpus} x {services}, {seed}"
        yield Subject(name=name, picture=family_snapshot(gpus, services, seed), units=units)


def ruled() -> Iterator[Subject]:
    """Two to five devices, one rule at a time in turn."""
    for seed in range(SMALL_FIRST, SMALL_FIRST + SMALL):
        yield Subject(name=f"small {seed}", picture=small(seed), units=700)


def recorded() -> Iterator[Subject]:
    """Pictures of the demo's and the arena's cycles as they were recorded, as they stand and with nothing standing."""
    for path in sorted((RECORDED / "same" / "cycles").glob("*.json.gz")):
        picture = from_json(CycleRecord, gzip.decompress(path.read_bytes())).snapshot
        yield Subject(name=path.name, picture=picture, units=600)
        empty = replace(picture, target=Target(), replicas=())
        yield Subject(name=f"{path.name}, empty", picture=empty, units=600)
    for path in sorted((RECORDED / "golden" / "cases").glob("*.snapshot.json")):
        yield Subject(name=path.name, picture=from_json(Snapshot, path.read_bytes()), units=600)


def changed() -> Iterator[Subject]:
    """A fleet that stands, with some rates changed: with the planner's memory and without any."""
    for gpus, services, units, seed in ((64, 20, 2000, 1), (64, 20, 2000, 2), (256, 60, 3000, 1)):
        first = Subject(name="", picture=family_snapshot(gpus, services, seed), units=units)
        made = thought(first)
        assert made.proposal.plan is not None
        later = after_change(first.picture, made.proposal.plan)
        later = replace(later, taken_at_s=later.taken_at_s + CYCLE_S)
        name = f"{gpus} x {services}, {seed}, changed"
        yield Subject(name=name, picture=later, units=units, state=made.state or b"")
        yield Subject(name=f"{name}, forgotten", picture=later, units=units)


def whole() -> Iterator[Subject]:
    """LLMs and whole devices."""
    for buckets, types, slices in ((25, 4, 8), (16, 4, 4)):
        drawn = melange_slices(buckets, types, slices, 100.0, 1)
        yield Subject(name=f"Melange {buckets}", picture=melange_snapshot(drawn, f"melange-{buckets}"), units=1500)
    if "HEADROOM_DATA" in os.environ:
        case = inferno(Path(os.environ["HEADROOM_DATA"]), InfernoCase())
        yield Subject(name="Inferno", picture=inferno_snapshot(case, "inferno"), units=2000)


FAMILIES: dict[str, Callable[[], Iterator[Subject]]] = {
    "64x20": partial(family, 64, 20, 2000, range(1, 3)),
    "40x6": partial(family, 40, 6, 1000, range(31, 35)),
    "256x60": partial(family, 256, 60, 2500, range(1, 3)),
    "rules": ruled,
    "recorded": recorded,
    "changed": changed,
    "whole": whole,
}


def _same(_first: Any, layout: Any, *_rest: Any, **_more: Any) -> Any:
    """The layout, as it is."""
    return layout


def _nothing(*_args: Any, **_more: Any) -> None:
    """No change."""


def _no(*_args: Any, **_more: Any) -> bool:
    return False


def _as_it_stands(problem: Any, stands: Any, _fresh: Any, terms: Any, *_: Any, **_more: Any) -> Reached:
    return Reached(layout=stands, period_s=terms.period_s, left_usd=np.inf, short=stands.leaves_short(problem))


def _swap(owner: Any, name: str, other: Any) -> Swap:
    return Swap(owner=owner, name=name, other=other)


def _phase(code: tuple[Any, ...], *swaps: Swap) -> Phase:
    return Phase(swaps=swaps, code=code)


PHASES: dict[str, Phase] = {
    "first: greed's plan": _phase((attempt.affords_first,), _swap(planner, "affords_first", _no)),
    "first: improved at once": _phase((improve.improved_at_once,), _swap(solve, "improved_at_once", _same)),
    "solve: turns": _phase((solve._turns,), _swap(solve, "_turns", lambda _, deadline: (portion(deadline, 0.8),))),
    "solve: devices counted": _phase(
        (master.Master.counted, solve.Phases._counted), _swap(solve.Phases, "_counted", lambda *_, **_more: [])
    ),
    "solve: complete": _phase((solve.completed,), _swap(solve, "completed", _same)),
    "solve: exchange": _phase((improve,), _swap(solve, "improved", _same)),
    "solve: cuts": _phase(
        (
            master.Master.tighten,
            master.Rows.cut,
            master.Rows.cut_entries,
            master.Rows.parts,
        ),
        _swap(master.Master, "tighten", lambda *_: 0),
    ),
    "solve: closer bound": _phase((solve._proof,), _swap(solve, "_proof", lambda phases, *_, **__: phases.bound)),
    "solve: branch": _phase((branch,), _swap(certificate, "few_devices", _no)),
    "solve: listing": _phase(
        (listing,), _swap(solve, "solved_whole", _nothing), _swap(solve, "list_patterns", _nothing)
    ),
    "solve: listed whole": _phase((listing.solved_whole,), _swap(solve, "solved_whole", _nothing)),
    "solve: groups": _phase((groups,), _swap(solve, "groups_of", lambda _: ())),
    "counting": _phase((whole_devices,), _swap(planner, "counted", _nothing)),
    "change: reach": _phase((reach,), _swap(change, "reached", _as_it_stands)),
    "change: reach, priced": _phase((reach._ReachProgramme.priced,), _swap(reach, "PRICED_MAX", 0)),
    "change: reach, closed groups": _phase((), _swap(prospects, "GROUPS_MAX", 10**6)),
    "change: remembered longer": _phase(
        (), _swap(change, "reach_terms", lambda *asked, **how: replace(reach_terms(*asked, **how), remembered_s=0.0))
    ),
    "change: stopover": _phase((standing.stopover, planner._by_way), _swap(planner, "stopover", _nothing)),
    "change: mended beside": _phase((Advance.mended,), _swap(Advance, "mended", _no)),
    "change: memory": _phase(
        (change.scope_of, attempt.recall, attempt.remember), _swap(change, "recall", lambda *_: attempt.NOTHING)
    ),
    "change: question": _phase((change.question_of,), _swap(change, "question_of", lambda *_: "?")),
    "change: scope": _phase((change.scope_of, change.restless_of), _swap(change, "scope_of", _nothing)),
    "seat: alike": _phase((seating._alike, seating.saved_s), _swap(seating, "_alike", _nothing)),
    "seat: make before break": _phase((standing.make_before_break,), _swap(seating, "make_before_break", _nothing)),
    "seat: budgets": _phase(
        (standing.within_bounds, standing._take, standing._less), _swap(seating, "within_bounds", _nothing)
    ),
    "seat: power": _phase(
        (standing.within_power, standing._lighter, standing._swap, standing._spare_w),
        _swap(seating, "within_power", _nothing),
    ),
    "seat: exchange": _phase(
        (seating._within_each, seating._exchanged, seats.Parts),
        _swap(seating, "_exchanged", lambda before, *_, **__: before),
    ),
    "seat: power swaps": _phase((standing._swap, standing._spare_w), _swap(standing, "_swap", lambda *_: [])),
    "seat: mend": _phase((seating.mend, seating._add, seating._Drafts), _swap(seating, "mend", _nothing)),
    "seat: shed": _phase((standing.shed,), _swap(seating, "shed", _nothing)),
    "seat: room kept": _phase((standing.replaced,), _swap(seating, "replaced", lambda *_: {})),
    "seat: jobs": _phase((jobs,), _swap(seating, "spread_jobs", _nothing)),
    "seat: jobs hasten": _phase(
        (jobs._Jobs.hasten, jobs._Jobs._heir, jobs._Jobs._saved_s, jobs._Jobs._move), _swap(jobs._Jobs, "hasten", _no)
    ),
    "seat: jobs halve": _phase((jobs._Jobs._parts,), _swap(jobs._Jobs, "_parts", lambda *_: iter(()))),
    "seat: widen": _phase((standing.widen, standing._wider), _swap(seating, "widen", _nothing)),
    "spare: fill": _phase(
        (
            spare.fill,
            spare._best,
            spare._exchange,
            spare._improve,
            spare._contents,
            spare._keep_standing,
        ),
        _swap(planner, "fill", _no),
    ),
    "spare: fill pairs": _phase((), _swap(spare, "PAIRS_MAX", 0)),
    "spare: fill what stood": _phase((spare._keep_standing,), _swap(spare, "_keep_standing", _no)),
    "spare: pursue": _phase(
        (spare.pursued, spare.pursues, spare._promising, spare._Sheet, spare.Contents, spare.contents_of),
        _swap(planner, "pursues", _no),
    ),
    "spare: shaken prices": _phase((spare._promising,), _swap(spare, "SHAKES", 0)),
    "write: batches that stand": _phase(
        (write.Batches._column_beside,), _swap(write.Batches, "_column_beside", lambda _s, item, _b, **_m: item.column)
    ),
    "certificate: at a glance": _phase(
        (certificate._at_a_glance,), _swap(certificate.Certificate, "at_a_glance", None)
    ),
}


def main() -> int:
    """Plan, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phases", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PHASES, metavar="PHASE", default=list(PHASES))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows: list[Row] = []
    for name in asked.families:
        subjects = tuple(FAMILIES[name]())
        seen = {subject.name: with_all(subject) for subject in subjects}
        whole_told = {key: item for key, (item, _) in seen.items()}
        cpu_s = sum(item.cpu_s for item in whole_told.values())
        print(f"{name}: {len(subjects)} subjects, {cpu_s:.1f} CPU seconds", flush=True)
        for phase in asked.only:
            mine = [item for item in subjects if phase in seen[item.name][1]]
            if not mine:
                continue
            after = {item.name: without(phase, item) for item in mine}
            rows.append(row_of(phase, name, whole_told, after))
            print(_line(rows[-1]), flush=True)
        asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


def row_of(phase: str, name: str, before: dict[str, Told], after: dict[str, Told]) -> Row:
    """Both beside each other."""
    pairs = [(before[key], item) for key, item in after.items()]
    alike = [(x, y) for x, y in pairs if abs(x.unserved - y.unserved) <= AS_MUCH * max(1.0, x.unserved)]
    usd = sum(x.usd_per_h for x, _ in alike)
    bound = sum(x.bound_usd_per_h for x, _ in alike)
    return Row(
        phase=phase,
        family=name,
        cost_pct=100 * sum(y.usd_per_h - x.usd_per_h for x, y in alike) / max(usd, AS_MUCH),
        worst_pct=max((100 * (y.usd_per_h / x.usd_per_h - 1) for x, y in alike if x.usd_per_h > 0), default=0.0),
        bound_pct=100 * sum(y.bound_usd_per_h - x.bound_usd_per_h for x, y in alike) / max(bound, AS_MUCH),
        less_served=sum(y.unserved > x.unserved + AS_MUCH * max(1.0, x.unserved) for x, y in pairs),
        more_served=sum(y.unserved < x.unserved - AS_MUCH * max(1.0, x.unserved) for x, y in pairs),
        changes=sum(y.changes - x.changes for x, y in pairs),
        interrupted=sum(y.interrupted - x.interrupted for x, y in pairs),
        refused=sum(y.refused - x.refused for x, y in pairs),
        cpu_pct=100 * (sum(y.cpu_s for _, y in pairs) / sum(x.cpu_s for x, _ in pairs) - 1),
        subjects=len(pairs),
        differ=sum(abs(x.usd_per_h - y.usd_per_h) > DUST for x, y in pairs),
        lines=PHASES[phase].lines,
    )


def _line(row: Row) -> str:
    return (
        f"| {row.family} | {row.phase} | {row.lines} | {row.differ} of {row.subjects} "
        f"| {row.cost_pct:+.2f} % | {row.worst_pct:+.2f} % "
        f"| {row.bound_pct:+.2f} % | {row.less_served} | {row.more_served} | {row.changes:+} | {row.interrupted:+} "
        f"| {row.refused:+} | {row.cpu_pct:+.0f} % |"
    )


if __name__ == "__main__":
    sys.exit(main())
