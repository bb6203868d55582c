"""What OLTunes' predictor sees of a configuration (Table 3, adapted to what a query holds), and the words it knows.

Model and GPU type are one-hot and get a place when they are first met, so there is no hashing and the vocabulary grows
online; an unknown name has no feature, which leaves the bias and the continuous ones. Batch is one-hot on the powers of
two and share on steps of 5 %; between two of these, both are active in proportion, which is the printed encoding
wherever the paper has a value. Two things are added to the printed table: the load (batch over share, one-hot on half
powers of two), because the work that each SM gets is what a pairwise form cannot compose of batch, share and model; and
continuous features near 1 in size, the logarithms of batch, share, clock, parameters and memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, Queries
from solvers.models.parts.seen import names_of, part, read

BIAS = 0
"""The feature of all rows."""
_BATCH_BINS = 11
_SHARE_BINS = 20
_SHARE_STEP_PCT = 5.0
_LOAD_BINS = 32
_LOAD_BINS_PER_DOUBLING = 2.0
_BATCH_AT = 1
_SHARE_AT = _BATCH_AT + _BATCH_BINS
_LOAD_AT = _SHARE_AT + _SHARE_BINS
_CONTINUOUS_AT = _LOAD_AT + _LOAD_BINS
_CONTINUOUS = 6
_BLOCK = _CONTINUOUS_AT + _CONTINUOUS - 1
"""Places one replica takes beside those of names; place 0 is the bias of all."""

_TYPICAL_PARAMETERS_MILLION = 30.0
_TYPICAL_MEMORY_MIB = 2048.0
_TYPICAL_GPU_MEMORY_MIB = 32768.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRows:
    """Sparse features: the active ones of every row and their values, padded with feature 0 of value 0."""

    index: Whole
    value: Floats

    def __len__(self) -> int:
        return len(self.index)

    def beside(self, other: FeatureRows) -> FeatureRows:
        return FeatureRows(
            index=np.concatenate([self.index, other.index], axis=1),
            value=np.concatenate([self.value, other.value], axis=1),
        )

    def take(self, rows: Whole) -> FeatureRows:
        return FeatureRows(index=self.index[rows], value=self.value[rows])

    def dense(self, width: int) -> Floats:
        """All features of every row as a matrix; features beyond `width` are left out."""
        known = self.index < width
        matrix = np.zeros((len(self), width))
        row = np.broadcast_to(np.arange(len(self))[:, None], self.index.shape)
        np.add.at(matrix, (row[known], self.index[known]), self.value[known])
        return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Names met so far, in the order of meeting, and the highest clock met on each GPU type. `roles` is 1 for replicas
    alone and 2 where neighbours are described, too.
    """

    roles: int
    names: tuple[str, ...] = ()
    clocks_mhz: tuple[tuple[str, float], ...] = ()

    @property
    def width(self) -> int:
        return 1 + self.roles * _BLOCK + len(self.names)

    def places(self) -> dict[str, int]:
        return {name: 1 + self.roles * _BLOCK + position for position, name in enumerate(self.names)}

    def grown(self, queries: Queries) -> Vocabulary:
        """The vocabulary after these configurations were met, each as a replica and as a neighbour."""
        models = [queries.models[int(index)] for index in np.unique(queries.model)]
        gpu_types = [queries.gpu_types[int(index)] for index in np.unique(queries.gpu_type)]
        words = [_word("model", name, role) for name in models for role in range(self.roles)]
        words += [_word("gpu", name, 0) for name in gpu_types]
        names = tuple(dict.fromkeys((*self.names, *words)))
        clocks = dict(self.clocks_mhz)
        for index in np.unique(queries.gpu_type):
            seen = queries.clock_mhz[(queries.gpu_type == index) & np.isfinite(queries.clock_mhz)]
            name = queries.gpu_types[int(index)]
            if len(seen):
                clocks[name] = max(float(seen.max()), clocks.get(name, 0.0))
        return replace(self, names=names, clocks_mhz=tuple(sorted(clocks.items())))

    def dump(self) -> Plain:
        return {"roles": self.roles, "names": list(self.names), "clocks_mhz": dict(self.clocks_mhz)}

    @staticmethod
    def load(plain: Plain) -> Vocabulary:
        return Vocabulary(
            roles=cast("int", part(plain, "roles")),
            names=read(plain, "names", names_of),
            clocks_mhz=tuple(sorted(cast("dict[str, float]", part(plain, "clocks_mhz")).items())),
        )


def _word(kind: str, name: str, role: int) -> str:
    return f"{kind}{role}={name}"


def feature_rows(groups: Groups, vocabulary: Vocabulary, facts: Facts) -> FeatureRows:
    """Features of every member: its own, and those of the others of its group side by side."""
    shape = (len(groups), 1)
    bias = FeatureRows(index=np.full(shape, BIAS, dtype=np.int64), value=np.ones(shape))
    rows = bias.beside(_replica(groups.members, vocabulary, facts, role=0))
    if vocabulary.roles == 1:
        return rows
    others = _replica(groups.members, vocabulary, facts, role=1)
    for neighbour in neighbours(groups.group):
        there = neighbour >= 0
        value = np.where(there[:, None], others.value[neighbour], 0.0)
        index = np.where(value != 0.0, others.index[neighbour], BIAS)
        rows = rows.beside(FeatureRows(index=index, value=value))
    return rows


def neighbours(group: Whole) -> list[Whole]:
    """For k = 1, 2, ...: the row of each member's k-th neighbour, going round within the group; -1 where none is."""
    first = np.searchsorted(group, group, side="left")
    size = np.searchsorted(group, group, side="right") - first
    place = np.arange(len(group)) - first
    largest = int(size.max()) if len(group) else 1
    return [np.where(step < size, first + (place + step) % size, -1) for step in range(1, largest)]


def _replica(queries: Queries, vocabulary: Vocabulary, facts: Facts, role: int) -> FeatureRows:
    """Features of one replica per row, in its role's places."""
    offset = role * _BLOCK
    places = vocabulary.places()

    def named(kind: str, names: tuple[str, ...], which: Whole) -> tuple[Whole, Floats]:
        place = np.array([places.get(_word(kind, name, role), BIAS) for name in names], dtype=np.int64)
        return place[which][:, None], (place != BIAS).astype(np.float64)[which][:, None]

    blocks = [named("model", queries.models, queries.model)]
    if role == 0:
        blocks.append(named("gpu", queries.gpu_types, queries.gpu_type))
    blocks.append(_between(np.log2(queries.batch), _BATCH_BINS, offset + _BATCH_AT))
    blocks.append(_between(queries.share_pct / _SHARE_STEP_PCT - 1.0, _SHARE_BINS, offset + _SHARE_AT))
    load = _LOAD_BINS_PER_DOUBLING * np.log2(100.0 * queries.batch / queries.share_pct)
    blocks.append(_between(load, _LOAD_BINS, offset + _LOAD_AT))
    place = np.arange(_CONTINUOUS, dtype=np.int64) + offset + _CONTINUOUS_AT
    blocks.append((np.broadcast_to(place, (len(queries), _CONTINUOUS)), _continuous(queries, vocabulary, facts)))
    index = np.concatenate([block[0] for block in blocks], axis=1)
    value = np.concatenate([block[1] for block in blocks], axis=1)
    return FeatureRows(index=np.where(value != 0.0, index, BIAS), value=value)


def _between(position: Floats, bins: int, at: int) -> tuple[Whole, Floats]:
    """The bins below and above a position, weighted by nearness; one bin alone where it is met exactly."""
    inside = np.clip(position, 0.0, bins - 1.0)
    below = np.minimum(np.floor(inside), bins - 2.0)
    above = inside - below
    index = at + np.stack([below, below + 1.0], axis=1).astype(np.int64)
    return index, np.stack([1.0 - above, above], axis=1)


def _continuous(queries: Queries, vocabulary: Vocabulary, facts: Facts) -> Floats:
    """Logarithms of batch, share, clock over the highest one, parameters, memory used and memory of the GPU; 0 where
    nothing is known of the name.
    """
    variants = [facts.models.get(name) for name in queries.models]
    devices = [facts.gpu_types.get(name) for name in queries.gpu_types]
    seen_mhz = dict(vocabulary.clocks_mhz)
    nan = float("nan")
    parameters = np.array([nan if item is None else item.parameters_million for item in variants])[queries.model]
    weights_mib = np.array([nan if item is None else item.memory_mib_weights for item in variants])[queries.model]
    input_mib = np.array([nan if item is None else item.memory_mib_per_input for item in variants])[queries.model]
    device_mib = np.array([nan if item is None else float(item.memory_mib) for item in devices])[queries.gpu_type]
    highest_mhz = np.array(
        [
            seen_mhz.get(name, nan) if item is None else float(item.clock_mhz_sm_max)
            for name, item in zip(queries.gpu_types, devices, strict=True)
        ]
    )[queries.gpu_type]
    columns = (
        np.log2(queries.batch) / 5.0,
        np.log(queries.share_pct / 100.0) / np.log(20.0),
        np.log(queries.clock_mhz / highest_mhz),
        np.log(parameters / _TYPICAL_PARAMETERS_MILLION) / 3.0,
        np.log((weights_mib + queries.batch * input_mib) / _TYPICAL_MEMORY_MIB) / 3.0,
        np.log(device_mib / _TYPICAL_GPU_MEMORY_MIB),
    )
    return np.asarray(np.nan_to_num(np.stack(columns, axis=1), nan=0.0, posinf=0.0, neginf=0.0), dtype=np.float64)
