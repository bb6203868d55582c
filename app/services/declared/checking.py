"""What putting documents would do, found out by doing it in a transaction that is rolled back: nothing is stored
or announced. So references between documents of one file hold, and everything that is wrong is told at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.errors import Fault, FieldsError
from app.kinds import Kind
from app.records import record
from app.services.beliefs.beliefs import Beliefs
from app.services.declared.documents import (
    FieldDifference,
    check_references,
    differences,
    note_refusal,
    put_audited,
    with_names,
)
from app.services.declared.doubts import doubts
from app.services.declared.ownership import Estates
from app.services.declared.tokens import Deed
from app.store import documents
from app.store.documents import Key, Precondition
from app.store.engine import Database
from solvers.errors import InputError

REFUSED_EVERY_S = 60.0


class PutOutcome(StrEnum):
    """What putting a document does."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@record
class CheckedDocument:
    """What putting a document would do, beside the others that were checked with it."""

    kind: str
    key: tuple[str, ...]
    """Empty where the document does not say it."""
    outcome: PutOutcome
    faults: tuple[Fault, ...]
    """Why it is refused."""
    warnings: tuple[Fault, ...]
    """What it would be stored with although it can hardly be meant."""
    changes: tuple[FieldDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WishedDocument:
    """A document to check: its value, or why it is none."""

    kind: Kind
    key: Key
    value: object = None
    faults: tuple[Fault, ...] = ()
    said: Mapping[str, object] = field(default_factory=dict)
    """What it names although it is none, as far as whoever asks may know."""


class DocumentChecks:
    def __init__(self, database: Database, cluster: str, beliefs: Beliefs) -> None:
        self._database = database
        self._cluster = cluster
        self._beliefs = beliefs

    def check(self, wished: Sequence[WishedDocument], deed: Deed) -> tuple[CheckedDocument, ...]:
        """What putting these documents one after the other would do. All of it is done and nothing is kept, but an
        event of each that asks for more than the bounds of its project, once a minute: whoever is refused puts nothing.
        """
        found: list[CheckedDocument] = []
        suite = self._beliefs.belief().suite
        refused = {(item.kind, item.key) for item in wished if item.faults}
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            estates = Estates(session)
            for item in wished:
                if item.faults:
                    line = _refused(item, with_names(session, item.kind, item.said, item.faults, refused))
                else:
                    line = self._checked(estates, item, refused, deed)
                if line.outcome is PutOutcome.REFUSED:
                    refused.add((item.kind, item.key))
                found.append(line)
            stood = [item for item, line in zip(wished, found, strict=True) if line.outcome is not PutOutcome.REFUSED]
            warnings = {(item.kind, item.key): doubts(session, item.value, suite) for item in stood}
            session.rollback()
        rarely = replace(deed, every_s=REFUSED_EVERY_S)
        for item, line in zip(wished, found, strict=True):
            note_refusal(self._database, item.kind, item.key, rarely, line.faults)
        return tuple(
            replace(line, warnings=warnings.get((item.kind, item.key), ()))
            for item, line in zip(wished, found, strict=True)
        )

    def _checked(
        self, estates: Estates, item: WishedDocument, refused: Collection[tuple[Kind, Key]], deed: Deed
    ) -> CheckedDocument:
        session = estates.session
        before = documents.find(session, item.kind, item.key)
        try:
            with session.begin_nested():
                check_references(estates, item.kind, item.value, self._cluster, refused)
                result = put_audited(session, item.kind, item.value, Precondition(), deed)
        except FieldsError as error:
            return _refused(item, error.faults)
        except InputError as error:
            # What the database's own foreign keys refuse is named in a document that is refused itself.
            return _refused(item, () if refused else (Fault(pointer="", code=error.code, detail=error.message),))
        estates.wrote(item.value)
        outcome = (
            PutOutcome.CREATED if result.created else PutOutcome.UPDATED if result.changed else PutOutcome.UNCHANGED
        )
        changes = () if before is None else tuple(differences(before.spec, result.stored.spec))
        return CheckedDocument(
            kind=item.kind.name, key=item.key, outcome=outcome, faults=(), warnings=(), changes=changes
        )


def _refused(item: WishedDocument, faults: tuple[Fault, ...]) -> CheckedDocument:
    return CheckedDocument(
        kind=item.kind.name, key=item.key, outcome=PutOutcome.REFUSED, faults=faults, warnings=(), changes=()
    )
