"""Replicas in company: what was measured of groups, beside what their members do alone.

Here are the slowdowns that every formula of interference learns from, the utilisations of members alone, and how near a
question's group is to groups that were measured (same members first, then batch and share of the one asked for, and the
batches of the others).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, GroupSamples, Origin, Queries, Samples, SoloModel
from solvers.models.parts.cells import CLOCK_STEP, FREE
from solvers.models.parts.lattice import Lattice, highest_clocks
from solvers.models.parts.seen import (
    floats_of,
    floats_to_plain,
    ints_of,
    joined_queries,
    part,
    queries_from_plain,
    queries_to_plain,
    read,
    samples_from_plain,
    samples_to_plain,
)

STRANGERS_STEPS = 2.0
STRANGER_STEPS = 4.0
"""Distance of a group that was never measured: its member was, beside others; it never was beside any other."""
L2_PER_SHARE = 0.3
DRAM_PER_SHARE = 0.35
"""Utilisation as a fraction, per fraction of SMs, of a model whose utilisation was not measured: the middle of what
convolutional networks show on a V100.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Measured groups. `alone_ms` and `slowdown` are of every member; NaN: not measured."""

    facts: Facts
    groups: Groups
    alone_ms: Floats
    slowdown: Floats
    alone: Samples
    table: Lattice | None
    """Of the members alone: latency, l2, dram (fractions) and power."""
    reach: Lattice | None
    """Where groups of each composition were measured; no columns."""

    @staticmethod
    def made(facts: Facts, groups: Groups, measured: tuple[Floats, Floats], alone: Samples) -> Company:
        """Company of groups with their members' latency alone and slowdown."""
        blank = Company(
            facts=facts,
            groups=groups,
            alone_ms=measured[0],
            slowdown=measured[1],
            alone=alone,
            table=table_of(alone, facts),
            reach=None,
        )
        return blank.with_groups(groups, measured)

    @staticmethod
    def of(facts: Facts, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Company:
        """What these groups tell, given what is known of their members alone."""
        alone_ms = latency_alone_ms(samples.groups.members, solo, table_of(alone, facts))
        return Company.made(facts, samples.groups, (alone_ms, samples.latency_ms / alone_ms), alone)

    def with_groups(self, groups: Groups, measured: tuple[Floats, Floats]) -> Company:
        """Other groups, the same members alone."""
        members = _members(groups, np.flatnonzero(np.isfinite(measured[1])))
        reach = Lattice.of(members, {}, dict.fromkeys(members.gpu_types, 1.0))
        return replace(self, groups=groups, alone_ms=measured[0], slowdown=measured[1], reach=reach)

    def joined(self, samples: GroupSamples, solo: SoloModel) -> Company:
        """More groups after these."""
        alone_ms = latency_alone_ms(samples.groups.members, solo, self.table)
        first = int(self.groups.group.max(initial=-1)) + 1
        groups = Groups(
            members=joined_queries(self.groups.members, samples.groups.members),
            group=np.concatenate([self.groups.group, samples.groups.group + first]),
        )
        slowdown = np.concatenate([self.slowdown, samples.latency_ms / alone_ms])
        return self.with_groups(groups, (np.concatenate([self.alone_ms, alone_ms]), slowdown))

    def take_groups(self, wanted: Iterable[int] | Whole) -> Company:
        """Some groups whole."""
        groups, rows = self.groups.take_groups(wanted)
        return self.with_groups(groups, (self.alone_ms[rows], self.slowdown[rows]))

    def known(self) -> Flags:
        """Members whose slowdown was measured."""
        return np.isfinite(self.slowdown) & (self.groups.count_of_others() > 0)

    def nearness(self, groups: Groups) -> tuple[Floats, Flags, Whole]:
        """Distance, support and origin of every member of other groups."""
        rows = np.arange(len(groups))
        if self.reach is None:
            return np.full(len(groups), np.inf), np.zeros(len(groups), dtype=np.bool_), np.full(len(groups), 2)
        places = self.reach.places(_members(groups, rows))
        seen = set(self.groups.members.keys())
        met = np.zeros(len(groups), dtype=np.bool_)
        for key, part_rows in groups.members.keys().items():
            met[part_rows] = key in seen
        far = np.where(met, STRANGERS_STEPS, STRANGER_STEPS)
        origin = np.where(places.known, int(Origin.MEASURED), int(Origin.SCALED))
        return np.where(places.known, places.distance, far), places.inside, origin

    def to_plain(self) -> Plain:
        """As JSON data."""
        return {
            "members": queries_to_plain(self.groups.members),
            "group": self.groups.group.tolist(),
            "alone_ms": floats_to_plain(self.alone_ms),
            "slowdown": floats_to_plain(self.slowdown),
            "alone": samples_to_plain(self.alone),
        }

    @staticmethod
    def from_plain(plain: Plain, facts: Facts) -> Company:
        """What `to_plain` wrote."""
        members = queries_from_plain(part(plain, "members"))
        groups = Groups(members=members, group=read(plain, "group", ints_of))
        measured = (read(plain, "alone_ms", floats_of), read(plain, "slowdown", floats_of))
        return Company.made(facts, groups, measured, samples_from_plain(part(plain, "alone")))


def table_of(alone: Samples, facts: Facts) -> Lattice | None:
    """Look-up of what was measured of members alone."""
    columns = {
        "latency": (alone.latency_ms, FREE),
        "l2": (alone.l2_util_pct / 100.0, FREE),
        "dram": (alone.dram_util_pct / 100.0, FREE),
        "power": (alone.power_w, FREE),
    }
    return Lattice.of(alone.queries, columns, highest_clocks(alone.queries, facts))


def latency_alone_ms(members: Queries, solo: SoloModel, table: Lattice | None) -> Floats:
    """Latency of every member alone: what was measured of exactly this configuration, else what `solo` believes."""
    believed = solo.predict(members).mean
    if table is None:
        return believed
    places = table.places(members)
    measured = table.column(places, "latency")
    return np.where((places.distance == 0.0) & np.isfinite(measured), measured, believed)


def utilisation(members: Queries, table: Lattice | None) -> tuple[Floats, Floats]:
    """Utilisation of L2 and DRAM by every member alone, as fractions; assumed from the share where never measured."""
    share = members.share_pct / 100.0
    if table is None:
        return L2_PER_SHARE * share, DRAM_PER_SHARE * share
    places = table.places(members)
    l2, dram = table.column(places, "l2"), table.column(places, "dram")
    return np.where(np.isnan(l2), L2_PER_SHARE * share, l2), np.where(np.isnan(dram), DRAM_PER_SHARE * share, dram)


def composition(groups: Groups) -> Whole:
    """A number for who is in every member's group, whatever the order; the same in every run."""
    digests = [hashlib.sha256(name.encode()).digest() for name in groups.members.models]
    # 48 bits each: sums of many stay whole in a float.
    numbers = np.array([int.from_bytes(digest[:6], "big") for digest in digests], dtype=np.float64)
    own = numbers[groups.members.model]
    return (groups.sum_of_others(own) + own).astype(np.int64)


def _members(groups: Groups, rows: Whole) -> Queries:
    """Members as questions of their own: the model is named by itself and the group it is in, and the clock's place is
    taken by the mean batch of the others, such that its doubling is one step.
    """
    members = groups.members
    others = groups.sum_of_others(members.batch) / np.maximum(groups.count_of_others(), 1.0)
    codes = np.stack([members.model, composition(groups)])[:, rows]
    unique, index = np.unique(codes, axis=1, return_inverse=True)
    return Queries(
        models=tuple(f"{members.models[int(model)]}|{code}" for model, code in unique.T),
        gpu_types=members.gpu_types,
        model=index.ravel().astype(np.int64),
        gpu_type=members.gpu_type[rows],
        batch=members.batch[rows],
        share_pct=members.share_pct[rows],
        clock_mhz=(1.0 + CLOCK_STEP) ** np.log2(np.maximum(others[rows], 1.0)),
    )
