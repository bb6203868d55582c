"""All claims known, and their judgement.

Owns the collection (every module beside or below this one may offer `CLAIMS`) and the one form in which a judged claim
is told. A judge that breaks is a failed claim that says so.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TypedDict

import lab.claims as room
from lab.claims.base import Claim, ClaimEvidence, ClaimStatus, Effort
from solvers.errors import InputError

Judged = TypedDict("Judged", {"id": str, "class": str, "stated": str, "measured": str, "status": str, "note": str})


def claims(only: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Claims by id, only those whose id begins so where beginnings are given. Raises InputError where none is left."""
    found: dict[str, Claim] = {}
    for module in sorted(pkgutil.walk_packages(room.__path__, f"{room.__name__}."), key=lambda item: item.name):
        for claim in getattr(import_module(module.name), "CLAIMS", ()):
            if claim.id in found:
                raise InputError(f"claim {claim.id} is made twice")
            found[claim.id] = claim
    chosen = [name for name in sorted(found) if not only or any(name.startswith(beginning) for beginning in only)]
    if not chosen:
        raise InputError(f"no claim begins with {', '.join(only)}; known are {', '.join(sorted(found))}")
    return tuple(found[name] for name in chosen)


def judged(chosen: Sequence[Claim], effort: Effort, tell: Callable[[Judged], None]) -> list[Judged]:
    """Judge claims one after the other; `tell` hears of each at once."""
    done = []
    for claim in chosen:
        done.append(_told(claim, _evidence(claim, effort)))
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


def _told(claim: Claim, evidence: ClaimEvidence) -> Judged:
    return {
        "id": claim.id,
        "class": claim.kind.value,
        "stated": claim.stated,
        "measured": evidence.measured,
        "status": evidence.status.value,
        "note": evidence.note,
    }
