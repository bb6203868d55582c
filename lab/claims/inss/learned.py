"""What InSS states of its learned actor: how fast it learns, how good it is, and how long decisions take.

Curves of the shipped trainings are read (`headroom train inss` makes them), the actor is looked at beside the most that
any placement can earn, and one decision for eight networks on four GPUs is timed in CPU time, the quickest of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lab.claims.claim import ClaimEvidence, Effort, figure
from lab.claims.runs import world_of
from lab.learning.inss.evaluating import Score, evaluate
from lab.learning.inss.settings import setting
from lab.learning.inss.world import Truth
from solvers.domain.evidence import Reporter
from solvers.domain.plan import Proposal
from solvers.engines.base import Limits, create
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.policies.inss.actor import curves, shipped
from solvers.policies.inss.batching import Batching
from solvers.policies.inss.belief import InssBelief
from solvers.policies.inss.placing import InssParameters, columns_of, exact, learned
from solvers.sim.outcome import RunContender
from solvers.sim.world.world import World

BY_EPISODE, PART, SMOOTHED = 800, 0.95, 50
SEEDS = 3
LAST = 100
"""Episodes at the end of a training whose mean is its final reward."""
SECONDS = 100
"""Of each episode that an actor is judged over."""
BATCHES_MS, ACTOR_MS, PROGRAMME_MS = 10.0, 20.0, 1000.0
REPEATS = 7
NODES_MAX = 2000.0
WORLD_S = 40.0


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
    late, told, seen = list[str](), list[str](), _curves("six")
    if len(seen) < SEEDS:
        late.append(f"trained with {len(seen)} of {SEEDS} seeds")
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


def _curves(name: str) -> Mapping[str, Sequence[float]]:
    """Rewards of every training of a setting, by seed."""
    return {seed: each["reward"] for seed, each in curves()[name].items()}


def _score(name: str, effort: Effort) -> Score:
    """The shipped actor over so many fresh episodes as there are seeds."""
    artefact = shipped(name)
    penalty = float(artefact.record["hyper"]["penalty"])
    return evaluate(Truth.of(setting(name)), artefact.actor, penalty, (effort.seeds, SECONDS), 0)


@dataclass(slots=True)
class Watched:
    """A planner that keeps what it is asked."""

    planner: Any
    asked: list[PlanRequest]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planner, name)

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        """As the planner."""
        self.asked.append(request)
        proposal: Proposal = self.planner.propose(request, state, reporter)
        return proposal


def picture(scenario: str = "inss-small") -> PlanRequest:
    """What the planner of a running world was asked last."""
    watched = Watched(registry.create("inss"), [])
    short = World(replace(world_of(scenario).scenario, span_s=WORLD_S))
    short.run(RunContender(label="inss", planners=("inss",)), 1000, lambda _name, _settings: watched, lambda _: None)
    return watched.asked[-1]


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
    """Measure one picture."""
    case = Case.of(request)
    belief = InssBelief.of(case, interference=True)
    listed = columns_of(Draft.of(request, case), belief, InssParameters())
    everything = np.ones(len(listed.problem), dtype=np.bool_)
    engine, limits = create("highs"), Limits(work=NODES_MAX, gap=0.001)
    draft = Draft.of(request, case)

    def batches() -> object:
        fresh = InssBelief.of(case, interference=True)
        return Batching(draft=Draft.of(request, case), belief=fresh, batch_max=32, reasons=[]).settle()

    def actor() -> object:
        placer = learned(draft, listed)
        return None if placer is None else placer(listed.problem, everything)

    if actor() is None:
        raise ValueError("no actor was trained for this picture")
    return DecisionTimes(
        batches=_quickest_ms(batches),
        actor=_quickest_ms(actor),
        programme=_quickest_ms(lambda: exact(listed.problem, everything, engine, limits)),
        models=len(draft.needs),
        gpus=len(draft.fleet.devices),
    )


def _quickest_ms(work: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        found.append(1000.0 * (time.process_time() - begun))
    return min(found)


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
