"""What the steps share: the device under test, findings, time, and a load to keep the device busy.

Owns the findings' form (name, number, unit, verdict) and their files. A step that cannot be done here says why and is
neither passed nor failed; a step that breaks fails alone.
"""

from __future__ import annotations

import csv
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agents.devices.nvml import NvmlBoards, NvmlSetters
from agents.wire import DeviceInventory
from tests.gpu.recorded import RecordingBoards
from tests.waiting import spend

WORKER = Path(__file__).with_name("worker.py")
BURN = Path(__file__).with_name("burn.py")
POINT_S = 0.6


class NotHereError(Exception):
    """This machine cannot show that; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number, or one yes or no. `fine` None: it is a measurement, not a check."""

    step: str
    name: str
    value: float | str | bool
    unit: str = ""
    fine: bool | None = None
    note: str = ""


@dataclass(slots=True)
class Rig:
    """One device, opened."""

    boards: RecordingBoards
    setters: NvmlSetters
    device: DeviceInventory
    scratch: Path
    python: str
    """The interpreter that has PyTorch."""
    budget_s: float
    point_s: float = POINT_S
    """How long a point of a table is measured."""
    networks: tuple[str, ...] = ()
    """Those that tables are about; empty: all."""
    agent_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Rows of measurements by the name of their file."""
    began_s: float = field(default_factory=time.monotonic)
    step: str = ""

    @property
    def uuid(self) -> str:
        """Of the device under test."""
        return self.device.uuid

    def refusal(self, verb: str) -> str:
        """Why the device, or this process, cannot do something; empty when both can."""
        return (self.device.capabilities or {}).get(verb, "") or self.setters.refusals().get(verb, "")

    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (time.monotonic() - self.began_s)

    def note(self, name: str, value: float | str | bool, unit: str = "", *, note: str = "") -> None:
        """Keep a measurement."""
        self._keep(Finding(step=self.step, name=name, value=value, unit=unit, note=note))

    def check(self, name: str, fine: bool, value: float | str | bool = "", unit: str = "", *, note: str = "") -> None:
        """Keep a check."""
        self._keep(Finding(step=self.step, name=name, value=value, unit=unit, fine=fine, note=note))

    def _keep(self, finding: Finding) -> None:
        self.findings.append(finding)
        verdict = {True: "ok  ", False: "FAIL", None: "    "}[finding.fine]
        number = f"{finding.value:.4g}" if isinstance(finding.value, float) else str(finding.value)
        text = f"{verdict} {finding.step:12} {finding.name}: {number} {finding.unit}".rstrip()
        print(text + (f"  ({finding.note})" if finding.note else ""), flush=True)

    def until(self, condition: Callable[[], bool], limit_s: float, every_s: float = 0.005) -> float | None:
        """Seconds until something holds; None when it did not in time."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < limit_s:
            if condition():
                return time.monotonic() - began_s
            spend(every_s)
        return None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the device busy with matrix products in a process of its own. Raises NotHereError without PyTorch."""
        process = subprocess.Popen(
            [self.python, str(BURN)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**self.environment, "CUDA_VISIBLE_DEVICES": self.uuid},
            text=True,
        )
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            if line.strip() != "burning":
                raise NotHereError(f"no load: {line.strip() or 'PyTorch is missing'}")
            yield
        finally:
            process.terminate()
            process.wait(20.0)

    def write(self, out: Path) -> None:
        """Write what was found beside the recording."""
        facts = {
            "device": asdict(self.device),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
            "took_s": round(time.monotonic() - self.began_s, 1),
            "findings": [asdict(finding) for finding in self.findings],
        }
        (out / "findings.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        for name, rows in self.tables.items():
            with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def chosen(boards: NvmlBoards, uuid: str | None) -> DeviceInventory:
    """The device under test: the named one, else the first that is whole."""
    for device in boards.inventory():
        if device.uuid == uuid or (uuid is None and device.parent_uuid is None):
            return device
    raise NotHereError(f"no device {uuid or 'at all'}")
