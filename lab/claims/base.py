"""What a claim is and how it is judged.

Owns the records that `headroom arena claims` prints. A claim is judged by running something: a claim without a run is
none. It refuses to round in favour: `measured` tells the number that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ClaimClass(StrEnum):
    """How a claim can be checked."""

    EXACT = "E"
    PROPERTY = "P"
    STATISTICAL = "S"
    HARDWARE = "G"


class ClaimStatus(StrEnum):
    """What came of a claim; NOT_REPRODUCED: it ran, the stated figure was not reached, and the note says why."""

    PASS = "pass"
    FAIL = "fail"
    NOT_REPRODUCED = "not_reproduced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    """What was seen."""

    measured: str
    status: ClaimStatus
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much may be spent: seeds for statistical claims, examples for properties, worker processes. Runs are kept in
    `results`, and what is there already is not run again; without it they are forgotten.
    """

    seeds: int = 3
    examples: int = 200
    jobs: int = 1
    results: Path | None = None
    data: Path | None = None
    """Folder of public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, by its number in the catalogue of requirements (`AC-HET-06`)."""

    id: str
    kind: ClaimClass
    stated: str
    judge: Callable[[Effort], ClaimEvidence]


def found(measured: str, wrong: Sequence[str]) -> ClaimEvidence:
    """Evidence of a claim that holds unless something was found wrong; the first findings are told."""
    return ClaimEvidence(
        measured=measured, status=ClaimStatus.FAIL if wrong else ClaimStatus.PASS, note="; ".join(wrong[:3])
    )
