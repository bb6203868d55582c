"""What a worker's process is started with: its command and environment, filled in from what the plan gave it.

Owns the placeholders (the same as `solvers.domain.worker`; a test compares), the variables a worker may inherit and
those it may not set. It refuses what nobody can fill, because a brace left in a command line is found much later; no
text ever goes through a shell.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from agents.devices.parts import CrewOrder
from agents.errors import NotSupportedError, OutOfRangeError, WorkerError
from agents.wire import WorkerTarget

PORTS_BEHIND = {"port_1": 1, "port_2": 2, "port_3": 3, "port_4": 4}
PLACEHOLDERS = frozenset(
    {"batch", "gpu_uuid", "host", "memory_fraction", "memory_mib_limit", "model", "port", "replica", "share_pct_sm"}
).union(PORTS_BEHIND)
RESERVED = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
"""What share and memory hang on is the agent's alone."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "LD_LIBRARY_PATH", "XDG_CACHE_HOME")
"""Everything else of the agent's environment, its token among it, stays with the agent."""
MARK = "HEADROOM_WORKER"
"""Tells whose process one is, also when an agent died between starting it and writing that down."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A process ready to be started."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: str | None


def placed(order: CrewOrder, host: str, port: int) -> dict[str, str]:
    """What each placeholder stands for. The fraction is rounded down: a server that sizes itself by it must stay
    within its limit.
    """
    spec = order.spec
    fraction = math.floor(1e4 * spec.memory_mib_limit / max(order.device_memory_mib, spec.memory_mib_limit)) / 1e4
    return {
        "batch": str(spec.batch),
        "gpu_uuid": order.uuid,
        "host": host,
        "memory_fraction": f"{fraction:.4f}",
        "memory_mib_limit": str(spec.memory_mib_limit),
        "model": spec.model,
        "port": str(port),
        "replica": spec.replica,
        "share_pct_sm": str(spec.share_pct_sm),
        **{name: str(port + offset) for name, offset in PORTS_BEHIND.items()},
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders replaced. Raises OutOfRangeError for one that nobody fills."""
    parts = []
    try:
        for literal, name, form, conversion in Formatter().parse(text):
            if name is not None and (name not in values or form or conversion):
                raise OutOfRangeError(f"unknown placeholder {{{name}}} in {text[:80]!r}")
            parts.append(literal + ("" if name is None else values[name]))
    except ValueError as error:
        raise OutOfRangeError(f"{text[:80]!r}: {error}") from None
    filled = "".join(parts)
    if "\0" in filled:
        raise OutOfRangeError(f"{text[:80]!r} holds a NUL")
    return filled


def invocation(order: CrewOrder, target: WorkerTarget, values: Mapping[str, str], mark: str) -> Invocation:
    """All a process is started with. Raises OutOfRangeError, WorkerError where the program is not to be found."""
    if not target.command:
        raise OutOfRangeError("a worker without a command")
    own = {}
    for name, text in target.environment:
        if not _VARIABLE.fullmatch(name) or name.startswith(RESERVED):
            raise OutOfRangeError(f"{name[:128]!r} cannot be set by a workload")
        own[name] = fill(text, values)
    base = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = {"PATH": _PATH_DEFAULT, **base, **own, **order.environment, MARK: mark}
    arguments = tuple(fill(part, values) for part in target.command)
    program = shutil.which(arguments[0], path=environment["PATH"])
    if program is None:
        raise WorkerError(f"{arguments[0]}: no such program")
    return Invocation(
        arguments=(program, *arguments[1:]), environment=environment, working_directory=target.working_directory
    )


def check_allowed(program: str, executables: tuple[str, ...] | None) -> None:
    """Refuse a program that the host's owner did not list. None: any. Links are followed on both sides, so that no
    link leads out of the list.
    """
    if executables is not None and os.path.realpath(program) not in {os.path.realpath(each) for each in executables}:
        raise NotSupportedError(f"{program} is not among the programs this host allows")
