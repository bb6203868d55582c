"""What a plan is judged by: numbers compared in an order that the policy names."""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.value import late, value

DIGITS = 6
"""Float dust decides nothing."""
DUST = 1e-6


class Term(StrEnum):
    """One term of the objective; a plan is better when it is better in the first term that differs."""

    UNSERVED = "unserved"
    SLO_RISK = "slo_risk"
    COST = "cost"
    CHURN = "churn"
    BALANCE = "balance"
    CAPACITY = "capacity"
    """More is better, and it counts only where a policy names it: what services could be sent."""
    TRAINING = "training"
    """More is better, and it counts only where a policy names it: how fast jobs run."""


ALWAYS = (Term.UNSERVED, Term.SLO_RISK, Term.COST, Term.CHURN, Term.BALANCE)
"""Terms that every plan is judged by."""
RISING = (Term.CAPACITY, Term.TRAINING)
"""Terms of which more is better."""


@value
class Objective:
    """Unserved demand weighted by priority, SLO risk, cost per hour, churn (launch seconds), imbalance; and where the
    policy names them, what full batches of services would carry, and seconds of the reference GPU's work that jobs do
    in a second.
    """

    unserved: float = 0.0
    slo_risk: float = 0.0
    cost_usd_per_h: float = 0.0
    churn: float = 0.0
    imbalance: float = 0.0
    capacity_rps: float = late(0.0)
    training_rate: float = late(0.0)

    def key(self, terms: tuple[Term, ...] = ALWAYS) -> tuple[float, ...]:
        """For comparison; lower is better."""
        numbers = {
            Term.UNSERVED: self.unserved,
            Term.SLO_RISK: self.slo_risk,
            Term.COST: self.cost_usd_per_h,
            Term.CHURN: self.churn,
            Term.BALANCE: self.imbalance,
            Term.CAPACITY: -self.capacity_rps,
            Term.TRAINING: -self.training_rate,
        }
        return tuple(round(numbers[term], DIGITS) for term in terms)

    def decisive(self, other: Objective, terms: tuple[Term, ...]) -> Term | None:
        """The first of the terms in which the two differ."""
        keys = zip(terms, self.key(terms), other.key(terms), strict=True)
        return next((term for term, mine, its in keys if abs(mine - its) > DUST), None)

    def rises(self, standing: Objective, terms: tuple[Term, ...], part_min: float) -> bool:
        """Whether the first term that differs is one of which more is better, and grows by such a part of what stands
        at least.
        """
        term = self.decisive(standing, terms)
        if term not in RISING:
            return False
        (mine,), (its,) = self.key((term,)), standing.key((term,))
        return its - mine >= max(DUST, part_min * abs(its))
