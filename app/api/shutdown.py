"""Lets endless streams end as soon as the process is asked to: the server itself would wait for them before it tells
anybody.

Owns the moment between the signal and the server's own handling of it, and puts everything back afterwards.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def when_asked_to_end(act: Callable[[], None], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Run `act` on the loop when SIGTERM or SIGINT arrives, then whatever handled the signal before.

    Outside the main thread there are no signals to hear, and nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
