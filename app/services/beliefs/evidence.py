"""What beliefs are made from: everything that was measured and stored, and what documents and the library say, as the
columns that performance models learn from.

Owns which points count (those that somebody ran) and what one body of evidence has that another lacks. Documents win
over the library. It refuses to learn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from sqlalchemy.orm import Session

from app import kinds, library
from app.kinds import Kind
from app.store import documents, pair_points, profiles
from solvers.domain.arrays import Floats
from solvers.domain.codec import from_plain
from solvers.domain.device import GpuType
from solvers.domain.profile import PairPoint, ProfileOrigin, ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Groups, GroupSamples, Queries, Samples
from solvers.models.library import name_key
from solvers.models.parts.seen import MEASURED, joined, joined_queries

_SEEN = frozenset({ProfileOrigin.MEASURED, ProfileOrigin.PUBLIC, ProfileOrigin.SIMULATED})
"""Points of these origins were run by somebody; predictions are not learned from."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a suite is made from."""

    facts: Facts
    samples: Samples
    groups: GroupSamples

    def __len__(self) -> int:
        """Rows of measurements."""
        return len(self.samples) + len(self.groups.groups) // 2

    def nothing(self) -> Evidence:
        """The same facts without any measurement."""
        return replace(self, samples=self.samples.take(np.zeros(0, dtype=np.intp)), groups=self.groups.take_groups(()))

    def points_of(self, model: str, gpu_type: str) -> int:
        """How many points of a model alone on a GPU type there are."""
        queries = self.samples.queries
        if model not in queries.models or gpu_type not in queries.gpu_types:
            return 0
        rows = queries.model == queries.models.index(model)
        return int(np.count_nonzero(rows & (queries.gpu_type == queries.gpu_types.index(gpu_type))))

    def beyond(self, known: Evidence) -> Evidence:
        """The measurements that `known` lacks, changed ones included."""
        old, old_pairs = set(_rows(known.samples)), set(_pair_rows(known.groups))
        new = np.array([row not in old for row in _rows(self.samples)], dtype=np.bool_)
        pairs = [number for number, row in enumerate(_pair_rows(self.groups)) if row not in old_pairs]
        return replace(self, samples=self.samples.take(new), groups=self.groups.take_groups(pairs))

    def about(self, keys: Collection[tuple[str, str]]) -> Evidence:
        """The measurements of some models on some GPU types, and of pairs that one of them is part of."""
        members = self.groups.groups.members
        alone = np.array([key in keys for key in zip(*_names(self.samples.queries), strict=True)], dtype=np.bool_)
        beside = np.array([key in keys for key in zip(*_names(members), strict=True)], dtype=np.bool_)
        pairs = np.unique(self.groups.groups.group[beside])
        return replace(self, samples=self.samples.take(alone), groups=self.groups.take_groups(pairs))

    def joined(self, other: Evidence) -> Evidence:
        """These measurements and the others."""
        first, second = self.groups.groups, other.groups.groups
        later = second.group + (int(first.group[-1]) + 1 if len(first) else 0)
        groups = Groups(
            members=joined_queries(first.members, second.members), group=np.concatenate([first.group, later])
        )
        return replace(
            self,
            samples=joined(self.samples, other.samples),
            groups=GroupSamples(
                groups=groups, latency_ms=np.concatenate([self.groups.latency_ms, other.groups.latency_ms])
            ),
        )

    def teaches_as(self, known: Evidence) -> bool:
        """Whether a suite that learned `known` has nothing to learn here: the same measurements, and what documents
        say has changed of models only that nobody measured.
        """
        if len(self) != len(known) or self.facts.gpu_types != known.facts.gpu_types or len(self.beyond(known)):
            return False
        models, before = self.facts.models, known.facts.models
        changed = {name_key(name) for name in {*models, *before} if models.get(name) != before.get(name)}
        measured = {*self.samples.queries.models, *self.groups.groups.members.models}
        return changed.isdisjoint(name_key(name) for name in measured)


def read_evidence(session: Session) -> Evidence:
    """Everything that is stored and built in."""
    points = [point for profile in profiles.all_profiles(session) for point in profile.points]
    return Evidence(
        facts=read_facts(session),
        samples=samples_of([point for point in points if not point.neighbours and point.origin in _SEEN]),
        groups=groups_of([pair for pair in pair_points.all_pairs(session) if pair.origin in _SEEN]),
    )


def read_facts(session: Session) -> Facts:
    """The built-in facts with the declared documents over them."""
    built_in = library.facts()
    gpu_types = _declared(session, kinds.GPU_TYPE, GpuType)
    models = _declared(session, kinds.MODEL, ModelVariant)
    return replace(
        built_in,
        gpu_types={**built_in.gpu_types, **{item.name: item for item in gpu_types}},
        models={**built_in.models, **{item.name: item for item in models}},
    )


def samples_of(points: Sequence[ProfilePoint]) -> Samples:
    """Points of models alone as samples."""
    queries = Queries.of(
        [point.model for point in points],
        [point.gpu_type for point in points],
        [point.batch for point in points],
        [point.share_pct_sm for point in points],
        [point.clock_mhz_sm for point in points],
    )
    return Samples.of(
        queries,
        [point.latency_ms_mean for point in points],
        latency_ms_p99=_column(point.latency_ms_p99 for point in points),
        throughput_rps=_column(point.throughput_rps for point in points),
        power_w=_column(point.power_w for point in points),
        memory_mib=_column(point.memory_mib for point in points),
        l2_util_pct=_column(point.l2_util_pct for point in points),
        dram_util_pct=_column(point.dram_util_pct for point in points),
    )


def groups_of(pairs: Sequence[PairPoint]) -> GroupSamples:
    """Pairs as groups of two."""
    gpu_types = [pair.gpu_type for pair in pairs]
    first = Queries.of(
        [pair.model_a for pair in pairs],
        gpu_types,
        [pair.batch_a for pair in pairs],
        [pair.share_pct_a for pair in pairs],
    )
    second = Queries.of(
        [pair.model_b for pair in pairs],
        gpu_types,
        [pair.batch_b for pair in pairs],
        [pair.share_pct_b for pair in pairs],
    )
    latency_ms = _column(latency for pair in pairs for latency in (pair.latency_ms_a, pair.latency_ms_b))
    return GroupSamples(groups=Groups.pairs(first, second), latency_ms=latency_ms)


def _column(cells: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([np.nan if cell is None else cell for cell in cells], dtype=np.float64)


def _rows(samples: Samples) -> list[tuple[object, ...]]:
    queries = samples.queries
    return list(
        zip(
            *_names(queries),
            *_cells(queries.batch, queries.share_pct, queries.clock_mhz),
            *_cells(*(getattr(samples, name) for name in MEASURED)),
            strict=True,
        )
    )


def _pair_rows(groups: GroupSamples) -> list[tuple[object, ...]]:
    members = groups.groups.members
    columns = (*_names(members), *_cells(members.batch, members.share_pct, groups.latency_ms))
    rows = list(zip(*columns, strict=True))
    return list(zip(rows[0::2], rows[1::2], strict=True))


def _names(queries: Queries) -> tuple[list[str], list[str]]:
    return (
        [queries.models[index] for index in queries.model.tolist()],
        [queries.gpu_types[index] for index in queries.gpu_type.tolist()],
    )


def _cells(*columns: Floats) -> list[list[float | None]]:
    """None for NaN, which would differ from itself."""
    return [[None if cell != cell else cell for cell in column.tolist()] for column in columns]  # noqa: PLR0124


def _declared(session: Session, kind: Kind, cls: type[T]) -> list[T]:
    return [from_plain(cls, stored.spec) for stored in documents.all_specs(session, kind)]
