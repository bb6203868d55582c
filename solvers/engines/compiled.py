"""C sources beside this module as shared libraries: compiled once, named after what they were compiled from.

A wheel carries the libraries (see `hatch_build.py`, which loads this file by its path, so that it needs nothing but the
standard library). A checkout compiles by itself whenever a source differs from what was compiled last; without a
compiler that is an error of one line. Flags keep results the same on every machine: nothing is reordered or contracted.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
HERE = Path(__file__).resolve().parent


class CompilerError(RuntimeError):
    """The text says what to install."""


def sources() -> list[Path]:
    return sorted(HERE.glob("*.c"))


def place(source: Path) -> Path:
    """Where the library of a source is, or will be."""
    told = " ".join((*FLAGS, os.uname().machine)).encode()
    shared = b"".join(item.read_bytes() for item in sorted(source.parent.glob("*.h")))
    digest = hashlib.sha256(told + shared + source.read_bytes()).hexdigest()[:12]
    return source.with_name(f"_{source.stem}.{digest}.so")  # with the dot it is no name of a Python module


def library(source: Path) -> Path:
    """The library of a source, made where it is not there yet. Raises CompilerError."""
    made = place(source)
    if not made.exists():
        _compile(source, made)
    for other in source.parent.glob(f"_{source.stem}[-.]*.so"):
        if other != made:
            with suppress(OSError):
                other.unlink()
    return made


def _compile(source: Path, made: Path) -> None:
    unfinished = made.with_name(f"{made.name}.{os.getpid()}.{threading.get_ident()}")
    command = ["cc", *FLAGS, "-o", str(unfinished), str(source), "-lm"]
    try:
        status = os.waitpid(os.posix_spawnp(command[0], command, {"PATH": os.defpath}), 0)[1]
    except FileNotFoundError:
        status = -1
    if status or not unfinished.exists():
        raise CompilerError(
            f"cannot compile {source}: install a C compiler (on Debian: apt-get install gcc libc6-dev)"
            " and let its folder be written to"
        )
    unfinished.replace(made)


def loaded(name: str) -> ctypes.CDLL:
    """The library of the source of that name. Raises CompilerError."""
    return ctypes.CDLL(str(library(HERE / f"{name}.c")))
