"""How a process is asked to end: SIGTERM and SIGINT become one call, for as long as a block runs.

Owns the handlers and puts back what stood before. It refuses to end anything itself: the caller decides what being
asked means. The API's own variant, which must hear a signal before its server does, is `api.shutdown`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end(act: Callable[[], None]) -> Iterator[None]:
    """Run `act`, in a thread of its own, when SIGTERM or SIGINT arrives within the block.

    Not in the handler: that interrupts the main thread anywhere, also where it holds the lock of the very event that
    `act` sets, and then both would wait for ever. Outside the main thread there are no signals to hear, and nothing
    happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        threading.Thread(target=act, name="asked-to-end", daemon=True).start()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
