"""What a claim is, how it is judged, and the one form in which it is told.

A claim is judged by running something: a claim without a run is none, and `measured` tells the number that was seen,
never rounded in favour. A judge that breaks is a failed claim that says so. Which claims there are is the catalogue's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

Judged = TypedDict("Judged", {"id": str, "class": str, "stated": str, "measured": str, "status": str, "note": str})


class ClaimClass(StrEnum):
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
    data: Path = Path("../shared/data")
    """Folder of public data."""

    @property
    def told(self) -> str:
        return f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"


Judge = Callable[[Effort], ClaimEvidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, by its number in the catalogue of requirements (`AC-HET-06`)."""

    id: str
    kind: ClaimClass
    stated: str
    judge: Judge
    outcome: ClaimStatus = ClaimStatus.PASS
    """What came of it when all were judged last."""
    quick: bool = False
    """Whether a little effort judges it within seconds, without public data and whatever else the machine does."""


def found(measured: str, wrong: Sequence[str]) -> ClaimEvidence:
    """Evidence of a claim that holds unless something was found wrong; the first findings are told."""
    return ClaimEvidence(
        measured=measured, status=ClaimStatus.FAIL if wrong else ClaimStatus.PASS, note="; ".join(wrong[:3])
    )


def figure(measured: str, *, reached: bool, note: str = "", why: Callable[[], str] = str) -> ClaimEvidence:
    """Evidence of a figure that was stated: `note` is told in any case, `why` is asked only where it was missed."""
    told = [note] if reached else [note, why()]
    status = ClaimStatus.PASS if reached else ClaimStatus.NOT_REPRODUCED
    return ClaimEvidence(measured=measured, status=status, note="; ".join(filter(None, told)))


def listed(numbers: Mapping[str, float], form: str = "{:.0f}") -> str:
    return ", ".join(f"{name} {form.format(number)}" for name, number in numbers.items())


def judged(chosen: Sequence[Claim], effort: Effort, tell: Callable[[Judged], None]) -> list[Judged]:
    """Judge claims one after the other; `tell` hears of each at once."""
    done: list[Judged] = []
    for claim in chosen:
        evidence = _evidence(claim, effort)
        done.append(
            {
                "id": claim.id,
                "class": claim.kind.value,
                "stated": claim.stated,
                "measured": evidence.measured,
                "status": evidence.status.value,
                "note": evidence.note,
            }
        )
        tell(done[-1])
    return done


def _evidence(claim: Claim, effort: Effort) -> ClaimEvidence:
    try:
        return claim.judge(effort)
    except Exception as error:  # noqa: BLE001 - a claim that cannot be judged is not kept, and the others are judged on
        said = " ".join(str(error).split())
        return ClaimEvidence(
            measured="nothing", status=ClaimStatus.FAIL, note=f"could not be judged: {type(error).__name__}: {said}"
        )
