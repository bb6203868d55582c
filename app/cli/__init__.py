"""The command line: one program, thin commands over the HTTP client, and the commands that run the processes
themselves.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
from pathlib import Path
from typing import Any, cast

OBJECTS_NEW = 20_000
"""So many before they are looked through for garbage: what is loaded is none."""


PLAIN = {"█": "#", "·": ".", "…": "...", "–": "-", "—": "-", "→": "->", "×": "x", "≥": ">=", "≤": "<="}
"""What is written for a character that standard output cannot write; for any other a question mark."""


def plainly(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(each, "?") for each in error.object[error.start : error.end]), error.end


class RemarkStream(io.FileIO):
    """Where remarks go: once nobody reads them any more, nowhere. Whoever remarks has other things to do."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            lead_nowhere(self.fileno())
            return memoryview(content).nbytes


def lead_nowhere(descriptor: int) -> None:
    """What is written there from now on is lost."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def ready_streams() -> None:
    """What is written can always be: standard streams that were closed lead nowhere, and no encoding is too small."""
    while (held := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(held)
    codecs.register_error("headroom.plain", plainly)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif name == "stdout":
            stream.reconfigure(errors="headroom.plain")
        else:
            own = io.BufferedWriter(RemarkStream(stream.fileno(), "w", closefd=False))
            sys.stderr = io.TextIOWrapper(own, stream.encoding, stream.errors, line_buffering=True)


def main() -> int:
    """Entry point of `headroom`: run one command and return its exit status."""
    gc.set_threshold(OBJECTS_NEW)
    ready_streams()
    # A command line of httpx' own, whose libraries take a tenth of a second to load.
    cast("Any", sys.modules)["httpx._main"] = None
    from app.cli.program import run

    try:
        return run()
    finally:
        # Everything goes with the process.
        gc.freeze()
