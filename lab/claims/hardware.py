"""Claims that only a GPU can settle (class G).

Owns their wording and what would show each. No run here can speak for hardware, so each is told as not reproduced with
what to run on a GPU host; docs/reference/hardware.md says what `make test-gpu` measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.claims.base import Claim, ClaimClass, ClaimEvidence, ClaimStatus, Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnHardware:
    """One such claim, and the steps of `make test-gpu` that bear on it."""

    id: str
    stated: str
    steps: str


_CLAIMS = (
    _OnHardware(
        id="AC-HET-10",
        stated="identical models slow each other down more than different ones, on a real GPU",
        steps="pairs",
    ),
    _OnHardware(
        id="AC-INS-13",
        stated="sharing a real GPU by disjoint shares costs at most 20 % of latency, predicted within 4 %",
        steps="grid, pairs",
    ),
    _OnHardware(
        id="AC-MOR-08",
        stated="clock lock accepted and visible; peak power falls with the clock; latency falls with share to a knee",
        steps="clocks, power, grid",
    ),
    _OnHardware(
        id="AC-MUD-12",
        stated="a shadow hand-over loses no request; a changed share shows in latency",
        steps="handover, shares",
    ),
    _OnHardware(
        id="AC-OLT-14",
        stated="kernels of unlike classes (compute beside memory) gain more side by side than compute beside compute",
        steps="pairs",
    ),
)


def _judge(steps: str) -> Callable[[Effort], ClaimEvidence]:
    def judge(_effort: Effort) -> ClaimEvidence:
        return ClaimEvidence(
            measured="not run",
            status=ClaimStatus.NOT_REPRODUCED,
            note=f"needs a GPU; what bears on it there: `make test-gpu`, steps {steps}",
        )

    return judge


CLAIMS = tuple(
    Claim(id=each.id, kind=ClaimClass.HARDWARE, stated=each.stated, judge=_judge(each.steps)) for each in _CLAIMS
)
