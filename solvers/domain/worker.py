"""How a workload's process is started, asked, drained and ended on a host with real GPUs.

What happens with it is the agent's. Texts of the command and the environment may hold the names of PLACEHOLDERS in
braces; a literal brace is written twice. Nothing here goes through a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from string import Formatter
from typing import Annotated

from solvers.domain.value import POSITIVE, at_most, declarable, late, refusals, value, within
from solvers.errors import FieldError

PORTS_BEHIND = {"port_1": 1, "port_2": 2, "port_3": 3, "port_4": 4}
"""The ports behind a worker's own, for servers that listen on several."""
PLACEHOLDERS = frozenset(
    {"batch", "gpu_uuid", "host", "memory_fraction", "memory_mib_limit", "model", "port", "replica", "share_pct_sm"}
).union(PORTS_BEHIND)
"""`memory_fraction` is the memory limit over the device's memory, for servers that size themselves by the total."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"(?!-)[!-~]{1,1024}")
_RESERVED = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
TEXT_MAX = 4096


class Adapter(StrEnum):
    """Whose ways of readiness, metrics, batch size and draining a worker follows."""

    HTTP = "http"
    TRITON = "triton"
    VLLM = "vllm"
    TORCHSERVE = "torchserve"
    TENSORFLOW_SERVING = "tensorflow_serving"


class BatchChange(StrEnum):
    """How a running worker gets another batch size: by a request, by loading the model anew, by a new process."""

    LIVE = "live"
    RELOAD = "reload"
    RESTART = "restart"


def check_variable(field: str, name: str) -> None:
    if not _VARIABLE.fullmatch(name) or len(name) > 128:
        raise FieldError(field, f"{name[:128]!r} is no name of an environment variable")


@value
class EnvironmentVariable:
    """One variable of a worker's environment: its value, or where its node has that, which nobody else learns. Those
    that share and memory hang on are the agent's alone.
    """

    name: str
    value: str | None = None
    from_file: str | None = late(None)
    from_environment: str | None = late(None)
    from_command: str | None = late(None)

    def _rules(self) -> Iterator[FieldError]:
        yield from refusals(check_variable, "name", self.name)
        if self.name.startswith(_RESERVED):
            yield FieldError("name", f"{self.name} is set by the agent")
        if [self.value, self.from_file, self.from_environment, self.from_command].count(None) != 3:
            yield FieldError("value", "a variable has one of value, from_file, from_environment and from_command")
        yield from refusals(check_template, "value", self.value or "")
        if self.from_file is not None and not re.fullmatch(r"/[^\0-\x1f]{1,4095}", self.from_file):
            yield FieldError("from_file", "a file is given from the root on, in printable characters")
        if self.from_environment is not None and not _VARIABLE.fullmatch(self.from_environment):
            yield FieldError("from_environment", f"{self.from_environment[:128]!r} is no name of a variable")
        if self.from_command is not None and not _REFERENCE.fullmatch(self.from_command):
            yield FieldError("from_command", "what is asked for is printable, without blanks or a leading dash")


@value
class WarmUp:
    """Requests that a new worker must answer before it counts as ready: POST with a body, GET without."""

    path: str
    body: str = ""
    content_type: str = "application/json"
    requests: Annotated[int, within(1, 1000)] = 1
    timeout_s: Annotated[float, POSITIVE] = 60.0

    def __post_init__(self) -> None:
        check_path("path", self.path)
        if len(self.body) > 65536:
            raise FieldError("body", "a warm-up body has at most 65,536 characters")


@value
class WorkerCommand:
    """One worker process. None leaves a path, or the way batch sizes change, to the adapter."""

    command: Annotated[tuple[str, ...], at_most(256)]
    environment: Annotated[tuple[EnvironmentVariable, ...], declarable(256)] = ()
    working_directory: str | None = None
    adapter: Adapter = Adapter.HTTP
    batch_change: BatchChange | None = None
    ready_path: str | None = None
    metrics_path: str | None = None
    metrics_port_offset: Annotated[int, within(0, 16)] = 0
    """Where metrics are served, counted from the worker's port; ports up to the largest offset are the worker's own."""
    warm_up: WarmUp | None = None
    drain_s: Annotated[float, within(0, 3600)] = 30.0
    """How long a worker may take to finish what it has before it is stopped all the same."""
    stop_s: Annotated[float, within(0.1, 600)] = 10.0
    """How long it may take from SIGTERM to its end before it is killed."""
    host_memory_mib_max: Annotated[int | None, within(16, 2**31)] = None
    processes_max: Annotated[int, within(1, 16)] = 1
    """Processes of one worker that use the GPU: each takes the share and a client slot of its own."""

    def _rules(self) -> Iterator[FieldError]:
        if not self.command:
            yield FieldError("command", "a command has at least the program")
        for part in self.command:
            yield from refusals(check_template, "command", part)
        names = [variable.name for variable in self.environment]
        if len(set(names)) != len(names):
            yield FieldError("environment", "a variable is set twice")
        for field, path in (("ready_path", self.ready_path), ("metrics_path", self.metrics_path)):
            if path is not None:
                yield from refusals(check_path, field, path)
        if self.working_directory is not None and not self.working_directory.startswith("/"):
            yield FieldError("working_directory", "a working directory is given from the root on")
        yield from self._check_ports()

    def _check_ports(self) -> Iterator[FieldError]:
        """Refuse ports that another worker may have."""
        texts = [("command", part) for part in self.command]
        texts += [("environment", variable.value or "") for variable in self.environment]
        for field, text in texts:
            for name in sorted(placeholders(text)):
                if PORTS_BEHIND.get(name, 0) > self.metrics_port_offset:
                    yield FieldError(field, f"{{{name}}} is this worker's own only with a larger metrics_port_offset")


def check_template(field: str, text: str) -> None:
    """Refuse placeholders nobody fills, and what no process can be given."""
    if len(text) > TEXT_MAX or "\0" in text:
        raise FieldError(field, f"texts of a worker have at most {TEXT_MAX} characters and no NUL")
    try:
        named = placeholders(text)
    except ValueError as error:
        raise FieldError(field, f"{text[:80]!r}: {error}; write literal braces twice") from None
    unknown = sorted(named - PLACEHOLDERS)
    if unknown:
        known = ", ".join(sorted(PLACEHOLDERS))
        raise FieldError(field, f"unknown placeholder {{{unknown[0]}}}; there are {known}; write literal braces twice")


def placeholders(text: str) -> set[str]:
    """What stands in braces. Raises ValueError where braces do not match."""
    return {
        str(name) for _, name, spec, conversion in Formatter().parse(text) if name is not None or spec or conversion
    }


def check_path(field: str, path: str) -> None:
    if not re.fullmatch(r"/[\x21-\x7e]{0,511}", path):
        raise FieldError(field, "a path begins with / and has at most 512 printable characters")
