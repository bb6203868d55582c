"""Talking to a control daemon: its command-line program, run with a time-out and judged by more than its exit status.

Owns the invocation, the environment it gets, and the reading of texts whose exact form nobody promises: numbers are
searched for, error words are recognised even with exit status 0.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.errors import DeviceTimeoutError, NotSupportedError, SharingError

COMMAND_TIMEOUT_S = 3.0
_REFUSED = re.compile(
    r"\b(error|fail(ed|ure)?|invalid|unknown|unrecogni[sz]ed|cannot|can't|could ?n[o']t|unable|denied|not permitted"
    r"|not found|not exist|no such|does not|already running|refused|busy)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?\b", re.IGNORECASE)
_MIB = {"K": 1.0 / 1024.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True, slots=True)
class MpsControl:
    """The control program, pointed at one daemon."""

    binary: str
    pipe: Path

    def ask(self, *arguments: str, stdin: str = "") -> str:
        """What the daemon answers. Raises SharingError when it is down or refuses, DeviceTimeoutError when it hangs."""
        text = self.ask_freely(*arguments, stdin=stdin)
        if refused(text):
            raise SharingError(f"{_named(arguments, stdin)}: {shortened(text)}")
        return text

    def ask_freely(self, *arguments: str, stdin: str = "") -> str:
        """The same, where an error's text is an answer."""
        try:
            done = subprocess.run(
                [self.binary, *arguments],
                input=stdin,
                env=plain_environment({"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)}),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            raise NotSupportedError(f"there is no {self.binary} on this host") from None
        except subprocess.TimeoutExpired:
            raise DeviceTimeoutError(f"{_named(arguments, stdin)}: no answer in {COMMAND_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise SharingError(f"cannot run {self.binary}: {error.strerror}") from error
        if done.returncode != 0:
            raise SharingError(f"{_named(arguments, stdin)}: {shortened(done.stdout + done.stderr)}")
        return done.stdout.strip()


def plain_environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a program needs of this process' environment, and what it is given: nothing that shares or limits hang on
    comes in unasked.
    """
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(more)


def refused(text: str) -> bool:
    """Whether a text says that something went wrong."""
    return _REFUSED.search(text) is not None


def number_in(text: str) -> float | None:
    """The first number of a text."""
    found = _NUMBER.search(text)
    return None if found is None else float(found.group())


def memory_mib_in(text: str) -> float | None:
    """The first memory value of a text; units are binary."""
    found = _MEMORY.search(text)
    return None if found is None else float(found.group(1)) * _MIB[found.group(2).upper()]


def pids_in(text: str) -> tuple[int, ...]:
    """Lines that are a pid and nothing else."""
    return tuple(int(line) for line in map(str.strip, text.splitlines()) if line.isdigit())


def shortened(text: str) -> str:
    """A text for an error message."""
    words = " ".join(text.split())
    return words[:200] if words else "no answer"


def _named(arguments: tuple[str, ...], stdin: str) -> str:
    return " ".join(arguments) or stdin.strip()
