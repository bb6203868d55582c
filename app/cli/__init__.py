"""The command line: one program, thin commands over the HTTP client, and the commands that run the processes
themselves.
"""

from __future__ import annotations

import gc

OBJECTS_NEW = 20_000
"""So many before they are looked through for garbage: what is loaded is none."""


def main() -> int:
    """Entry point of `headroom`: run one command and return its exit status."""
    gc.set_threshold(OBJECTS_NEW)
    from app.cli.program import run

    try:
        return run()
    finally:
        # Everything goes with the process.
        gc.freeze()
