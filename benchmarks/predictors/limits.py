"""A limit on the processor time of one step, so that one slow predictor does not keep the others from being shown."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(BaseException):
    """A step took longer than it may. No Exception, so that nothing inside a predictor swallows it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooSlowError inside after so many seconds of this process's own work, however busy the machine is. Main
    thread only.
    """

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"took more than {seconds:g} s of a processor")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
