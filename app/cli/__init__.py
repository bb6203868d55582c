"""The command line: one program, thin commands over the HTTP client, and the commands that run the processes
themselves.
"""

from __future__ import annotations


def main() -> int:
    """Entry point of `headroom`: run one command and return its exit status."""
    from app.cli.program import run

    return run()
