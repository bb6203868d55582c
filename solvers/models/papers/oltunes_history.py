"""What a learner was shown: rows with their targets, and how far a question lies from them.

Owns the bounded window of latest rows, which learning goes back to, and the distinct configurations ever met, which
outlive the window. Both hold groups; a replica alone is a group of one. It refuses to learn anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from solvers.domain.codec import Plain
from solvers.models.base import Facts, Flags, Floats, Groups, Ints, Queries
from solvers.models.papers.oltunes_features import neighbours

POINTS_MAX = 512
"""Distinct configurations remembered of one combination of models; later ones lie among them."""
_SHARE_STEP_PCT = 10.0
_CLOCK_STEP = 0.1
_USUAL_MHZ = 1500.0
_SMALL = 1e-9


def alone(queries: Queries) -> Groups:
    """Every replica in a group of its own."""
    return Groups(members=queries, group=np.arange(len(queries), dtype=np.int64))


def joined(first: Groups, second: Groups) -> Groups:
    """The groups of both, one after the other."""
    models = {name: index for index, name in enumerate(dict.fromkeys((*first.members.models, *second.members.models)))}
    gpu_types = {
        name: index for index, name in enumerate(dict.fromkeys((*first.members.gpu_types, *second.members.gpu_types)))
    }
    parts = (first.members, second.members)

    def renamed(index: Ints, names: tuple[str, ...], table: dict[str, int]) -> Ints:
        return np.array([table[name] for name in names], dtype=np.int64)[index]

    members = Queries(
        models=tuple(models),
        gpu_types=tuple(gpu_types),
        model=np.concatenate([renamed(part.model, part.models, models) for part in parts]),
        gpu_type=np.concatenate([renamed(part.gpu_type, part.gpu_types, gpu_types) for part in parts]),
        batch=np.concatenate([part.batch for part in parts]),
        share_pct=np.concatenate([part.share_pct for part in parts]),
        clock_mhz=np.concatenate([part.clock_mhz for part in parts]),
    )
    after = int(first.group[-1]) + 1 if len(first) else 0
    return Groups(members=members, group=np.concatenate([first.group, second.group + after]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The latest rows and their targets (one column each), whole groups only."""

    groups: Groups
    targets: Floats

    @staticmethod
    def empty(targets: int) -> Window:
        """No rows yet."""
        none = Queries.of([], [], [], [], [])
        return Window(groups=alone(none), targets=np.zeros((0, targets)))

    def extended(self, more: Window, rows_max: int) -> Window:
        """With more rows at the end; the oldest groups go when there are more than `rows_max` rows."""
        groups, targets = joined(self.groups, more.groups), np.concatenate([self.targets, more.targets])
        if len(groups) <= rows_max:
            return Window(groups=groups, targets=targets)
        start = int(np.searchsorted(groups.group, groups.group[len(groups) - rows_max - 1], side="right"))
        kept = Groups(
            members=groups.members.take(np.arange(start, len(groups))),
            group=groups.group[start:] - (groups.group[start] if start < len(groups) else 0),
        )
        return Window(groups=kept, targets=targets[start:])

    def dump(self) -> Plain:
        """As JSON data; clocks that were not given are null."""
        members = self.groups.members
        return {
            "models": list(members.models),
            "gpu_types": list(members.gpu_types),
            "model": members.model.tolist(),
            "gpu_type": members.gpu_type.tolist(),
            "batch": members.batch.tolist(),
            "share_pct": members.share_pct.tolist(),
            "clock_mhz": [None if np.isnan(clock) else float(clock) for clock in members.clock_mhz],
            "group": self.groups.group.tolist(),
            "targets": self.targets.tolist(),
        }

    @staticmethod
    def load(plain: Plain, targets: int) -> Window:
        """From what `dump` wrote."""
        table = cast("Mapping[str, list[float]]", plain)
        names = cast("Mapping[str, list[str]]", plain)
        members = Queries(
            models=tuple(names["models"]),
            gpu_types=tuple(names["gpu_types"]),
            model=np.array(table["model"], dtype=np.int64),
            gpu_type=np.array(table["gpu_type"], dtype=np.int64),
            batch=np.array(table["batch"], dtype=np.float64),
            share_pct=np.array(table["share_pct"], dtype=np.float64),
            clock_mhz=np.array(table["clock_mhz"], dtype=np.float64),
        )
        return Window(
            groups=Groups(members=members, group=np.array(table["group"], dtype=np.int64)),
            targets=np.array(table["targets"], dtype=np.float64).reshape(-1, targets),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Per row: how far from the nearest configuration met, whether inside what was met, how many of its combination
    were met.
    """

    distance: Floats
    support: Flags
    points: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Distinct configurations met, in grid steps, by combination: GPU type, model, models of the neighbours in order
    of their names.
    """

    met: Mapping[tuple[str, ...], Floats]

    def extended(self, groups: Groups, facts: Facts) -> Reach:
        """With these configurations, too."""
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
        """As JSON data."""
        return [{"of": list(key), "places": self.met[key].tolist()} for key in sorted(self.met)]

    @staticmethod
    def load(plain: Plain) -> Reach:
        """From what `dump` wrote."""
        entries = cast("list[Mapping[str, list[str]]]", plain)
        return Reach(met={tuple(entry["of"]): np.array(entry["places"], dtype=np.float64) for entry in entries})


def _nearest(here: Floats, known: Floats) -> Floats:
    """Euclidean distance to the nearest of `known`, from |a|^2 - 2ab + |b|^2 so that no cube of differences is made."""
    centre = known[0]
    one, two = here - centre, known - centre
    squares = np.square(one).sum(axis=1)[:, None] - 2.0 * one @ two.T + np.square(two).sum(axis=1)[None, :]
    nearest = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
    # Cancellation leaves about 1e-7 where the configuration itself was met.
    return np.where(nearest < 1e-6, 0.0, nearest)


def places_of(groups: Groups, facts: Facts) -> Floats:
    """Each member in grid steps (doublings of batch, 10 % of share, 10 % of clock), then its neighbours' mean."""
    members = groups.members
    highest = np.array([_highest_mhz(name, facts) for name in members.gpu_types])[members.gpu_type]
    clock = np.nan_to_num(np.log(members.clock_mhz / highest) / _CLOCK_STEP, nan=0.0)
    own = np.stack([np.log2(members.batch), members.share_pct / _SHARE_STEP_PCT, clock], axis=1)
    count = groups.count_of_others()
    beside = [groups.sum_of_others(own[:, column]) / np.maximum(count, 1.0) for column in range(2)]
    return np.concatenate([own, np.stack(beside, axis=1)], axis=1)


def _highest_mhz(gpu_type: str, facts: Facts) -> float:
    device = facts.gpu_types.get(gpu_type)
    return _USUAL_MHZ if device is None else float(device.clock_mhz_sm_max)


def combinations(groups: Groups) -> dict[tuple[str, ...], Ints]:
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
