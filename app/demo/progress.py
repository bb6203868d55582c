"""What a detached supervisor tells the command that started it: one JSON object per line through a pipe, until it is
ready or has failed.

Owns the messages and both ends of the pipe. It refuses to show anything: the command line does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A phase that ended, readiness, or failure with the exit code the command shall have."""

    event: str
    text: str = ""
    elapsed_s: float = 0.0
    exit_code: int = 0


class Teller:
    """The supervisor's end. A reader that went away is no reason to stop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def tell(self, message: Message) -> None:
        """Send one message."""
        if self._descriptor is None:
            return
        try:
            # One write: a line is far shorter than what a pipe takes at once.
            os.write(self._descriptor, (json.dumps(asdict(message)) + "\n").encode())
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        """Say no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def listen(descriptor: int) -> Iterator[Message]:
    """Messages until the supervisor closes its end (or dies)."""
    with os.fdopen(descriptor, "r", encoding="utf-8") as stream:
        for line in stream:
            yield Message(**json.loads(line))
