"""What is believed of every model on every GPU type: the built-in library, the declared documents, all stored
measurements and, on top, what outcomes taught, as one fitted suite.

Evidence is what a suite is made from: points that somebody ran, and facts, where documents win over the library. The
suite is made anew when something it learns from was stored, changed or deleted; never inside a transaction nor twice at
once. Little is learned at once, before the next answer. Much is learned in the background, by one process for all, and
stored: the others, and whoever starts later, load it. Until that is done, what was learned before answers, or what is
built in, with what is new (or what is new of the models in question) taken in as far as that is quick. New outcomes are
taught to what was fitted before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
from sqlalchemy import Row
from sqlalchemy.orm import Session

from app import kinds, library
from app.logs import EventLog
from app.services.profiles.profiles import groups_of, samples_of
from app.store import documents, outcomes, profiles
from app.store.engine import Database
from app.store.sql import database_now, named
from solvers.domain.arrays import Floats
from solvers.domain.codec import digest
from solvers.domain.device import GpuType
from solvers.domain.ids import Digest
from solvers.domain.profile import ProfileOrigin
from solvers.domain.workload import ModelVariant
from solvers.errors import HeadroomError, TransientError
from solvers.models.base import MEASURED, Facts, GroupSamples, Origin, Quantity, Queries, Samples
from solvers.models.library import name_key
from solvers.models.online.forecasts import taught
from solvers.models.suite import Suite

_SEEN = frozenset({ProfileOrigin.MEASURED, ProfileOrigin.PUBLIC, ProfileOrigin.SIMULATED})
"""Points of these origins were run by somebody; predictions are not learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    facts: Facts
    samples: Samples
    groups: GroupSamples
    as_of: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __len__(self) -> int:
        return len(self.samples) + len(self.groups.groups) // 2

    def nothing(self) -> Evidence:
        """The same facts without any measurement."""
        return replace(self, samples=self.samples.take(np.zeros(0, dtype=np.intp)), groups=self.groups.take_groups(()))

    def points_of(self, model: str, gpu_type: str) -> int:
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
        return replace(self, samples=self.samples.joined(other.samples), groups=self.groups.joined(other.groups))

    def digest(self) -> Digest:
        """Of all that a fit depends on: measurements in any order, GPU types, the library, and what documents say of
        models that somebody measured.
        """
        facts = self.facts
        measured = {name_key(name) for name in (*self.samples.queries.models, *self.groups.groups.members.models)}
        types = [gpu_type for _, gpu_type in sorted(facts.gpu_types.items())]
        models = [model for name, model in sorted(facts.models.items()) if name_key(name) in measured]
        rows = [sorted(map(repr, found)) for found in (_rows(self.samples), _pair_rows(self.groups))]
        return digest([types, models, facts.library, *rows])


def read_evidence(session: Session, until: datetime = profiles.EVER) -> Evidence:
    """What has stood since `until`."""
    points = [point for profile in profiles.all_profiles(session, until) for point in profile.points]
    return Evidence(
        facts=read_facts(session),
        samples=samples_of([point for point in points if not point.neighbours and point.origin in _SEEN]),
        groups=groups_of([pair for pair in profiles.all_pairs(session, until) if pair.origin in _SEEN]),
        as_of=min(until, database_now(session)),
    )


def read_facts(session: Session) -> Facts:
    built_in = library.facts()
    gpu_types = documents.values(session, kinds.GPU_TYPE, GpuType)
    models = documents.values(session, kinds.MODEL, ModelVariant)
    return replace(
        built_in,
        gpu_types={**built_in.gpu_types, **{item.name: item for item in gpu_types}},
        models={**built_in.models, **{item.name: item for item in models}},
    )


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


SUITE = "headroom"
_SEED = 0
AT_ONCE_MAX = 64
"""So many rows of measurements are learned while whoever asks waits: a second or two."""
TAKEN_IN_MAX = 500
"""So many new rows are taken in at once by a suite that has learned the others."""
_log = EventLog("headroom.beliefs")


class Progress(StrEnum):
    """How far a belief has come with what is stored."""

    LEARNED = "learned"
    LEARNING = "learning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """A fitted suite with what it was made from, and the digest of that. Unless it has LEARNED, more is stored than it
    knows; `pending` is what it knows nothing of.
    """

    suite: Suite
    evidence: Evidence
    fitted_to: Digest | None = None
    progress: Progress = Progress.LEARNED
    pending: Evidence | None = None

    def about(self, keys: Collection[tuple[str, str]]) -> Belief:
        """The belief with what is pending of these models on these GPU types taken in, as far as that is quick."""
        new = self.pending.about(keys) if self.pending is not None else None
        if new is None or not 0 < len(new) <= TAKEN_IN_MAX:
            return self
        found = _tried(lambda _: _taken_in(self.suite, new), self.evidence.joined(new))
        return replace(found, progress=self.progress) if found is not None else self

    def declared(self, models: Iterable[ModelVariant], gpu_types: Iterable[GpuType]) -> Belief:
        """The same knowledge where these documents stand, which need not be stored; itself where they say no more."""
        facts = self.evidence.facts
        known, types = dict(facts.models), dict(facts.gpu_types)
        known.update((item.name, item) for item in models)
        for item in gpu_types:
            before = types.get(item.name)
            if before is None or replace(item, prices=before.prices) != before:
                types[item.name] = item
        if (known, types) == (facts.models, facts.gpu_types):
            return self
        return _moved(self, replace(self.evidence, facts=replace(facts, models=known, gpu_types=types)))


Write = Callable[[Session, Mapping[str, object]], None]
Fit = Callable[[Evidence], Suite]
"""Learns everything from the start. May take minutes; raises HeadroomError or errors of arithmetic."""


def fitted(evidence: Evidence) -> Suite:
    return Suite.fresh(SUITE, evidence.facts, _SEED).fit(evidence.samples, evidence.groups)


class Beliefs:
    """The present belief. Safe to ask from several threads. `fit_apart` learns much, in the background, where it is
    this process that `learns`.
    """

    def __init__(self, database: Database, fit_apart: Fit = fitted, learns: Callable[[], bool] = lambda: True) -> None:
        self._database = database
        self._fit_apart = fit_apart
        self._learns = learns
        self._changed = threading.Lock()
        self._state: object = None
        self._mark: str | None = None
        self._base: Belief | None = None
        self._taught: Belief | None = None
        self._learned: Belief | None = None
        """The last one that had learned all there was."""
        self._wanted: Evidence | None = None
        self._failed: Digest | None = None
        """Of what could not be learned here."""
        self._is_learning = False
        self._unstored: tuple[Write, Mapping[str, object]] | None = None
        """What the database could not take when it was learned."""

    def belief(self) -> Belief:
        """What is believed now; it says whether it has learned everything that is stored."""
        with self._changed:
            return self._asked()

    def at_hand(self) -> Suite | None:
        """What was believed when somebody asked last; costs nothing, and is None before."""
        found = self._taught
        return None if found is None else found.suite

    def current(self) -> Suite:
        """What outcomes are held against: a suite that has learned what was measured, if not the newest. Raises
        TransientError until there is one.
        """
        with self._changed:
            found = self._asked()
            if self._learned is None:
                raise TransientError("what was measured is not learned yet; what is seen waits for it")
            return found.suite

    def _asked(self) -> Belief:
        found = self._present()
        if self._unstored is not None and self._learns():
            self._write(*self._unstored)
        return found

    def _present(self) -> Belief:
        evidence: Evidence | None = None
        stored: Sequence[Row[Any]] = ()
        with self._database.reading(patient=True) as session:
            state, mark = _state(session), outcomes.belief_mark(session)
            if self._taught is not None and (state, mark) == (self._state, self._mark):
                self._begin()
                return self._taught
            if state != self._state:
                evidence, stored = read_evidence(session), profiles.fits_since(session, self._learned_as_of())
            points = outcomes.all_points(session)
        if evidence is not None:
            failed = self._recall(stored, evidence.facts)
            self._base, self._state = self._turned(evidence, failed), state
        assert self._base is not None
        base = self._base
        lessons = _tried(lambda _: taught(base.suite, points), base.evidence)
        self._taught, self._mark = replace(base, suite=lessons.suite) if lessons is not None else base, mark
        return self._taught

    def _learned_as_of(self) -> datetime:
        return self._learned.evidence.as_of if self._learned is not None else datetime.min.replace(tzinfo=UTC)

    def _recall(self, stored: Sequence[Row[Any]], facts: Facts) -> Digest | None:
        """Take over what was learned since, whoever did; the digest of what could not be, where that is the newest."""
        for fit in stored:
            if fit.state is not None:
                try:
                    suite = Suite.load(fit.state, facts)
                except Exception as error:  # noqa: BLE001 - whatever is stored ends no answers; it is learned anew
                    _log.warning("beliefs.unreadable", error, as_of=fit.as_of.isoformat())
                    continue
                with self._database.reading(patient=True) as session:
                    known = read_evidence(session, fit.as_of)
                self._learned = Belief(suite=suite, evidence=known, fitted_to=fit.evidence)
                _log.info("beliefs.loaded", as_of=fit.as_of.isoformat())
                break
        return stored[0].evidence if stored and stored[0].state is None else None

    def _turned(self, evidence: Evidence, failed: Digest | None) -> Belief:
        """The belief to answer with now that this evidence is stored; starts to learn it where that takes long."""
        self._wanted, key = None, evidence.digest()
        if self._learned is not None and self._learned.fitted_to == key:
            if self._learns():
                self._write(profiles.confirm_fit, {"evidence": key, "as_of": evidence.as_of})
            self._learned = _moved(self._learned, evidence)
            return self._learned
        if len(evidence) <= AT_ONCE_MAX:
            found = _tried(fitted, evidence, key)
            self._learned = found or self._learned
            return found or _meanwhile(self._learned, evidence, Progress.FAILED)
        if key != self._failed:
            # What failed elsewhere is tried again by who learns now.
            self._wanted = evidence
            self._begin()
        return _meanwhile(
            self._learned, evidence, Progress.FAILED if key in (failed, self._failed) else Progress.LEARNING
        )

    def _begin(self) -> None:
        if self._wanted is not None and not self._is_learning and self._learns():
            self._is_learning = True
            threading.Thread(target=self._learn, name="beliefs", daemon=True).start()

    def _learn(self) -> None:
        """Learn what is wanted until nothing is; what came meanwhile is learned next."""
        while True:
            with self._changed:
                evidence = self._wanted
                if evidence is None:
                    self._is_learning = False
                    return
            key = evidence.digest()
            found = _tried(self._fit_apart, evidence, key)
            with self._changed:
                newest = self._wanted
                if newest is None:
                    # Meanwhile so much was deleted that the rest was learned at once, or another learned the same.
                    continue
                self._failed = key if found is None else None
                self._learned = found or self._learned
                state = found.suite.dump() if found is not None else None
                fit = {"evidence": key, "as_of": evidence.as_of, "measurements": len(evidence), "state": state}
                self._write(profiles.put_fit, fit)
                if newest.digest() != key:
                    self._base = _meanwhile(self._learned, newest, Progress.LEARNING)
                else:
                    self._wanted = None
                    self._base = found or _meanwhile(self._learned, evidence, Progress.FAILED)
                self._taught = None

    def _write(self, write: Write, fit: Mapping[str, object]) -> None:
        """What cannot be stored serves this process all the same; the others once the database is there again."""
        self._unstored = None
        try:
            with self._database.transaction() as session:
                write(session, fit)
        except (HeadroomError, ValueError) as error:
            self._unstored = (write, fit) if isinstance(error, TransientError) else None
            _log.warning("beliefs.unstored", error)


def _state(session: Session) -> object:
    return (
        profiles.state(session),
        profiles.pairs_state(session),
        documents.state(session, kinds.GPU_TYPE),
        documents.state(session, kinds.MODEL),
        session.execute(named("newest_fit")).scalar_one(),
    )


def _tried(fit: Fit, evidence: Evidence, key: Digest | None = None) -> Belief | None:
    """A belief that has learned the evidence, or None where that is not possible, which is said in the log."""
    try:
        return Belief(suite=fit(evidence), evidence=evidence, fitted_to=key)
    except Exception as error:  # noqa: BLE001 - measurements that a model stumbles over must not end all answers
        _log.error("beliefs.failed", error)
        return None


def _meanwhile(learned: Belief | None, evidence: Evidence, progress: Progress) -> Belief:
    """What answers before the evidence is learned: what was learned before, with a few new measurements taken in."""
    if learned is None:
        nothing = evidence.nothing()
        learned = Belief(suite=Suite.fresh(SUITE, evidence.facts, _SEED), evidence=nothing)
    before = _moved(learned, replace(learned.evidence, facts=evidence.facts))
    new = evidence.beyond(learned.evidence)
    found = None
    if 0 < len(new) <= TAKEN_IN_MAX:
        found = _tried(lambda _: _taken_in(before.suite, new), evidence)
    return replace(found or before, progress=progress, pending=new if found is None else None)


def _moved(belief: Belief, evidence: Evidence) -> Belief:
    """The same knowledge under other facts."""
    return replace(belief, suite=Suite.load(belief.suite.dump(), evidence.facts), evidence=evidence)


def _taken_in(suite: Suite, new: Evidence) -> Suite:
    if len(new.samples):
        suite = replace(suite, solo=suite.solo.update(new.samples))
    if len(new.groups.groups):
        suite = replace(suite, interference=suite.interference.update(new.groups, suite.solo))
    return suite


def source_of(
    belief: Belief, model: str, gpu_type: str, origin: Origin, quantity: Quantity = Quantity.LATENCY_MS
) -> str:
    """Where what is believed of a model on a GPU type comes from, in words."""
    library = belief.evidence.facts.library
    entries = library.entries if library is not None else ()
    if origin is Origin.MEASURED:
        return f"fitted to {belief.evidence.points_of(model, gpu_type)} stored points of {model} on {gpu_type}"
    if origin is Origin.LIBRARY:
        entry = library.entry(model, gpu_type) if library is not None else None
        if entry is None:
            return "built-in library"
        return f"built-in library: {entry.source} (fit error {entry.error_pct_mean:.1f} %)"
    if quantity is Quantity.POWER_W:
        unknown = unknown_words(known_keys(belief), (model,))
        return f"what replicas usually add on {gpu_type}, by its specification{unknown}"
    if quantity is Quantity.MEMORY_MIB and model in belief.evidence.facts.models:
        return f"by the size of {model}"
    queries = belief.evidence.samples.queries
    measured = {name for name in queries.gpu_types if belief.evidence.points_of(model, name)}
    key = name_key(model)
    elsewhere = sorted(measured | {entry.gpu_type for entry in entries if name_key(entry.model) == key})
    if elsewhere:
        return f"scaled from {model} on {', '.join(elsewhere)}"
    if model in belief.evidence.facts.models:
        return f"scaled from networks like {model} by its size and the specification of {gpu_type}"
    return f"what networks usually take on {gpu_type}; nothing is known of {model}"


def known_keys(belief: Belief) -> frozenset[str]:
    """Of all models and GPU types that somebody declared, measured or built in."""
    evidence, facts = belief.evidence, belief.evidence.facts
    told = (evidence.samples.queries, evidence.groups.groups.members)
    entries = facts.library.entries if facts.library is not None else ()
    names = {*facts.models, *facts.gpu_types, *(entry.model for entry in entries)}
    return frozenset(map(name_key, names.union(*((*each.models, *each.gpu_types) for each in told))))


def unknown_words(known: frozenset[str], names: Iterable[str]) -> str:
    """How a source goes on where there is a model or GPU type among them that nobody knows."""
    unknown = [name for name in dict.fromkeys(names) if name_key(name) not in known]
    return f"; nothing is known of {', '.join(unknown)}" if unknown else ""
