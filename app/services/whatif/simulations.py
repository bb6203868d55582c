"""The live fleet's picture, and questions about it that take plans: what if, why not, what an SLO costs.

Owns what a question may cost: how many are answered at once, and how long all its plans together may take. A question
is answered from one picture and stores nothing; planners run where the caller says, in production in a child process.
It refuses to promote.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from app.errors import FieldsError
from app.services.beliefs.beliefs import Beliefs
from app.services.beliefs.completion import Completion
from app.services.explaining.explaining import WhyNot
from app.services.explaining.solves import PLANNING_S_MAX, AnsweredAnew, ExplainQuestion, answered_anew, check_question
from app.services.planning.snapshots import StoreObserver, without_idle_built_in
from app.services.whatif.changes import apply_changes
from app.services.whatif.outcome import request_of
from app.services.whatif.question import Pictures, WhatIf, WhatIfQuestion, answer
from app.store.engine import Database
from solvers.cycle.attempts import Asking, Propose
from solvers.cycle.ports import Clock
from solvers.domain.evidence import SilentReporter
from solvers.domain.snapshot import Snapshot
from solvers.errors import FieldError, TransientError
from solvers.planners import registry
from solvers.verify.checks import verify

AT_ONCE_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationParts:
    """What simulations are made of. `propose` runs one planner under its deadline and raises EngineError."""

    database: Database
    clock: Clock
    cluster: str
    propose: Propose
    beliefs: Beliefs


class Simulations:
    """Answers about the fleet as it is now. Safe to ask from several threads."""

    def __init__(self, parts: SimulationParts) -> None:
        self._observer = StoreObserver(parts.database, parts.clock, parts.cluster, Completion(parts.beliefs))
        self._asking = Asking(propose=parts.propose, verify=verify, reporter=SilentReporter())
        self._places = threading.BoundedSemaphore(AT_ONCE_MAX)

    def snapshot(self) -> Snapshot:
        """The picture that a plan would be made from now. Raises TransientError."""
        return self._observer.observe()

    def answer(self, question: WhatIfQuestion) -> WhatIf:
        """Plan the fleet as it is and as it would be.

        Raises FieldsError or FieldError with a pointer for changes that do not fit the fleet or take too long,
        TransientError when too many questions are being answered, EngineError when no planner gives a plan.
        """
        _known_planner(question.planner)
        with self._place():
            return answer(question, self._pictures(question), self._asking)

    def explain(self, question: ExplainQuestion, stored: WhyNot | None) -> AnsweredAnew:
        """What plans of the fleet as it is now say of a service. `stored`: what a stored plan says already.

        Raises FieldError with a pointer for an unknown planner or what takes too long, NotFoundError, InputError,
        TransientError and EngineError as above.
        """
        _known_planner(question.planner)
        with self._place():
            picture = self._observer.observe()
            check_question(picture, question)
            return answered_anew(picture, question, self._asking, stored)

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise TransientError("too many simulations are being made at once; try again shortly")
        try:
            yield
        finally:
            self._places.release()

    def _pictures(self, question: WhatIfQuestion) -> Pictures:
        """Both out of one reading of the database, so that nothing differs but what was asked."""
        whole = self._observer.whole()
        try:
            changed = apply_changes(whole, question.changes)
        except FieldsError as error:
            raise FieldsError(
                tuple(replace(item, pointer=f"/changes{item.pointer}") for item in error.faults)
            ) from None
        before, after = (self._observer.completed(without_idle_built_in(item)) for item in (whole, changed))
        planning_s = question.plans * request_of(after, question).budget.deadline_s
        if planning_s > PLANNING_S_MAX:
            told = f"{question.plans} plans of {planning_s / question.plans:g} s take longer than {PLANNING_S_MAX:g} s"
            raise FieldError("/deadline_s", told)
        return Pictures(before=before, after=after, types=changed.gpu_types, complete=self._observer.completed)


def _known_planner(name: str | None) -> None:
    if name is not None and name not in registry.names():
        known = ", ".join(registry.names())
        raise FieldError("/planner", f"there is no planner {name}; known are {known}")
