"""What was learned from the same evidence before: many tests of a process learn the same, which takes a second."""

from __future__ import annotations

from app.services.beliefs.beliefs import Evidence, fitted
from solvers.domain.ids import Digest
from solvers.models.suite import Suite

_FITTED: dict[tuple[Digest, str], Suite] = {}
"""By everything that a fit depends on, and what documents say of models that nobody measured, which goes along."""


def fitted_once(evidence: Evidence) -> Suite:
    """As `fitted`."""
    key = evidence.digest(), repr(sorted(evidence.facts.models.items()))
    if key not in _FITTED:
        _FITTED[key] = fitted(evidence)
    return _FITTED[key]
