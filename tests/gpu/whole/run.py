"""What the steps of one run share: findings, the plane, services and their users."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.gpu.rig import Finding, Rig
from tests.gpu.whole.plane import END_S_MAX, Plane
from tests.gpu.whole.seen import Window
from tests.gpu.whole.services import Host, Service
from tests.waiting import spend


class Diary(Rig):
    """A rig whose device the product opens, not the script: findings, time, verdicts."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.began_s = time.monotonic()
        self.findings: list[Finding] = []
        self.step = ""


class Run:
    """One run."""

    def __init__(self, options: argparse.Namespace, host: Host) -> None:
        self.options = options
        self.host = host
        self.rig = Diary(options.budget_s)
        self.plane = Plane(host.kept, options.agent_option)
        self.done: set[str] = set()
        self.services: list[Service] = []
        self.gpu_type = ""
        self.joined_at_s = 0.0
        """By the wall clock: when the GPU was in the fleet."""
        self.planned: dict[str, dict[str, Any]] = {}
        """Assignments by service, at first."""
        self.raised_to: Service | None = None
        self.planned_after: dict[str, dict[str, Any]] = {}
        self.changed_s = 0.0
        self.windows: dict[str, Window] = {}
        self.ports: set[int] = set()
        """Of the workers before the change."""
        self._load: subprocess.Popen[str] | None = None

    @property
    def out(self) -> Path:
        """Where texts go."""
        out: Path = self.options.out
        return out

    @property
    def load_file(self) -> Path:
        """What users saw."""
        return self.out / "requests.tsv"

    def keep(self, name: str, text: str) -> None:
        """Keep a text."""
        (self.out / name).write_text(text, encoding="utf-8")

    def apply(self, name: str, documents: Sequence[Mapping[str, Any]]) -> str:
        """`headroom apply`. JSON is YAML."""
        file = self.out / f"{name}.json"
        file.write_text(json.dumps(documents, indent=1), encoding="utf-8")
        return self.plane.do("apply", "-f", str(file.absolute()))

    def begin_load(self) -> None:
        """Users come."""
        command = [sys.executable, "-P", "-m", "tests.gpu.whole.load", "--server", self.plane.server]
        command += ["--out", str(self.load_file.absolute())]
        command += [f"{each.key}={each.rate_rps}" for each in self.services]
        with (self.plane.folder / "load.log").open("ab") as log:
            self._load = subprocess.Popen(
                command,
                env={**self.plane.environment, "HEADROOM_TOKEN": self.plane.token},
                cwd=self.plane.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    def rate(self, service: Service) -> None:
        """Users of a service come at another rate."""
        assert self._load is not None
        assert self._load.stdin is not None
        self._load.stdin.write(json.dumps({"service": service.key, "rate_rps": service.rate_rps}) + "\n")
        self._load.stdin.flush()

    def end_load(self) -> None:
        """Users go; what they saw is in the file."""
        load, self._load = self._load, None
        if load is None:
            return
        try:
            load.communicate(timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            load.kill()
            load.communicate()

    def window(self, name: str, length_s: float) -> Window:
        """From now on, for a while."""
        now_s = time.monotonic()
        found = self.windows[name] = Window(name=name, from_s=now_s, until_s=now_s + length_s)
        spend(length_s)
        return found

    def write(self, facts: Mapping[str, str]) -> None:
        """Write what was found."""
        told = {
            **facts,
            "gpu_type": self.gpu_type,
            "took_s": round(time.monotonic() - self.rig.began_s, 1),
            "services": [asdict(service) for service in self.services],
            "planned": self.planned,
            "planned_after": self.planned_after,
            "findings": [asdict(finding) for finding in self.rig.findings],
        }
        self.keep("whole.json", json.dumps(told, indent=1) + "\n")
