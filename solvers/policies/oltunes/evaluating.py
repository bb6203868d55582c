"""The evaluator: what finished tasks teach the predictor, and when it is trained anew.

Owns the outcomes that wait to be learned together, the newest relative errors, and the trigger theta. It refuses to
measure.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.value import value
from solvers.models.base import Queries, Samples
from solvers.models.online import retraining
from solvers.models.online.retraining import Trigger
from solvers.policies.oltunes.learned import LearnedSolo

RETRAINED_AFTER, RETRAINED_PART = 200, 0.1
"""Outcomes, and part of all outcomes, before which training anew would find little that is new; the paper's rule alone
trains at every miss.
"""


@value
class SeenOutcome:
    """One outcome: a configuration and the measured time of its batches."""

    model: ModelName
    gpu_type: GpuTypeName
    batch: int
    share_pct: int
    batch_ms: float


@value
class PendingLessons:
    """What was seen and not learned yet, and relative errors of late."""

    pending: tuple[SeenOutcome, ...] = ()
    errors: tuple[float, ...] = ()
    due: bool = False
    since: int = 0
    """Outcomes since the predictor was trained anew."""
    outcomes: int = 0
    lessons: int = 0
    retrainings: int = 0

    def seen(self, outcome: SeenOutcome, predicted_ms: float, theta: float) -> PendingLessons:
        """One more outcome."""
        error = retraining.relative_error(predicted_ms, outcome.batch_ms)
        errors, due = retraining.step(self.errors, error, Trigger(theta=theta))
        since = self.since + 1
        due = due and since >= max(RETRAINED_AFTER, RETRAINED_PART * self.outcomes)
        return replace(
            self,
            pending=(*self.pending, outcome),
            errors=errors,
            due=self.due or due,
            since=since,
            outcomes=self.outcomes + 1,
        )

    def learned(self, solo: LearnedSolo) -> tuple[LearnedSolo, PendingLessons]:
        """All that is pending, and the latest window again where predictions have missed."""
        taught = solo.update(samples_of(self.pending))
        done = replace(self, pending=(), lessons=self.lessons + 1)
        if not self.due:
            return taught, done
        return taught.retrained(), replace(done, errors=(), due=False, since=0, retrainings=self.retrainings + 1)


def samples_of(outcomes: tuple[SeenOutcome, ...]) -> Samples:
    """As a predictor takes them."""
    queries = Queries.of(
        [each.model for each in outcomes],
        [each.gpu_type for each in outcomes],
        [each.batch for each in outcomes],
        [each.share_pct for each in outcomes],
    )
    return Samples.of(queries, [each.batch_ms for each in outcomes])
