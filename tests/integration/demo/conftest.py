"""A home, a port and a way to run the command line as a user does, for the tests that start whole control planes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import nursery
from tests.ports import free_port

COMMAND_DEADLINE_S = 150.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One home on this machine, and the commands of its user."""

    home: Path
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of `headroom` to its end; what it starts begins from nothing."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADROOM_")}
        own = {**self.environment, "HEADROOM_HOME": str(self.home), "HEADROOM_PORT": str(self.port)}
        return nursery.run(["app", *arguments], {**kept, **own}, limit_s=COMMAND_DEADLINE_S)

    def do(self, *arguments: str) -> str:
        """Run one command that must succeed; its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        """The last lines of every process, for a test that failed."""
        parts = []
        for file in sorted((self.home / "logs").glob("*.log")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
            parts.append("\n".join([f"--- {file.name}", *lines]))
        return "\n".join(parts)


def machine_at(home: Path, **environment: str) -> Iterator[Machine]:
    """With whatever was started on it ended at last."""
    made = Machine(home=home, port=free_port(), environment=environment)
    yield made
    made.run("down")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield from machine_at(tmp_path / "home")
