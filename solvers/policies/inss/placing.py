"""InSS' problem (1): its parameters, its columns for a draft, and who chooses among them.

Columns are replicas, devices, shares and batches that keep their promise: so many replicas of each service that one
column each can serve its part, columns that meet (1c) beside neighbours of usual appetite, and a second look at who
really sits together.

They are chosen by an integer engine, exactly; by a plain rule (models by their rate over their limit, the best share
for its throughput, first fit); or by the trained actor, which is asked with the same columns and answers with the same
flags: for what it grants, those on its GPU, of shares not above the granted one, that serve most. What has no such
column is left to those who fill plans. Pictures with other networks or other GPUs than an actor was trained for have
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import numpy as np

from solvers.domain.arrays import Flags, Whole
from solvers.domain.evidence import ReasonCode
from solvers.domain.plan import Assignment
from solvers.domain.value import value
from solvers.engines.base import Engine, Limits, Program, ProgrammeRows
from solvers.errors import InputError
from solvers.planners.draft import Draft
from solvers.planners.traits import limit_ms, roomy
from solvers.planners.tuning import Tune, check_tuned
from solvers.policies.inss.actor import NOWHERE, Artefact, check_reference, deployed, fitting, shipped_for
from solvers.policies.inss.belief import CompanyEffect, InssBelief, Member
from solvers.problems.choice import Option, replicas_for
from solvers.problems.knapsack import DUST, Knapsack
from solvers.problems.needs import Need


class Placing(StrEnum):
    """Who places where batches alone do not suffice."""

    KNAPSACK = "knapsack"
    GREEDY = "greedy"
    LEARNED = "learned"


class LeftoverShare(StrEnum):
    """What becomes of share that nobody needs."""

    DISTRIBUTE = "distribute"
    RESERVE = "reserve"


@value
class InssParameters:
    batch_max: Annotated[int, Tune("largest batch", 1, 65536)] = 32
    placing: Annotated[Placing, Tune("who places: the exact knapsack, a plain rule, or the trained actor")] = (
        Placing.KNAPSACK
    )
    leftover: Annotated[LeftoverShare, Tune("what becomes of share that nobody needs")] = LeftoverShare.DISTRIBUTE
    engine: Annotated[str, Tune("who solves the knapsack", choices=("highs", "cbc", "cp-sat"))] = "highs"
    columns_max: Annotated[int, Tune("beyond so many columns the plain rule places", 1)] = 4000
    rounds_max: Annotated[int, Tune("solves, each without the columns that neighbours broke", 1, 50)] = 5
    stay_part: Annotated[float, Tune("going on as it is is worth this part of a replica's throughput", 0, 1)] = 0.5
    actor: Annotated[str, Tune("with learned: the trained actor, NAME@VERSION; empty: the package's that fits")] = ""
    gain_part_min: Annotated[float, Tune("a new placement must serve this part of all rates more", 0, 1)] = 0.005
    gap: Annotated[float, Tune("a knapsack this near to its bound is good enough", 0, 1)] = 0.001

    def __post_init__(self) -> None:
        check_tuned(self)
        check_reference(self.actor)


# --- Columns


LEAST_PART = 0.8
"""How much what must be served counts, of the worth of serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnapsackColumns:
    """The knapsack with what its columns stand for; models are `needs`, GPUs the fleet's devices."""

    needs: tuple[Need, ...]
    options: tuple[Option, ...]
    problem: Knapsack

    def members(self, chosen: Flags) -> dict[int, list[tuple[int, Member]]]:
        """Who sits together: columns with their member, by device."""
        found: dict[int, list[tuple[int, Member]]] = {}
        for column in np.flatnonzero(chosen):
            member = self.needs[int(self.problem.model[column])], self.options[column]
            found.setdefault(int(self.problem.gpu[column]), []).append((int(column), member))
        return found

    def rate_rps_least(self, model: int) -> float:
        return self.needs[model].rate_rps_least / max(1, int(self.problem.wanted[model]))

    def scant(self, allowed: Flags, short: Collection[str]) -> Whole:
        """Allowed columns of who is short that serve less than their part by what plans must prove, where others of
        theirs do not.
        """
        problem, scant = self.problem, np.zeros(len(self.problem), dtype=np.bool_)
        for model, need in enumerate(self.needs):
            if need.workload in short:
                mine = np.flatnonzero(allowed & (problem.model == model))
                shown_rps = np.array([self.options[column].capacity_rps for column in mine])
                little = shown_rps < self.rate_rps_least(model)
                if not little.all():
                    scant[mine[little]] = True
        return np.flatnonzero(scant)

    def broken(self, chosen: Flags, belief: InssBelief) -> list[int]:
        """Columns that are late beside their very neighbours."""
        late: list[int] = []
        for together in self.members(chosen).values():
            members = [member for _, member in together]
            for at, (column, (need, option)) in enumerate(together):
                rate = self.rate_rps_least(int(self.problem.model[column]))
                if not belief.in_time(need, option, belief.beside(at, members), rate):
                    late.append(column)
        return late


def columns_of(draft: Draft, belief: InssBelief, parameters: InssParameters) -> KnapsackColumns:
    """All of a draft, in the order of the plain rule: the highest rate over limit first."""
    needs = sorted(
        (need for need in draft.needs if len(draft.options(need))),
        key=lambda need: (need.kind, -need.rate_rps / limit_ms(need), need.workload),
    )
    wanted: list[int] = []
    chosen: list[Option] = []
    places: list[tuple[int, int, float, float, float]] = []
    for model, need in enumerate(needs):
        count = _replicas(draft, belief, need)
        wanted.append(count)
        rates = need.rate_rps_least / max(1, count), need.rate_rps / max(1, count)
        standing = _standing(draft, need)
        for option in _listed(draft, belief, need, rates, parameters.batch_max):
            found = draft.places(draft.open(need), option)
            if isinstance(found, ReasonCode):
                continue
            each = belief.throughput_rps(need, option, belief.beside_usual(need, option))
            for device in map(int, found):
                stays = _kept(standing, option, device)
                chosen.append(option if stays is None else replace(option, memory_mib=stays.memory_mib_limit))
                bonus = parameters.stay_part * (stays is not None)
                places.append((model, device, each, _served(each, rates), bonus))
    table = np.array(places, dtype=np.float64).reshape(-1, 5)
    problem = Knapsack(
        model=table[:, 0].astype(np.int64),
        gpu=table[:, 1].astype(np.int64),
        share_pct=np.array([option.share_pct for option in chosen], dtype=np.float64),
        memory_mib=np.array([option.memory_mib for option in chosen], dtype=np.float64),
        throughput_rps=table[:, 2],
        served=table[:, 3],
        wanted=np.array(wanted, dtype=np.int64),
        share_room_pct=np.maximum(draft.fleet.share_free, 0.0),
        memory_room_mib=np.maximum(draft.fleet.memory_free, 0.0),
        staying_rps=table[:, 4] * table[:, 2],
    )
    return KnapsackColumns(needs=tuple(needs), options=tuple(chosen), problem=problem)


def _replicas(draft: Draft, belief: InssBelief, need: Need) -> int:
    """So many that the largest configuration serves its part of the rate."""
    if need.rate_rps <= 0:
        return min(need.replicas_floor, need.replicas_max)
    options = draft.options(need)
    able = [draft.option(need, int(at)) for at in np.flatnonzero(options.share_pct == options.share_pct.max())]
    largest = max(belief.throughput_rps(need, option, belief.beside_usual(need, option)) for option in able)
    return min(max(int(replicas_for(need.rate_rps, np.array(largest))), need.replicas_floor), need.replicas_max)


def staying(draft: Draft, need: Need, option: Option, device: int) -> Assignment | None:
    """The standing replica on a device that would be this one with another batch: no process has to start."""
    return _kept(_standing(draft, need), option, device)


def _standing(draft: Draft, need: Need) -> dict[tuple[int, int], Assignment]:
    """A need's standing replicas by device and share."""
    index = draft.fleet.index
    items = (item for item in draft.case.standing.get(need.workload, []) if item.model == need.model)
    return {(index[item.device], item.share_pct_sm): item for item in items if item.device in index}


def _kept(standing: dict[tuple[int, int], Assignment], option: Option, device: int) -> Assignment | None:
    item = standing.get((device, option.share_pct))
    return item if item is not None and item.memory_mib_limit >= option.memory_mib else None


def _served(each_rps: float, rates_rps: tuple[float, float]) -> float:
    """Part of its rate that a replica serves; what must be served counts before what capacity is sized for."""
    least, sized = (min(1.0, each_rps / rate) if rate > 0 else 1.0 for rate in rates_rps)
    return LEAST_PART * least + (1.0 - LEAST_PART) * sized


def _listed(
    draft: Draft, belief: InssBelief, need: Need, rates_rps: tuple[float, float], batch_max: int
) -> list[Option]:
    """For every class and share the batch with the highest throughput, of those in time. A batch fills the slower, the
    fewer come: it must be in time at the rate there is, and carry the one that is sized for.
    """
    options, found, (least, sized) = draft.options(need), list[Option](), rates_rps
    for number in np.unique(options.device_class):
        mine = np.flatnonzero((options.device_class == number) & (options.batch <= batch_max))
        for share in np.unique(options.share_pct[mine]):
            at_share = [draft.option(need, int(at)) for at in mine[options.share_pct[mine] == share]]
            timely = [o for o in at_share if belief.in_time(need, o, belief.beside_usual(need, o), least)]
            # What a plan must also prove, by the careful reading that is the same for all planners, comes first.
            proven = [o for o in timely if o.capacity_rps >= sized]
            if timely:
                best = max(proven or timely, key=lambda o: (belief.throughput_rps(need, o, CompanyEffect()), -o.batch))
                found.append(roomy(options, best, batch_max))
    return found


# --- Placers


Placer = Callable[[Knapsack, "Flags"], "Flags | None"]
"""Which columns to take, out of those that may be; None: no answer."""


def program_of(problem: Knapsack, allowed: Flags) -> Program:
    """One whole number from 0 to 1 for every column."""
    rows = ProgrammeRows()
    columns = rows.add_columns(-problem.worth, allowed.astype(np.float64))
    gpus = len(problem.share_room_pct)
    share = rows.add_rows(np.full(gpus, -np.inf), problem.share_room_pct)
    memory = rows.add_rows(np.full(gpus, -np.inf), problem.memory_room_mib)
    wanted = rows.add_rows(np.full(len(problem.wanted), -np.inf), problem.wanted.astype(np.float64))
    rows.enter(share[problem.gpu], columns, problem.share_pct)
    rows.enter(memory[problem.gpu], columns, problem.memory_mib)
    rows.enter(wanted[problem.model], columns, 1.0)
    places, place = np.unique(problem.model * gpus + problem.gpu, return_inverse=True)
    once = rows.add_rows(np.full(len(places), -np.inf), np.ones(len(places)))
    rows.enter(once[place], columns, 1.0)
    return rows.program()


def exact(problem: Knapsack, allowed: Flags, engine: Engine, limits: Limits) -> Flags | None:
    """The best choice an engine finds within its limits; never worse than the plain rule's."""
    plain = greedy(problem, allowed)
    if not allowed.any():
        return plain
    answer = engine.solve(program_of(problem, allowed), limits, plain.astype(np.float64))
    if answer.values is None:
        return None
    chosen = np.rint(answer.values).astype(np.bool_)
    return chosen if problem.feasible(chosen) else None


def greedy(problem: Knapsack, allowed: Flags) -> Flags:
    """Models in their order; for each the column that serves most, then has the best throughput for its share."""
    chosen = np.zeros(len(problem), dtype=np.bool_)
    share, memory = problem.share_room_pct.copy(), problem.memory_room_mib.copy()
    value = (problem.throughput_rps + problem.staying_rps) / problem.share_pct
    for model, wanted in enumerate(problem.wanted):
        mine = np.flatnonzero(allowed & (problem.model == model))
        order = mine[np.lexsort((problem.gpu[mine], -value[mine], -problem.served[mine]))]
        used: set[int] = set()
        for column in order:
            gpu = int(problem.gpu[column])
            if len(used) == wanted:
                break
            fits = problem.share_pct[column] <= share[gpu] + DUST and problem.memory_mib[column] <= memory[gpu] + DUST
            if gpu in used or not fits:
                continue
            chosen[column] = True
            used.add(gpu)
            share[gpu] -= problem.share_pct[column]
            memory[gpu] -= problem.memory_mib[column]
    return chosen


# --- The trained actor as a placer


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedShares:
    """By the knapsack's model: the device and the share that the actor grants."""

    device: tuple[int, ...]
    share_pct: tuple[float, ...]

    def __call__(self, problem: Knapsack, allowed: Flags) -> Flags:
        """The columns nearest to what is granted, as far as they fit."""
        chosen = np.zeros(len(problem), dtype=np.bool_)
        share, memory = problem.share_room_pct.copy(), problem.memory_room_mib.copy()
        for model in sorted(range(len(self.device)), key=lambda model: self.share_pct[model]):
            device = self.device[model]
            mine = np.flatnonzero(allowed & (problem.model == model) & (problem.gpu == device))
            room = min(self.share_pct[model], float(share[device])) + DUST
            able = mine[(problem.share_pct[mine] <= room) & (problem.memory_mib[mine] <= memory[device] + DUST)]
            if not len(able) or not problem.wanted[model]:
                continue
            best = able[np.lexsort((-problem.throughput_rps[able], -problem.served[able]))[0]]
            chosen[best] = True
            share[device] -= problem.share_pct[best]
            memory[device] -= problem.memory_mib[best]
        return chosen


def actor_for(draft: Draft, reference: str) -> Artefact:
    """The trained actor that a policy names, or the package's that fits the picture. Raises InputError that says why
    there is none: each network must be served once, no GPU may be cut into slices, and the actor must have been trained
    for exactly these networks and GPUs.
    """
    needs, fleet = draft.needs, draft.fleet
    classes = [fleet.class_at(device) for device in range(len(fleet.devices))]
    models, types = [need.model for need in needs], [kind.gpu_type for kind in classes]
    if len(set(models)) < len(models) or any(kind.sm_part < 1.0 for kind in classes):
        raise InputError("a trained actor places networks that are each served once, on whole GPUs")
    found = deployed(reference) if reference else shipped_for(models, types)
    if found is None:
        raise InputError("no actor that comes with headroom is for these networks and GPUs: train one and name it")
    if not fitting(found, models, types):
        counts = ", ".join(f"{count} x {name}" for name, count in sorted(Counter(types).items()))
        raise InputError(
            f"actor {reference or found.version} was trained for {found.told()}, and this is for "
            f"{', '.join(sorted(models))} on {counts}"
        )
    return found


def learned(draft: Draft, listed: KnapsackColumns, artefact: Artefact) -> GrantedShares:
    """What an actor that fits the picture chooses."""
    needs = draft.needs
    devices = _devices(draft, artefact)
    asked = [next(need for need in needs if need.model == name) for name in artefact.shape.models]
    places, granted = _chosen(draft, artefact, asked, devices)
    units = artefact.shape.units
    found = {
        need.workload: (devices[place], 100.0 * granted[model] / units[place])
        for model, (need, place) in enumerate(zip(asked, places, strict=True))
    }
    answers = [found[need.workload] for need in listed.needs]
    return GrantedShares(
        device=tuple(device for device, _ in answers),
        share_pct=tuple(share for _, share in answers),
    )


def _devices(draft: Draft, artefact: Artefact) -> list[int]:
    """The fleet's device for each GPU of the training: of its type, the first by name that is left."""
    fleet = draft.fleet
    left = sorted(range(len(fleet.devices)), key=lambda device: fleet.devices[device].id)
    found: list[int] = []
    for gpu_type in artefact.shape.gpu_types:
        mine = next(device for device in left if fleet.class_at(device).gpu_type == gpu_type)
        left.remove(mine)
        found.append(mine)
    return found


def _chosen(draft: Draft, artefact: Artefact, asked: list[Need], devices: list[int]) -> tuple[list[int], list[int]]:
    """GPU and units of every model, from what stands and what is asked for."""
    shape, case = artefact.shape, draft.case
    index = {draft.fleet.devices[device].id: gpu for gpu, device in enumerate(devices)}
    queues = {item.replica: item.queue_length for item in case.snapshot.replica_telemetry}
    used, places, waiting = np.zeros(len(devices)), np.full(len(asked), NOWHERE), np.zeros(len(asked))
    for model, need in enumerate(asked):
        for item in case.standing.get(need.workload, []):
            gpu = index.get(item.device, NOWHERE)
            waiting[model] += queues.get(item.replica, 0.0)
            if gpu != NOWHERE:
                used[gpu] += item.memory_mib_limit
                places[model] = gpu if places[model] == NOWHERE else places[model]
    rates = np.array([need.rate_rps_least for need in asked])
    state = shape.state(used, rates, waiting, places.astype(np.int64))
    chosen, levels = artefact.actor.choice(shape, state)
    return chosen, shape.granted(chosen, levels)
