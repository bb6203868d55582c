"""What a plan is judged by: five numbers compared in an order that the policy names."""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.value import value

DIGITS = 6
"""Float dust decides nothing."""


class Term(StrEnum):
    """One term of the objective; a plan is better when it is better in the first term that differs."""

    UNSERVED = "unserved"
    SLO_RISK = "slo_risk"
    COST = "cost"
    CHURN = "churn"
    BALANCE = "balance"


@value
class Objective:
    """Unserved demand weighted by priority, SLO risk, cost per hour, churn (launch seconds), imbalance."""

    unserved: float = 0.0
    slo_risk: float = 0.0
    cost_usd_per_h: float = 0.0
    churn: float = 0.0
    imbalance: float = 0.0

    def key(self, terms: tuple[Term, ...] = tuple(Term)) -> tuple[float, ...]:
        """For comparison; lower is better."""
        numbers = {
            Term.UNSERVED: self.unserved,
            Term.SLO_RISK: self.slo_risk,
            Term.COST: self.cost_usd_per_h,
            Term.CHURN: self.churn,
            Term.BALANCE: self.imbalance,
        }
        return tuple(round(numbers[term], DIGITS) for term in terms)
