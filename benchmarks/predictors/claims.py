"""The acceptance claims about predictors that need public measurements: what was stated, what is measured here."""

from __future__ import annotations

from pathlib import Path

from lab.claims.catalogue import claims
from lab.claims.claim import Effort, judged

ON_TABLES = ("AC-OLT-05", "AC-OLT-06", "AC-OLT-07", "AC-INS-05", "AC-MUD-05")


def all_claims(data: Path) -> dict[str, dict[str, str]]:
    """Every one of them as its judge tells it; one that fails says why."""
    found = judged(claims(ON_TABLES), Effort(data=data), lambda _: None)
    return {
        told["id"]: {
            "stated": told["stated"],
            "measured": told["measured"],
            "verdict": f"{told['status']}; {told['note']}" if told["note"] else told["status"],
        }
        for told in found
    }
