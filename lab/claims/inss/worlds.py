"""InSS' evaluation: its planner against Gpulet, GSLICE, iGniter and its own variants on its simulated testbed, and its
learned actor: how fast it learns, how good it is, how long decisions take.

Throughput is the paper's, what full batches of everybody would carry (`capacity_rps`); what was served in time is told
beside it, like with like. A figure that is not reached is told as it is, with what explains it (seed 0 alone). Curves
of the shipped trainings are read (`headroom train inss` makes them), the actor is looked at beside the most that any
placement can earn, and one decision for eight networks on four GPUs is timed in CPU time, the quickest of several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import fmean

import numpy as np

from lab.arena.contenders import PlannersOf
from lab.claims.claim import (
    ClaimEvidence,
    Effort,
    Outcomes,
    figure,
    listed,
    mean_metric,
    outcomes,
    timed,
    varied,
    world_of,
)
from lab.claims.planned import request_of
from lab.learning.evaluating import Score, evaluate
from lab.learning.settings import setting
from lab.learning.world import Truth
from lab.outcome import RunContender, RunOutcome
from lab.world.world import World
from solvers.engines.base import Limits, create
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.policies.inss.actor import shipped
from solvers.policies.inss.batching import Batching
from solvers.policies.inss.belief import InssBelief
from solvers.policies.inss.placing import InssParameters, actor_for, columns_of, exact, learned

BY_EPISODE, PART, SMOOTHED = 800, 0.95, 50
SEEDS_TRAINED = 3
LAST = 100
"""Episodes at the end of a training whose mean is its final reward."""
SECONDS = 100
"""Of each episode that an actor is judged over."""
BATCHES_MS, ACTOR_MS, PROGRAMME_MS = 10.0, 20.0, 1000.0
REPEATS = 7
NODES_MAX = 2000.0
WORLD_S, SEED = 40.0, 1000


def reached(rewards: Sequence[float]) -> tuple[float, float, int | None]:
    """Of a curve: reward about episode 800 and at the end, both smoothed, and the first episode (of smoothed ones) from
    which on it stays at 95 % of the end or more.
    """
    end = float(np.mean(rewards[-LAST:]))
    smooth = np.convolve(rewards, np.full(SMOOTHED, 1.0 / SMOOTHED), mode="valid")
    low = np.flatnonzero(smooth < end - (1.0 - PART) * abs(end))
    first = int(low[-1]) + 1 + SMOOTHED if len(low) else SMOOTHED
    there = float(np.mean(rewards[BY_EPISODE - SMOOTHED : BY_EPISODE]))
    return there, end, first if first <= len(rewards) else None


def trainings(effort: Effort) -> ClaimEvidence:
    late, told, seen = list[str](), list[str](), curves("six")
    if len(seen) < SEEDS_TRAINED:
        late.append(f"trained with {len(seen)} of {SEEDS_TRAINED} seeds")
    for seed, rewards in sorted(seen.items()):
        if len(rewards) < BY_EPISODE + LAST:
            late.append(f"seed {seed} was trained for {len(rewards)} episodes only")
            continue
        there, end, first = reached(rewards)
        told.append(f"seed {seed}: {there:.2f} at 800, {end:.2f} at {len(rewards)}, 95 % from {first} on")
        if first is None or first > BY_EPISODE:
            late.append(f"seed {seed} reaches 95 % at {first}")
    score = _score("six", effort)
    part = score.actor / score.bound
    told.append(
        f"actor {score.actor:.2f} ({100 * score.actor_violated:.2f} % late or lost), most there is {score.bound:.2f}, "
        f"so {100 * part:.1f} %; the integer programme's placements {score.programme:.2f}"
    )
    if part < PART:
        late.append(
            f"the actor earns {100 * part:.1f} % of the most there is; with its places and the best division of units "
            f"it would be {100 * score.actor_places / score.bound:.1f} %: the rest is where it places"
        )
    return figure("; ".join(told), reached=not late, note="; ".join(late))


def curves(name: str) -> Mapping[str, Sequence[float]]:
    """Rewards of every training behind an actor that is shipped, by seed."""
    place = files("lab.learning").joinpath("curves.json")
    found = json.loads(place.read_text(encoding="utf-8"))[name]
    return {seed: columns["reward"] for seed, columns in found.items()}


def _score(name: str, effort: Effort) -> Score:
    """The shipped actor over so many fresh episodes as there are seeds."""
    artefact = shipped(name)
    penalty = float(artefact.record["hyper"]["penalty"])
    return evaluate(Truth.of(setting(name)), artefact.actor, penalty, (effort.seeds, SECONDS), 0)


def picture(scenario: str = "inss-small") -> PlanRequest:
    """What the planner of a running world was asked last."""
    short = World(replace(world_of(scenario).scenario, span_s=WORLD_S))
    run = short.begin(RunContender(label="inss", planners=("inss",)), SEED, PlannersOf())
    run.go(lambda _: None)
    assert run.journal.record is not None
    return request_of(run.journal.record.snapshot, SEED)


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """CPU milliseconds of a decision's parts, the quickest of several; regressions over the profile are fitted already,
    as they are from the second cycle on.
    """

    batches: float
    actor: float
    programme: float
    models: int
    gpus: int


def times(request: PlanRequest) -> DecisionTimes:
    case = Case.of(request)
    belief = InssBelief(case=case, interference=True)
    listed = columns_of(Draft.of(request, case), belief, InssParameters())
    everything = np.ones(len(listed.problem), dtype=np.bool_)
    engine, limits = create("highs"), Limits(work=NODES_MAX, gap=0.001)
    draft = Draft.of(request, case)
    artefact = actor_for(draft, "")

    def batches() -> object:
        fresh = InssBelief(case=case, interference=True)
        return Batching(draft=Draft.of(request, case), belief=fresh, batch_max=32, reasons=[]).settle()

    def actor() -> object:
        return learned(draft, listed, artefact)(listed.problem, everything)

    return DecisionTimes(
        batches=_quickest_ms(batches),
        actor=_quickest_ms(actor),
        programme=_quickest_ms(lambda: exact(listed.problem, everything, engine, limits)),
        models=len(draft.needs),
        gpus=len(draft.fleet.devices),
    )


def _quickest_ms(work: Callable[[], object]) -> float:
    return min(timed(work)[0] for _ in range(REPEATS))


def decision_times(_effort: Effort) -> ClaimEvidence:
    seen = times(picture())
    parts = (
        (seen.batches, BATCHES_MS, "batches"),
        (seen.actor, ACTOR_MS, "actor"),
        (seen.programme, PROGRAMME_MS, "ILP"),
    )
    slow = [f"{name} takes {took:.1f} ms" for took, limit, name in parts if took > limit]
    told = ", ".join(f"{name} {took:.2f} ms of {limit:g}" for took, limit, name in parts)
    measured = f"{seen.models} networks on {seen.gpus} GPUs, CPU time: {told}"
    return figure(measured, reached=not slow, note="; ".join(slow))


OURS, BLIND, GPULET, BDA_GPULET = "inss", "inss_ni", "gpulet", "bda_gpulet"
STATED_PCT = {GPULET: 28.1, "gslice": 47.7, "igniter": 189.7}
"""How much more InSS carries than each baseline, on average."""
SIX, EIGHT = "inss-six", "inss-eight-{gpus}"
ALL = (OURS, *STATED_PCT, BDA_GPULET, BLIND)
CAPACITY, SERVED, VIOLATION = "capacity_rps", "throughput_rps", "violation_pct"
VIOLATION_PCT, GAIN_PCT, WITHIN_PCT, WITHIN_POINTS = 1.0, 11.0, 5.0, 1.0
AT_ONCE = 1e-3
"""Launch times, so small that no hand-over leaves a gap (at 0 nothing would be handed over)."""


def _eight(gpus: int, contenders: tuple[str, ...], effort: Effort) -> Outcomes:
    return outcomes(EIGHT.format(gpus=gpus), contenders, effort)


@cache
def _at_once(scenario: str, contender: str) -> RunOutcome:
    return varied(scenario, contender, lambda world: replace(world, launch_scale=AT_ONCE))


@cache
def _without_spare(contender: str) -> RunOutcome:
    """Rates are planned as they are, with no room for their growth."""
    return varied(
        SIX,
        contender,
        lambda world: replace(world, policy=replace(world.policy, demand_headroom=1.0, demand_noise_sigmas=0.0)),
    )


def _means(found: Outcomes, name: str, contenders: Sequence[str]) -> dict[str, float]:
    return {contender: mean_metric(found[contender], name) for contender in contenders}


def gains_pct(found: Mapping[str, float], over: Sequence[str]) -> dict[str, float]:
    return {name: 100.0 * (found[OURS] / found[name] - 1.0) for name in over}


def capacity_gained(effort: Effort) -> ClaimEvidence:
    """Capacity over each baseline's, and the same of what was served."""
    found = outcomes(SIX, ALL, effort)
    capacity, served = _means(found, CAPACITY, ALL), _means(found, SERVED, ALL)
    gains, goods = gains_pct(capacity, tuple(STATED_PCT)), gains_pct(served, tuple(STATED_PCT))
    measured = (
        f"capacity {capacity[OURS]:.0f} requests/s: {listed(gains, '{:+.1f} %')}; "
        f"served {served[OURS]:.0f} requests/s: {listed(goods, '{:+.1f} %')}"
    )

    def why() -> str:
        bare = {name: mean_metric([_without_spare(name)], CAPACITY) for name in (OURS, *STATED_PCT)}
        return (
            "all size for 1.2 times the busiest moment here, so baselines that give what is asked and no more still "
            "carry more than the rates; ablation without spare for growth on seed 0: capacity "
            f"{listed(bare)}, gains {listed(gains_pct(bare, tuple(STATED_PCT)), '{:+.1f} %')}; deaf to neighbours InSS "
            f"carries {capacity[BLIND]:.0f}"
        )

    reached = all(gains[name] >= stated for name, stated in STATED_PCT.items())
    return figure(measured, note=effort.told, reached=reached, why=why)


def violations(effort: Effort) -> ClaimEvidence:
    runs = outcomes(SIX, ALL, effort)
    found = _means(runs, VIOLATION, (OURS, *STATED_PCT))
    items = [item for some in runs.values() for run in some for item in run.services]
    unserved = sorted({item.service for item in items} - {item.service for item in items if item.completed})
    fewest = all(found[OURS] < found[name] for name in STATED_PCT)

    def why() -> str:
        at_once = mean_metric([_at_once(SIX, OURS)], VIOLATION)
        first = runs[OURS][:1]
        late = {item.service: 100.0 * (item.late + item.dropped) / item.asked for item in first[0].services}
        most = max(late, key=lambda name: late[name])
        return (
            f"on seed 0 {most} is late or dropped most, {late[most]:.1f} %; ablation on seed 0: were processes ready "
            f"at once, InSS would violate {at_once:.2f} % instead of {mean_metric(first, VIOLATION):.2f} %; services "
            f"that nobody serves: {', '.join(unserved) or 'none'}"
        )

    reached = found[OURS] < VIOLATION_PCT and fewest
    return figure(listed(found, "{:.2f} %"), note=effort.told, reached=reached, why=why)


def gpulet_with_our_batches(effort: Effort) -> ClaimEvidence:
    runs = outcomes(SIX, ALL, effort)
    capacity, violation = (_means(runs, name, (GPULET, BDA_GPULET)) for name in (CAPACITY, VIOLATION))
    gain = 100.0 * (capacity[BDA_GPULET] / capacity[GPULET] - 1.0)
    apart = abs(violation[BDA_GPULET] - violation[GPULET])
    measured = f"capacity {listed(capacity)} requests/s ({gain:+.1f} %); violations {listed(violation, '{:.2f} %')}"

    def why() -> str:
        bare = {name: _without_spare(name) for name in (GPULET, BDA_GPULET)}
        capacities = {name: mean_metric([outcome], CAPACITY) for name, outcome in bare.items()}
        more = 100.0 * (capacities[BDA_GPULET] / capacities[GPULET] - 1.0)
        return (
            "Gpulet's own rule, twice the execution within the limit, is the promise that every plan must prove here, "
            "so that no larger batch may be planned, whatever Eq. 2 counts; ablation without spare "
            f"for growth on seed 0: {listed(capacities)} ({more:+.1f} %)"
        )

    return figure(measured, note=effort.told, reached=gain >= GAIN_PCT and apart <= WITHIN_POINTS, why=why)


def blind_to_neighbours(effort: Effort) -> ClaimEvidence:
    runs = outcomes(SIX, ALL, effort)
    capacity, violation = (_means(runs, name, (OURS, BLIND)) for name in (CAPACITY, VIOLATION))
    apart = 100.0 * (capacity[BLIND] / capacity[OURS] - 1.0)
    measured = f"capacity {listed(capacity)} requests/s ({apart:+.1f} %); violations {listed(violation, '{:.2f} %')}"

    def why() -> str:
        at_once = {name: _at_once(SIX, name) for name in (OURS, BLIND)}
        told = {name: mean_metric([outcome], VIOLATION) for name, outcome in at_once.items()}
        carried = {name: mean_metric([outcome], CAPACITY) for name, outcome in at_once.items()}
        return (
            "who counts on neighbours that are always busy leaves room that who counts on none gives away; ablation on "
            f"seed 0, processes ready at once: violations {listed(told, '{:.2f} %')}, capacity {listed(carried)}"
        )

    reached = abs(apart) <= WITHIN_PCT and violation[BLIND] > violation[OURS]
    return figure(measured, note=effort.told, reached=reached, why=why)


def heavy_load(effort: Effort) -> ClaimEvidence:
    """Eight networks: InSS on four GPUs against others on five and six, and on five against others on five."""
    four = _eight(4, (OURS,), effort)
    five, six = _eight(5, (OURS, *STATED_PCT), effort), _eight(6, (GPULET, "gslice"), effort)
    told, reached = [], {}
    for name in (CAPACITY, SERVED):
        mine = {gpus: mean_metric(runs[OURS], name) for gpus, runs in ((4, four), (5, five))}
        theirs = _means(five, name, tuple(STATED_PCT))
        more = _means(six, name, (GPULET, "gslice"))
        reached[name] = mine[4] >= max(theirs[GPULET], theirs["gslice"], *more.values()) and mine[5] > max(
            theirs.values()
        )
        told.append(
            f"{name}: InSS {mine[4]:.0f} on four GPUs, {mine[5]:.0f} on five; on five {listed(theirs)}; on six "
            f"{listed(more)}"
        )
    violation = {"four": mean_metric(four[OURS], VIOLATION), "five": mean_metric(five[OURS], VIOLATION)}
    kept = max(violation.values()) < VIOLATION_PCT
    measured = "; ".join([*told, f"violations of InSS: {listed(violation, '{:.2f} %')}"])

    def why() -> str:
        at_once = {number: mean_metric([_at_once(EIGHT.format(gpus=number), OURS)], VIOLATION) for number in (4, 5)}
        wide = fmean(
            mean_metric(runs[name], VIOLATION) for runs, name in ((five, GPULET), (five, "gslice"), (six, GPULET))
        )
        return (
            f"by requests served {'reached' if reached[SERVED] else 'missed'}, by capacity "
            f"{'reached' if reached[CAPACITY] else 'missed'}: capacity counts partitions that carry far more than "
            f"is asked of them, while other services go without (Gpulet and GSLICE violate {wide:.0f} %); ablation on "
            f"seed 0, processes ready at once: InSS violates {at_once[4]:.2f} % on four GPUs, {at_once[5]:.2f} % on "
            "five"
        )

    return figure(measured, note=effort.told, reached=all(reached.values()) and kept, why=why)
