"""A wall-clock limit on one step, so that one slow predictor does not keep the others from being shown."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(BaseException):
    """A step took longer than it may. No Exception, so that nothing inside a predictor swallows it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooSlowError inside after so many seconds. Main thread only."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
