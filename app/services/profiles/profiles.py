"""Measured profiles as use cases: import of many points and pairs at once, all or nothing unless bad rows may be
skipped, and what there is.

Owns the checks against the catalogue and the audit events. How bodies are read is `profiles_reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from app import kinds
from app.errors import Fault, FieldsError
from app.records import record
from app.services.declared.actors import Deed
from app.services.profiles.reading import FAULTS_MAX, BodyReading, ReadPoints
from app.store import documents, events, pair_points, profiles
from app.store.engine import Database
from app.store.pages import StoredPage
from app.store.profiles import ProfileLine
from solvers.domain.profile import PairPoint, Profile, ProfilePoint

T = TypeVar("T")


@record
class Imported:
    """Points and pairs read, configurations written, rows left out."""

    points: int
    pairs: int
    configurations: int
    skipped: tuple[Fault, ...]
    """Why rows were left out, the first of them."""
    skipped_count: int


class Profiles:
    """The measured profiles."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, model: str, gpu_type: str) -> Profile:
        """All points of a model on a GPU type. Raises NotFoundError."""
        with self._database.reading() as session:
            return profiles.get(session, model, gpu_type)

    def page(self, limit: int, cursor: str | None) -> StoredPage[ProfileLine]:
        """What there is, by model and GPU type."""
        with self._database.reading() as session:
            return profiles.page(session, limit=limit, cursor=cursor)

    def pairs(self, model: str, gpu_type: str, limit: int, cursor: str | None) -> StoredPage[PairPoint]:
        """Pairs measured on a GPU type with a model in them."""
        with self._database.reading() as session:
            return pair_points.page(session, model, gpu_type, limit=limit, cursor=cursor)

    def import_points(self, reading: BodyReading, deed: Deed, *, skip_bad: bool = False) -> Imported:
        """Store everything or nothing, or with `skip_bad` everything that is right.

        Raises FieldsError naming what is wrong, unknown models and GPU types included.
        """
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            known = _KnownNames.of(session)
            settled = reading.settled(known.clocks_mhz)
            faults = sorted((*settled.faults, *known.faults(settled)), key=_row)
            bad = {fault.pointer.rpartition("/")[0] or fault.pointer for fault in faults}
            points = _without(settled.points, settled.places, bad)
            pairs = _without(settled.pairs, settled.pair_places, bad)
            if faults and not skip_bad:
                raise FieldsError(tuple(faults[:FAULTS_MAX]))
            if not points and not pairs:
                nothing = Fault(pointer="", code="count-out-of-range", detail="there is no point in it")
                raise FieldsError((*faults[: FAULTS_MAX - 1], nothing))
            written = profiles.put_points(session, points) + pair_points.put(session, pairs)
            for model, gpu_type in sorted(_touched(points, pairs)):
                events.append(session, _event("profile.imported", model, gpu_type, deed))
        return Imported(
            points=len(points),
            pairs=len(pairs),
            configurations=written,
            skipped=tuple(faults[:FAULTS_MAX]),
            skipped_count=len(bad),
        )

    def delete(self, model: str, gpu_type: str, deed: Deed) -> None:
        """Forget all points of a model on a GPU type and the pairs it is part of there. Raises NotFoundError."""
        with self._database.transaction() as session:
            if not pair_points.delete(session, model, gpu_type) or profiles.count(
                session, model=model, gpu_type=gpu_type
            ):
                profiles.delete(session, model, gpu_type)
            events.append(session, _event("profile.deleted", model, gpu_type, deed))


@dataclass(frozen=True, slots=True)
class _KnownNames:
    """Names that measurements may be about."""

    models: frozenset[str]
    clocks_mhz: dict[str, int]

    @staticmethod
    def of(session: Session) -> _KnownNames:
        models = frozenset(stored.key[0] for stored in documents.all_specs(session, kinds.MODEL))
        types = documents.all_specs(session, kinds.GPU_TYPE)
        return _KnownNames(models, {stored.key[0]: int(stored.spec["clocks_mhz_sm"][-1]) for stored in types})

    def faults(self, settled: ReadPoints) -> Iterator[Fault]:
        """Names that are not known, in the order of the rows."""
        for place, point in zip(settled.places, settled.points, strict=True):
            yield from self._unknown(place, "model", point.model)
            yield from self._unknown(place, "gpu_type", point.gpu_type)
        for place, pair in zip(settled.pair_places, settled.pairs, strict=True):
            yield from self._unknown(place, "gpu_type", pair.gpu_type)
            yield from self._unknown(place, "model_a", pair.model_a)
            yield from self._unknown(place, "model_b", pair.model_b)

    def _unknown(self, place: str, field: str, name: str) -> Iterator[Fault]:
        known, word = (self.clocks_mhz, "GPU type") if field == "gpu_type" else (self.models, "model")
        if name not in known:
            detail = f"there is no {word} {name}; declare it first"
            yield Fault(pointer=f"{place}/{field}", code="reference-unknown", detail=detail)


def _row(fault: Fault) -> int:
    """The row a fault points to, so that faults stand as rows do; 0 where it points to none."""
    digits = fault.pointer.removeprefix("row:").removeprefix("/").partition("/")[0]
    return int(digits) if digits.isdigit() else 0


def _without(items: Sequence[T], places: Sequence[str], bad: set[str]) -> list[T]:
    return [item for item, place in zip(items, places, strict=True) if place not in bad]


def _touched(points: Sequence[ProfilePoint], pairs: Sequence[PairPoint]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = {(point.model, point.gpu_type) for point in points}
    for pair in pairs:
        found |= {(pair.model_a, pair.gpu_type), (pair.model_b, pair.gpu_type)}
    return found


def _event(name: str, model: str, gpu_type: str, deed: Deed) -> events.Event:
    return events.Event(
        name=name,
        actor=deed.actor,
        subject=f"profiles/{model}/{gpu_type}",
        request_id=deed.request_id,
        facts={},
    )
