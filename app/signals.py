"""How a process is asked to end: SIGTERM and SIGINT become one call, for as long as a block runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end(act: Callable[[], object], *, pass_on: bool = False) -> Iterator[None]:
    """Run `act`, in a thread of its own, when SIGTERM or SIGINT arrives within the block; with `pass_on`, whatever
    handled the signal before hears of it after that, in the same thread.

    Not in the handler: that interrupts the main thread anywhere, also where it holds the lock of the very event that
    `act` sets, and then both would wait for ever. Outside the main thread there are no signals to hear, and nothing
    happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = {number: signal.getsignal(number) for number in SIGNALS}

    def heed(number: int) -> None:
        act()
        previous = before[signal.Signals(number)]
        if pass_on and callable(previous):
            previous(number, None)

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        threading.Thread(target=heed, args=(number,), name="asked-to-end", daemon=True).start()

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
