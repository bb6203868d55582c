"""Waiting in tests: for a condition, with a deadline that a busy machine keeps too.

Everything that waits for another thread, process or server does it here. `spend` is for the few places where time
itself is the subject: work that a stand-in simulates, a fault at a random moment, a physical quantity that settles.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LIMIT_S = 60.0
"""Reached only by tests that fail."""
POLL_S = 0.01
POLL_S_MAX = 0.25
WAITED_PART = 0.05
"""Whoever has waited for long asks less often: what asks takes the processors that the awaited needs."""


def wait_until(
    holds: Callable[[], object],
    what: str | Callable[[], str] = "it",
    limit_s: float = LIMIT_S,
    poll_s: float = POLL_S,
) -> None:
    """Ask again and again until the condition holds. Raises AssertionError with what was waited for."""
    began_s = time.monotonic()
    pause = threading.Event()
    while not holds():
        waited_s = time.monotonic() - began_s
        if waited_s > limit_s:
            raise AssertionError(f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}")
        pause.wait(max(poll_s, min(WAITED_PART * waited_s, POLL_S_MAX)))


def wait_while_hanging(hangs: Callable[[], bool]) -> None:
    """Block as a hanging call does: for ever, unless the fault is lifted."""
    wait_until(lambda: not hangs(), "the end of a planted fault", math.inf, 0.002)


def spend(seconds: float) -> None:
    """Let time pass where its passing is the subject."""
    threading.Event().wait(seconds)
