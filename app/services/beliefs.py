"""What is believed of every model on every GPU type: the built-in library, the declared documents and all stored
measurements, as one fitted suite.

Owns when the suite is made anew (something it learns from was stored, changed or deleted) and that making it never
happens inside a transaction nor twice at once. Documents win over the library. It refuses to interpret: what follows
from measurements is the models'.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from sqlalchemy.orm import Session

from app import library
from app.store import documents, pair_points, profiles
from app.store.documents import Kind
from app.store.engine import Database
from solvers.domain.codec import from_plain
from solvers.domain.device import GpuType
from solvers.domain.profile import PairPoint, ProfileOrigin, ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Groups, GroupSamples, Queries, Samples
from solvers.models.suite import Suite

SUITE = "headroom"
_SEED = 0
_SEEN = frozenset({ProfileOrigin.MEASURED, ProfileOrigin.PUBLIC, ProfileOrigin.SIMULATED})
"""Points of these origins were run by somebody; predictions are not learned from."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a suite is made from."""

    facts: Facts
    samples: Samples
    groups: GroupSamples


class Beliefs:
    """The present belief. Safe to ask from several threads: the first one makes it, the others wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._state: object = None
        self._suite: Suite | None = None

    def current(self) -> Suite:
        """The suite that has learned everything that is stored now."""
        with self._lock:
            with self._database.reading() as session:
                state = _state(session)
                if self._suite is not None and state == self._state:
                    return self._suite
                evidence = read_evidence(session)
            suite = Suite.fresh(SUITE, evidence.facts, _SEED).fit(evidence.samples, evidence.groups)
            self._suite, self._state = suite, state
            return suite


def _state(session: Session) -> object:
    return (
        profiles.state(session),
        pair_points.state(session),
        documents.state(session, Kind.GPU_TYPE),
        documents.state(session, Kind.MODEL),
    )


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
    gpu_types = _declared(session, Kind.GPU_TYPE, GpuType)
    models = _declared(session, Kind.MODEL, ModelVariant)
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


def _declared(session: Session, kind: Kind, cls: type[T]) -> list[T]:
    return [from_plain(cls, stored.spec) for stored in documents.all_specs(session, kind)]
