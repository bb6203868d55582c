"""What is believed of every model on every GPU type: the built-in library, the declared documents, all stored
measurements and, on top, what outcomes taught, as one fitted suite.

Owns when the suite is made anew (something it learns from was stored, changed or deleted) and that making it never
happens inside a transaction nor twice at once; new outcomes are taught to what was fitted before. Documents win over
the library. It refuses to interpret: what follows from measurements is the models'.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from sqlalchemy.orm import Session

from app import library
from app.store import documents, outcomes, pair_points, profiles
from app.store.documents import Kind
from app.store.engine import Database
from solvers.domain.codec import from_plain
from solvers.domain.device import GpuType
from solvers.domain.profile import PairPoint, ProfileOrigin, ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Groups, GroupSamples, Origin, Queries, Samples
from solvers.models.library import name_key
from solvers.models.online.forecasts import taught
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """A fitted suite with what it was made from."""

    suite: Suite
    evidence: Evidence

    def points_of(self, model: str, gpu_type: str) -> int:
        """How many stored points of a model alone on a GPU type it has learned."""
        queries = self.evidence.samples.queries
        if model not in queries.models or gpu_type not in queries.gpu_types:
            return 0
        rows = queries.model == queries.models.index(model)
        return int(np.count_nonzero(rows & (queries.gpu_type == queries.gpu_types.index(gpu_type))))


class Beliefs:
    """The present belief. Safe to ask from several threads: the first one makes it, the others wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._state: object = None
        self._fitted: Belief | None = None
        self._mark: str | None = None
        self._taught: Belief | None = None

    def current(self) -> Suite:
        """The suite that has learned everything that is stored now."""
        return self.belief().suite

    def belief(self) -> Belief:
        """The suite and what it was made from."""
        with self._lock:
            with self._database.reading() as session:
                state, mark = _state(session), outcomes.belief_mark(session)
                fitted = self._fitted if state == self._state else None
                if fitted is not None and self._taught is not None and mark == self._mark:
                    return self._taught
                evidence = fitted.evidence if fitted is not None else read_evidence(session)
                points = outcomes.all_points(session)
            if fitted is None:
                suite = Suite.fresh(SUITE, evidence.facts, _SEED).fit(evidence.samples, evidence.groups)
                fitted = Belief(suite=suite, evidence=evidence)
            self._fitted, self._state = fitted, state
            self._taught, self._mark = replace(fitted, suite=taught(fitted.suite, points)), mark
            return self._taught


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


def source_of(belief: Belief, model: str, gpu_type: str, origin: Origin) -> str:
    """Where what is believed of a model on a GPU type comes from, in words."""
    library = belief.evidence.facts.library
    entries = library.entries if library is not None else ()
    if origin is Origin.MEASURED:
        return f"fitted to {belief.points_of(model, gpu_type)} stored points of {model} on {gpu_type}"
    if origin is Origin.LIBRARY:
        entry = library.entry(model, gpu_type) if library is not None else None
        if entry is None:
            return "built-in library"
        return f"built-in library: {entry.source} (fit error {entry.error_pct_mean:.1f} %)"
    queries = belief.evidence.samples.queries
    measured = {name for name in queries.gpu_types if belief.points_of(model, name)}
    key = name_key(model)
    elsewhere = sorted(measured | {entry.gpu_type for entry in entries if name_key(entry.model) == key})
    if elsewhere:
        return f"scaled from {model} on {', '.join(elsewhere)}"
    if model in belief.evidence.facts.models:
        return f"scaled from networks like {model} by its size and the specification of {gpu_type}"
    return f"what networks usually take on {gpu_type}; nothing is known of {model}"


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
