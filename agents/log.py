"""What the agent says: one JSON object a line on standard error, an event name and its facts.

There are no levels: an event is either worth a line or it is not said.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from typing import TextIO


class Log:
    """Writes events of one node; safe to use from any thread."""

    def __init__(self, node: str, stream: TextIO | None = None) -> None:
        self._node = node
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self._states: dict[str, str] = {}

    def event(self, name: str, **facts: str | int | float | None) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"time": moment, "event": name, "node": self._node, **facts}, ensure_ascii=False)
        # A full disk must not end what it would be told of.
        with self._lock, contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    def state(self, subject: str, state: str, **facts: str | int | float | None) -> None:
        """Say that something is in another state than before; silent when it is not, so that an outage is two lines."""
        with self._lock:
            changed = self._states.get(subject) != state
            self._states[subject] = state
        if changed:
            self.event(f"{subject}.{state}", **facts)
