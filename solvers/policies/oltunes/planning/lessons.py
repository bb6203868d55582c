"""The predictor of OLTunes' planner: taught by profiles before the first task, then by every task that has ended.

Owns what of a snapshot teaches it (measured points without neighbours at the highest clock; of many, a seeded choice)
and its written form. It refuses beliefs: what nobody measured teaches nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from solvers.domain.profile import ProfilePoint
from solvers.domain.snapshot import Snapshot
from solvers.models.base import Facts, Queries, Samples
from solvers.policies.oltunes import beliefs
from solvers.policies.oltunes.learned import LearnedSolo
from solvers.policies.oltunes.planning.memory import OltunesMemory, learned

SEED = 7
_NOTHING = ""


def predictor_of(
    memory: OltunesMemory, snapshot: Snapshot, samples_max: int
) -> tuple[OltunesMemory, LearnedSolo | None]:
    """The predictor by now, and the memory that holds it; None while it has met nothing."""
    facts = Facts(
        gpu_types={item.name: item for item in snapshot.gpu_types}, models={item.name: item for item in snapshot.models}
    )
    if memory.solo == _NOTHING:
        solo = beliefs.predictor(memory.predictor, facts, SEED)
    else:
        solo = beliefs.loaded(memory.predictor, json.loads(memory.solo), facts)
    before = memory
    memory, solo = _taught(memory, solo, snapshot, samples_max)
    memory, solo = learned(memory, solo)
    if memory is not before:
        text = json.dumps(solo.dump(), sort_keys=True, separators=(",", ":"))
        memory = replace(memory, solo=text)
    return memory, solo if memory.solo != _NOTHING else None


def _taught(
    memory: OltunesMemory, solo: LearnedSolo, snapshot: Snapshot, samples_max: int
) -> tuple[OltunesMemory, LearnedSolo]:
    """Profiles that it was not taught yet: the first ones gone over several times, later ones point by point."""
    known = set(memory.taught)
    points: list[ProfilePoint] = []
    names: list[str] = []
    for profile in sorted(snapshot.profiles, key=lambda item: (item.model, item.gpu_type)):
        name = f"{profile.model}/{profile.gpu_type}"
        mine = [] if name in known else _measured(profile.points)
        if mine:
            names.append(name)
            points += mine
    if not points or not samples_max:
        return memory, solo
    if len(points) > samples_max:
        order = np.random.default_rng(SEED).permutation(len(points))[:samples_max]
        points = [points[index] for index in np.sort(order)]
    samples = _samples(points)
    taught = solo.fit(samples) if memory.solo == _NOTHING else solo.update(samples)
    return replace(memory, taught=tuple(sorted((*memory.taught, *names)))), taught


def _measured(points: tuple[ProfilePoint, ...]) -> list[ProfilePoint]:
    alone = [point for point in points if not point.neighbours and not point.origin.is_believed]
    highest = max((point.clock_mhz_sm for point in alone), default=0)
    return [point for point in alone if point.clock_mhz_sm == highest]


def _samples(points: list[ProfilePoint]) -> Samples:
    queries = Queries.of(
        [point.model for point in points],
        [point.gpu_type for point in points],
        [point.batch for point in points],
        [point.share_pct_sm for point in points],
    )
    return Samples.of(queries, [point.latency_ms_mean for point in points])
