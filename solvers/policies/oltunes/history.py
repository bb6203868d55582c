"""What a learner was shown: rows with their targets, and how far a question lies from them.

A bounded window holds the latest rows, which learning goes back to; the distinct configurations ever met outlive it.
Both hold groups; a replica alone is a group of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, Queries
from solvers.models.parts.lattice import in_steps
from solvers.models.parts.seen import floats_of, ints_of, names_of, part, queries_from_plain, queries_to_plain, read
from solvers.policies.oltunes.features import neighbours

POINTS_MAX = 512
"""Distinct configurations remembered of one combination of models; later ones lie among them."""
_USUAL_MHZ = 1500.0
_SMALL = 1e-5
"""Of a step: places are rounded before they are remembered, and distances lose digits by cancellation."""


def alone(queries: Queries) -> Groups:
    return Groups(members=queries, group=np.arange(len(queries), dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWindow:
    """The latest rows and their targets (one column each), whole groups only."""

    groups: Groups
    targets: Floats

    @staticmethod
    def empty(targets: int) -> HistoryWindow:
        none = Queries.of([], [], [], [], [])
        return HistoryWindow(groups=alone(none), targets=np.zeros((0, targets)))

    def extended(self, more: HistoryWindow, rows_max: int) -> HistoryWindow:
        """With more rows at the end; the oldest groups go when there are more than `rows_max` rows."""
        groups, targets = self.groups.joined(more.groups), np.concatenate([self.targets, more.targets])
        if len(groups) <= rows_max:
            return HistoryWindow(groups=groups, targets=targets)
        start = int(np.searchsorted(groups.group, groups.group[len(groups) - rows_max - 1], side="right"))
        kept = Groups(
            members=groups.members.take(np.arange(start, len(groups))),
            group=groups.group[start:] - (groups.group[start] if start < len(groups) else 0),
        )
        return HistoryWindow(groups=kept, targets=targets[start:])

    def dump(self) -> Plain:
        return {
            "members": queries_to_plain(self.groups.members),
            "group": self.groups.group.tolist(),
            "targets": self.targets.tolist(),
        }

    @staticmethod
    def load(plain: Plain, targets: int) -> HistoryWindow:
        groups = Groups(members=queries_from_plain(part(plain, "members")), group=read(plain, "group", ints_of))
        return HistoryWindow(groups=groups, targets=read(plain, "targets", floats_of).reshape(-1, targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Per row: how far from the nearest configuration met, whether inside what was met, how many of its combination
    were met.
    """

    distance: Floats
    support: Flags
    points: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Distinct configurations met, in grid steps, by combination: GPU type, model, models of the neighbours in order
    of their names.
    """

    met: Mapping[tuple[str, ...], Floats]

    def extended(self, groups: Groups, facts: Facts) -> Reach:
        met = dict(self.met)
        places = places_of(groups, facts)
        for key, rows in combinations(groups).items():
            fresh = np.unique(places[rows].round(6), axis=0)
            known = met.get(key)
            if known is not None:
                apart = np.abs(fresh[:, None, :] - known[None, :, :]).max(axis=2).min(axis=1) > _SMALL
                if not apart.any():
                    continue
                fresh = np.concatenate([known, fresh[apart]])
            met[key] = fresh[:POINTS_MAX]
        return Reach(met=met)

    def of(self, groups: Groups, facts: Facts) -> Nearness:
        """How near every member of the groups is to what was met."""
        distance = np.full(len(groups), np.inf)
        support = np.zeros(len(groups), dtype=np.bool_)
        points = np.zeros(len(groups), dtype=np.int64)
        places = places_of(groups, facts)
        for key, rows in combinations(groups).items():
            known = self.met.get(key)
            if known is None:
                continue
            here = places[rows]
            distance[rows] = _nearest(here, known)
            inside = (here >= known.min(axis=0) - _SMALL) & (here <= known.max(axis=0) + _SMALL)
            support[rows] = inside.all(axis=1)
            points[rows] = len(known)
        return Nearness(distance=distance, support=support, points=points)

    def dump(self) -> Plain:
        keys = sorted(self.met)
        return {"of": [list(key) for key in keys], "places": [self.met[key].tolist() for key in keys]}

    @staticmethod
    def load(plain: Plain) -> Reach:
        return Reach(met=places_by_key(plain))


def places_by_key(plain: Plain) -> dict[tuple[str, ...], Floats]:
    """Lists `of` (what places have in common) and `places` of a JSON object as a table."""
    keys = read(plain, "of", lambda items: [names_of(cast("list[Plain]", item)) for item in items])
    places = read(plain, "places", lambda items: [floats_of(cast("list[Plain]", item)) for item in items])
    return dict(zip(keys, places, strict=True))


def _nearest(here: Floats, known: Floats) -> Floats:
    """Euclidean distance to the nearest of `known`, from |a|^2 - 2ab + |b|^2 so that no cube of differences is made."""
    centre = known[0]
    one, two = here - centre, known - centre
    squares = np.square(one).sum(axis=1)[:, None] - 2.0 * one @ two.T + np.square(two).sum(axis=1)[None, :]
    nearest = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
    return np.where(nearest < _SMALL, 0.0, nearest)


def places_of(groups: Groups, facts: Facts) -> Floats:
    """Each member in grid steps of clock, share and batch, then the mean share and batch of its neighbours."""
    members = groups.members
    highest = np.array([_highest_mhz(name, facts) for name in members.gpu_types])[members.gpu_type]
    clock = np.where(np.isnan(members.clock_mhz), highest, members.clock_mhz)
    share, batch = in_steps("share_pct", members.share_pct), in_steps("batch", members.batch)
    count = np.maximum(groups.count_of_others(), 1.0)
    beside = [groups.sum_of_others(own) / count for own in (share, batch)]
    return np.stack([in_steps("clock_mhz", clock), share, batch, *beside], axis=1)


def _highest_mhz(gpu_type: str, facts: Facts) -> float:
    device = facts.gpu_types.get(gpu_type)
    return _USUAL_MHZ if device is None else float(device.clock_mhz_sm_max)


def combinations(groups: Groups) -> dict[tuple[str, ...], Whole]:
    """Rows of every combination of GPU type, own model and neighbours' models."""
    members = groups.members
    if not len(groups):
        return {}
    # Names in their order, so that sorting neighbours by rank sorts them by name.
    order = np.argsort(np.array(members.models))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    own = rank[members.model]
    others = [np.where(neighbour >= 0, own[neighbour], -1) for neighbour in neighbours(groups.group)]
    beside = np.sort(np.stack(others, axis=1), axis=1) if others else np.zeros((len(own), 0), dtype=np.int64)
    # One number per combination: sorting numbers is many times quicker than sorting rows.
    code = members.gpu_type * len(order) + own
    for column in range(beside.shape[1]):
        code = np.unique(code, return_inverse=True)[1] * (len(order) + 1) + beside[:, column] + 1
    by_code = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[by_code], prepend=-1))
    parts = np.split(by_code, starts[1:])
    named = [members.models[int(index)] for index in order]
    return {
        (
            members.gpu_types[int(members.gpu_type[part[0]])],
            named[int(own[part[0]])],
            *(named[int(index)] for index in beside[part[0]] if index >= 0),
        ): part
        for part in parts
    }


def companies(groups: Groups) -> Whole:
    """A number for every group, the same for groups of the same models on the same GPU type."""
    numbers: dict[tuple[str, ...], int] = {}
    found = np.zeros(int(groups.group[-1]) + 1 if len(groups) else 0, dtype=np.int64)
    for (gpu_type, *models), rows in combinations(groups).items():
        found[groups.group[rows]] = numbers.setdefault((gpu_type, *sorted(models)), len(numbers))
    return found
