"""The compiled driver, and processes that load it the way an agent does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.standins.nvml import NvmlStandIn
from tests.standins.nvml.fixtures import nvml_library

__all__ = ["nvml_library"]

ROOT = Path(__file__).resolve().parents[4]


class Process:
    """A process with boards of its own."""

    def __init__(self, environment: dict[str, str], *words: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("tour.py")), *words]
        self.process = subprocess.Popen(
            command,
            env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self._answer()

    def ask(self, **order: object) -> Any:
        """Send an order and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> int:
        """Let it end by itself, and say how."""
        self.process.communicate(timeout=30)
        return self.process.returncode

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.process.wait(30)}"
        return json.loads(line)


@pytest.fixture
def host(tmp_path: Path, nvml_library: Path) -> Iterator[NvmlStandIn]:
    """Three kinds of GPUs."""
    found = NvmlStandIn(tmp_path / "nvml", ("t4", "h100", "a100-40gb-mig"), library=nvml_library)
    yield found
    found.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes and sees them end."""
    with ExitStack() as stack:

        def begin(environment: dict[str, str], *words: str) -> Process:
            process = Process(environment, *(words or ("5",)))
            stack.callback(process.process.wait, 30)
            stack.callback(process.process.communicate)
            return process

        yield begin
