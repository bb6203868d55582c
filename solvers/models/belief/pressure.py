"""What replicas that share a device do to each other, as numbers that do not ask which they are.

The load of every member of a group (how much of its time is host work, how many inputs it moves, how it uses L2 and
DRAM, its batch and share) gives the features by which one neighbour tells on the other. How much each weighs is learned
in `interference`. A scene lays groups out for that: loads of members and ordered pairs of neighbours, walked kind by
kind, a bounded number at once. Encounters are the configurations of every ordered pair that was measured, rounded to
quarter steps, so that repeated outcomes do not pile up; they tell how far a question is from there.

Units: shares and utilisations as fractions, batch as log2(batch) / 5, `rate` in tens of inputs per ms over a PCIe bus
of 12 GB/s, `host` as part of the latency that the model takes for a single input on the whole device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import Facts, Groups, Queries, SoloModel
from solvers.models.belief.blocks import Blocks
from solvers.models.parts.disturbed import DRAM_PER_SHARE, L2_PER_SHARE, STRANGER_STEPS, STRANGERS_STEPS
from solvers.models.parts.lattice import Lattice, Places

_PCIE_GB_PER_S = 12.0
_HOST_UNKNOWN, _RATE_UNKNOWN = 0.3, 0.05
HOST_MAX, _RATE_MAX, _DOUBT_MAX = 1.2, 1.0, 0.3
OVERSOLD_COST = 0.9
"""What a device's SMs promised once more than there are cost who waits for nothing else."""
# Features count from the middle of what is common, so that the constants mean an ordinary pair.
_MIDDLE = {"host": 0.3, "rate": 0.1, "l2": 0.15, "dram": 0.2, "batch": 0.6, "share": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads(Parallel):
    """One row per member. `alone_ms` is its latency alone, `doubt` the relative standard deviation of that (0 where it
    was measured).
    """

    alone_ms: Floats
    doubt: Floats
    host: Floats
    rate: Floats
    l2: Floats
    dram: Floats
    batch: Floats
    share: Floats

    @staticmethod
    def of(members: Queries, solo: SoloModel, table: Lattice | None, facts: Facts) -> Loads:
        """Loads of replicas as `solo` and what was measured alone tell them."""
        alone = _Alone(members, solo, table)
        bandwidth = np.array(
            [
                facts.gpu_types[name].pcie_bandwidth_gb_per_s if name in facts.gpu_types else _PCIE_GB_PER_S
                for name in members.gpu_types
            ]
        )
        host = alone.single_ms / alone.latency_ms
        rate = members.batch / alone.latency_ms / 10.0 * (_PCIE_GB_PER_S / bandwidth[members.gpu_type])
        share = members.share_pct / 100.0
        return Loads(
            alone_ms=alone.latency_ms,
            doubt=alone.doubt,
            host=np.clip(np.where(np.isfinite(host), host, _HOST_UNKNOWN), 0.0, HOST_MAX),
            rate=np.clip(np.where(np.isfinite(rate), rate, _RATE_UNKNOWN), 0.0, _RATE_MAX),
            l2=np.clip(np.where(np.isnan(alone.l2), L2_PER_SHARE * share, alone.l2), 0.0, 1.0),
            dram=np.clip(np.where(np.isnan(alone.dram), DRAM_PER_SHARE * share, alone.dram), 0.0, 1.0),
            batch=np.log2(np.maximum(members.batch, 1.0)) / 5.0,
            share=share,
        )

    def centred(self, name: str) -> Floats:
        """A column, counted from the middle of what is common."""
        values: Floats = getattr(self, name)
        return values - _MIDDLE[name]


def measured_ms(table: Lattice, places: Places) -> Floats:
    """Latency alone where exactly this was measured, else NaN."""
    return np.where(places.distance == 0.0, table.column(places, "latency"), np.nan)


class _Alone:
    """Of every member: latency alone as `Loads` has it, latency of a single input on the whole device, and measured use
    of L2 and DRAM (NaN: never measured). One question to `solo` and one to the table: asking is what costs.
    """

    def __init__(self, members: Queries, solo: SoloModel, table: Lattice | None) -> None:
        keys = members.keys()
        single = Queries.of([model for model, _ in keys], [gpu_type for _, gpu_type in keys], 1.0, 100.0)
        asked = members.joined(single)
        believed = solo.predict(asked)
        latency_ms, doubt = believed.mean, np.clip(believed.std / believed.mean, 0.0, _DOUBT_MAX)
        count = len(members)
        self.l2 = self.dram = np.full(count, np.nan)
        if table is not None:
            places = table.places(asked)
            measured = measured_ms(table, places)
            exact = np.isfinite(measured)
            latency_ms, doubt = np.where(exact, measured, latency_ms), np.where(exact, 0.0, doubt)
            self.l2, self.dram = table.column(places, "l2")[:count], table.column(places, "dram")[:count]
        self.single_ms = np.full(count, np.nan)
        for rows, value in zip(keys.values(), latency_ms[count:], strict=True):
            self.single_ms[rows] = value
        self.latency_ms, self.doubt = latency_ms[:count], doubt[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Ordered pairs of neighbours: rows of the members that suffer and that press."""

    own: Whole
    other: Whole

    @staticmethod
    def of(groups: Groups) -> Edges:
        """Every ordered pair within every group."""
        if not len(groups):
            return Edges(own=np.zeros(0, dtype=np.int64), other=np.zeros(0, dtype=np.int64))
        starts = np.flatnonzero(np.diff(groups.group, prepend=groups.group[0] - 1))
        sizes = np.diff(starts, append=len(groups))
        own, other = [], []
        for size in np.unique(sizes).tolist():
            rows = starts[sizes == size][:, None] + np.arange(size)
            first, second = np.nonzero(~np.eye(size, dtype=np.bool_))
            own.append(rows[:, first].ravel())
            other.append(rows[:, second].ravel())
        return Edges(own=np.concatenate(own).astype(np.int64), other=np.concatenate(other).astype(np.int64))


def oversold(groups: Groups, edges: Edges, share: Floats) -> Floats:
    """Of every edge: SMs promised more than once in its group (1 = the whole device), as far as its other member's
    share accounts for them. Adding a member raises it for all.
    """
    others = groups.sum_of_others(share)
    beyond = np.maximum(0.0, others + share - 1.0)
    return np.asarray(beyond[edges.own] * share[edges.other] / np.maximum(others[edges.own], 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Matrices over edges, one per kind of weights: what holds for all, for the one that suffers, for the one that
    presses, for these two together, and for both of them alike.
    """

    everybody: Floats
    suffers: Floats
    presses: Floats
    together: Floats
    mutual: Floats

    @staticmethod
    def of(own: Loads, other: Loads, beyond: Floats) -> Features:
        """Features of edges, given the loads of both ends and what is oversold."""
        one = np.ones(len(beyond))
        host, rate = own.centred("host"), own.centred("rate")
        batch, share = own.centred("batch"), own.centred("share")
        their_batch, their_share = other.centred("batch"), other.centred("share")
        pressures = [own.centred("l2"), other.centred("l2"), own.centred("dram"), other.centred("dram")]
        plain = [batch, their_batch, share, their_share]
        bends = [batch * share, their_batch * their_share, batch**2, their_batch**2, share**2, their_share**2]
        crossed = [batch * share, their_batch * share, batch * their_batch]
        return Features(
            everybody=np.stack(
                [one, *pressures, host, rate, other.centred("rate"), beyond, beyond * own.host, *plain, *bends], axis=1
            ),
            suffers=np.stack(
                [one, own.host, own.rate, beyond, batch, share, batch * share, batch**2, share**2], axis=1
            ),
            presses=np.stack(
                [one, their_batch, their_share, their_batch * their_share, their_batch**2, their_share**2], axis=1
            ),
            together=np.stack([one, own.host, own.rate, beyond, batch, their_batch, share, *crossed], axis=1),
            mutual=np.stack([own.host, own.rate], axis=1),
        )

    def matrix(self) -> Floats:
        """All columns side by side, in the order of `WIDTHS`."""
        return np.concatenate([self.everybody, self.suffers, self.presses, self.together, self.mutual], axis=1)


def _column(counts: Sequence[int], values: Sequence[float]) -> Floats:
    return np.repeat(np.array(values, dtype=np.float64), counts)


# Slowdown that an ordinary neighbour adds: 9 % is the middle of published pairs of networks on a V100 and of the
# published linear model of gpulet (2080 Ti), which also tells the sign and size of the pressures' weights. What is
# oversold costs 0.9 of it, less where the host is what the victim waits for: fitted to one to five equal processes of
# eleven networks on A100 slices (ParvaGPU, MIT licence).
PRIOR_MEAN = np.concatenate(
    [
        np.array([0.09, 0.1, 0.2, 0.05, 0.05, 0.2, 0.0, 0.0, OVERSOLD_COST, -0.55]),
        _column((10, 9, 6, 12), (0.0, 0.0, 0.0, 0.0)),
    ]
)
PRIOR_STD = np.concatenate(
    [
        _column((1, 4, 2, 1, 1, 1, 10), (0.05, 0.15, 0.15, 0.02, 0.2, 0.3, 0.05)),
        _column((1, 2, 1, 5), (0.01, 0.03, 0.2, 0.01)),
        _column((1, 5), (0.005, 0.015)),
        _column((1, 2, 1, 6), (0.015, 0.03, 0.2, 0.01)),
        _column((2,), (0.12,)),
    ]
)
"""Of the weights, in the order of `Features.matrix`. Widths of what depends on the pair are those by which pairs of
networks differ beyond what their pressures explain.
"""
WIDTHS = (20, 9, 6, 10, 2)
"""Columns for all, the one that suffers, the one that presses, both together, both alike."""

_KINDS = ("everybody", "suffers", "presses", "together", "mutual")
_ENDS = np.cumsum(WIDTHS)
PARTS = tuple(slice(int(end) - width, int(end)) for end, width in zip(_ENDS, WIDTHS, strict=True))
OWN_STD = PRIOR_STD.copy()
"""The same where each model suffers and presses in a way of its own, and waiting for the host tells less of it."""
OWN_STD[PARTS[1]] = _column((1, 2, 1, 5), (0.03, 0.03, 0.2, 0.1))
OWN_STD[PARTS[2]] = _column((1, 5), (0.03, 0.1))
OWN_STD[PARTS[4]] = 0.04

Departures = tuple[float, float, float]
"""How much wider than `PRIOR_STD` the weights of single models are, and those of pairs; how far they go towards
`OWN_STD`, from 0 to 1.
"""
USUAL: Departures = (1.0, 1.0, 0.0)


def _prior(departures: Departures, name: str) -> tuple[Floats, Floats]:
    kind = _KINDS.index(name.partition(":")[0])
    models, pairs, own = departures
    wider = (1.0, models, models, pairs, pairs)[kind]
    usual, owned = PRIOR_STD[PARTS[kind]], OWN_STD[PARTS[kind]]
    return PRIOR_MEAN[PARTS[kind]], wider * usual ** (1.0 - own) * owned**own


def _of_pair(name: str) -> bool:
    return name.startswith(("together:", "mutual:"))


def weights(departures: Departures, noise: float) -> Blocks:
    """Of everything, nothing learned."""
    return Blocks(prior=partial(_prior, departures), apart=_of_pair, noise=noise)


def names_of_weights(kind: tuple[str, str, str]) -> tuple[str, str, str, str, str]:
    """Blocks that tell on an edge, in the order of `Features.matrix`."""
    gpu_type, own, other = kind
    first, second = sorted((own, other))
    return (
        "everybody",
        f"suffers:{gpu_type}|{own}",
        f"presses:{gpu_type}|{other}",
        f"together:{gpu_type}|{own}|{other}",
        f"mutual:{gpu_type}|{first}|{second}",
    )


# --- Where neighbours were measured together


Kind = tuple[str, str, str]
"""GPU type, the model that suffers, the model beside it."""
_SHARE_STEP = 0.1
_BATCH_STEP = 0.2
"""A doubling, on the scale of `Loads.batch`."""
_ROUND = 4.0


def places(own_batch: Floats, other_batch: Floats, own_share: Floats, other_share: Floats) -> Floats:
    """Rows of coordinates in usual grid steps: doublings of batch, 10 points of share."""
    return np.stack(
        [own_batch / _BATCH_STEP, other_batch / _BATCH_STEP, own_share / _SHARE_STEP, other_share / _SHARE_STEP], axis=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounters:
    """A value; `met` holds (GPU type, model) of models that were measured beside another."""

    measured: Mapping[Kind, Floats] = field(default_factory=dict)
    met: frozenset[tuple[str, str]] = frozenset()

    def joined(self, found: Iterable[tuple[Kind, Floats]]) -> Encounters:
        """With more measured places."""
        measured, met = dict(self.measured), set(self.met)
        for kind, rows in found:
            before = measured.get(kind)
            # Quarter steps hold the common grids exactly enough: what is asked is rounded nowhere.
            rounded = np.round(rows * _ROUND) / _ROUND
            if before is None:
                measured[kind] = np.unique(rounded, axis=0)
            else:
                # A few outcomes at a time: sorting everything again would take longer than learning from them.
                new = ~(rounded[:, None] == before).all(axis=2).any(axis=1)
                measured[kind] = np.concatenate([before, np.unique(rounded[new], axis=0)]) if new.any() else before
            met.update([(kind[0], kind[1]), (kind[0], kind[2])])
        return Encounters(measured=measured, met=frozenset(met))

    def knows(self, kind: Kind) -> bool:
        """Whether both models were measured on this GPU type beside another."""
        return (kind[0], kind[1]) in self.met and (kind[0], kind[2]) in self.met

    def nearness(self, kind: Kind, rows: Floats) -> tuple[Floats, Flags]:
        """Steps to the nearest measured place of this pair, and whether rows lie within what was measured of it."""
        if kind not in self.measured:
            known = sum((kind[0], model) in self.met for model in kind[1:])
            far = (np.inf, STRANGER_STEPS, STRANGERS_STEPS)[known]
            return np.full(len(rows), far), np.zeros(len(rows), dtype=np.bool_)
        from scipy.spatial import cKDTree

        measured = self.measured[kind]
        steps = np.asarray(cKDTree(measured).query(rows)[0], dtype=np.float64)
        slack = 0.5 / _ROUND
        inside = np.all((rows >= measured.min(axis=0) - slack) & (rows <= measured.max(axis=0) + slack), axis=1)
        # What rounding of measured places can make is no distance.
        return np.where(steps <= 2.0 * slack, 0.0, steps), inside

    def to_plain(self) -> Plain:
        return [[*kind, np.asarray(rows).tolist()] for kind, rows in sorted(self.measured.items())]

    @staticmethod
    def from_plain(plain: Plain) -> Encounters:
        """What `to_plain` wrote. Raises InputError for anything else."""
        if not isinstance(plain, list):
            raise InputError("the encounters of this fitted model are no list")
        found: list[tuple[Kind, Floats]] = []
        for item in plain:
            if not isinstance(item, list) or len(item) != 4:
                raise InputError("an encounter of this fitted model cannot be read")
            rows = np.asarray(item[3], dtype=np.float64).reshape(-1, 4)
            found.append(((str(item[0]), str(item[1]), str(item[2])), rows))
        return Encounters().joined(found)


# --- Groups laid out


Rows = NDArray[np.intp]
CHUNK_EDGES = 16384
REACHED = ("batch", "share", "host")
"""Columns of loads beyond what was learned of which straight lines stay level: batch tells of host work, too."""
Reach = tuple[tuple[float, float], ...]
"""Lowest and highest of each of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Groups with the loads of their members and the ordered pairs in them."""

    groups: Groups
    loads: Loads
    edges: Edges
    beyond: Floats

    @staticmethod
    def of(groups: Groups, loads: Loads) -> Scene:
        edges = Edges.of(groups)
        return Scene(groups=groups, loads=loads, edges=edges, beyond=oversold(groups, edges, loads.share))

    def kinds(self, wanted: Flags | None = None) -> Iterator[tuple[Kind, Rows]]:
        """Edges by GPU type and models, a bounded number at once; only those of the members wanted."""
        members, edges = self.groups.members, self.edges
        count = max(1, len(members.models))
        code = (members.gpu_type[edges.own] * count + members.model[edges.own]) * count + members.model[edges.other]
        order = np.argsort(code, kind="stable")
        if wanted is not None:
            order = order[wanted[edges.own[order]]]
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            own, other = int(edges.own[rows[0]]), int(edges.other[rows[0]])
            gpu_type = members.gpu_types[int(members.gpu_type[own])]
            kind = (gpu_type, members.models[int(members.model[own])], members.models[int(members.model[other])])
            for first in range(0, len(rows), CHUNK_EDGES):
                yield kind, rows[first : first + CHUNK_EDGES]

    def features(self, rows: Rows, reach: Reach) -> Floats:
        """Feature matrix of some edges. Loads stay within `reach`."""
        ends = [self.loads.take(end[rows]) for end in (self.edges.own, self.edges.other)]
        bounds = [*zip(REACHED, reach, strict=True)]
        own, other = (
            replace(end, **{name: np.clip(getattr(end, name), low, high) for name, (low, high) in bounds})
            for end in ends
        )
        return Features.of(own, other, self.beyond[rows]).matrix()

    def places(self, rows: Rows) -> Floats:
        """Where edges lie among encounters."""
        loads, own, other = self.loads, self.edges.own[rows], self.edges.other[rows]
        return places(loads.batch[own], loads.batch[other], loads.share[own], loads.share[other])

    def scale(self) -> Floats:
        """How much larger than beside ordinary neighbours slowdowns are, and so their noise."""
        return 1.0 + OVERSOLD_COST * self.over_edges(self.beyond)

    def over_edges(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.edges.own, weights=values, minlength=len(self.groups)), dtype=np.float64)
