"""Exception tree of the core.

Owns every exception type the core may raise: what went wrong, whether trying again can help, and the facts needed to
explain it. It knows nothing of HTTP statuses or exit codes; the shell maps these types in one table. Outcomes that a
caller must expect (an infeasible model, a limit hit, a held plan) are values, never exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import ClassVar

NEAR_MAX = 3


def did_you_mean(name: str, known: Iterable[str], *, all_known: bool = False) -> str:
    """How a sentence about an unknown name goes on: the nearest known ones, where wanted else all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=NEAR_MAX)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known are {', '.join(names) or 'none'}" if all_known else ""


class HeadroomError(Exception):
    """Base of all errors: a stable code, whether a retry can help, and structured context."""

    code: str = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **context: str | int | float | None) -> None:
        super().__init__(message)
        self.message = message
        self.context: Mapping[str, str | int | float | None] = dict(context)


class InputError(HeadroomError):
    """The caller asked for something wrong; the same call will fail again."""

    code = "input-invalid"


class FieldError(InputError, ValueError):
    """One field of a value is outside what it may be. Also a ValueError, so that edge validators report it in place."""

    code = "field-invalid"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, field=field)
        self.field = field


class StateError(HeadroomError):
    """The world is not (or no longer) in the state the call needs."""

    code = "state-conflict"


class NotFoundError(StateError):
    """The named thing does not exist, or the caller may not know that it does."""

    code = "not-found"


class SupersededError(StateError):
    """A compare-and-set lost: the parent is no longer current."""

    code = "superseded"


class LeaseLostError(StateError):
    """The writer's fencing token is older than one already seen."""

    code = "lease-lost"


class EngineError(HeadroomError):
    """A planner or solver engine is missing, crashed, hung or broke its contract: keep the target."""

    code = "engine-failed"


class OverrunError(EngineError):
    """A planner had found nothing when its time ended."""


class TransientError(HeadroomError):
    """Something outside failed in a way that a bounded retry may cure."""

    code = "transient"
    retryable = True


class EndingError(TransientError):
    """This process was asked to end: whatever it was at is left as it stands, and says nothing about anybody."""


class InvariantError(HeadroomError):
    """Our own bug: a promise between two rooms was broken. Abort the cycle and be loud."""

    code = "invariant-broken"
