"""What planners keep from one cycle to the next, as bytes of canonical JSON.

Owns the way there and back. Bytes of any other kind are as good as none, so that a planner never stumbles over what an
earlier version of it, or another planner, has left. It refuses to know what is kept.
"""

from __future__ import annotations

from typing import TypeVar

from solvers.domain.codec import canonical_json, from_json
from solvers.errors import FieldError

T = TypeVar("T")


def kept(item: object) -> bytes:
    """A domain value as bytes."""
    return canonical_json(item).encode()


def recalled(cls: type[T], state: bytes) -> T | None:
    """The value that was kept; None where these bytes are of another kind."""
    try:
        return from_json(cls, state)
    except (FieldError, ValueError):
        return None
