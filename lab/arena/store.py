"""A folder of results: one file for each finished run, and the tables made of them.

Owns the layout of the folder. `runs/` holds canonical JSON named by the digest of everything that decides a run, so a
run is never done twice and equal runs are equal bytes; `wanted.json` says which of them belong together; what is told
beside outcomes (times, tracebacks) lies in folders of its own. Every file is written whole or not at all. It refuses to
mix: a scenario whose file changed, or another software, replaces what the folder held of it.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from agents.wire import mirrored
from lab.arena.running import Finished, PlanningTime, RunRecord, RunTask, software
from lab.outcome import JobOutcome, Metric, RunWindow, ServiceOutcome
from solvers.domain.codec import canonical_json, from_json
from solvers.domain.value import value
from solvers.errors import FieldError, InputError

RUNS, TIMES, FAILURES, WANTED = "runs", "times", "failures", "wanted.json"


@value
class WantedRun:
    scenario: str
    scenario_digest: str
    software: str
    contender: str
    seed: int
    key: str


@value
class RunTimes:
    """What a run took; never part of its result."""

    wall_s: float
    cpu_s: float
    planning: tuple[PlanningTime, ...] = ()


class ResultFolder:
    """Results under a folder, which is made when the first is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def want(self, tasks: Sequence[RunTask]) -> None:
        """Add runs to those that belong here; what they contradict is left out from now on. Raises InputError where no
        folder can be.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: this is no folder")
        new = [mirrored(WantedRun, task, contender=task.entry.contender.label) for task in tasks]
        sources = {item.scenario: (item.scenario_digest, item.software) for item in new}
        kept = [
            item
            for item in self._wanted()
            if sources.get(item.scenario, (item.scenario_digest, item.software))
            == (item.scenario_digest, item.software)
        ]
        merged = {(item.scenario, item.contender, item.seed): item for item in (*kept, *new)}
        self._write(self.folder / WANTED, canonical_json(tuple(merged[name] for name in sorted(merged))))

    def missing(self, tasks: Sequence[RunTask]) -> tuple[RunTask, ...]:
        """Those without a result; a failure is none, so it is tried again."""
        return tuple(task for task in tasks if (found := self._read(task.key)) is None or found.outcome is None)

    def put(self, finished: Finished) -> None:
        record = finished.record
        times = RunTimes(wall_s=finished.wall_s, cpu_s=finished.cpu_s, planning=finished.planning)
        self._write(self.folder / TIMES / f"{record.key}.json", canonical_json(times))
        trace = self.folder / FAILURES / f"{record.key}.txt"
        if finished.traceback:
            self._write(trace, finished.traceback)
        else:
            trace.unlink(missing_ok=True)
        self._write(self.folder / RUNS / f"{record.key}.json", canonical_json(record))

    def records(self) -> tuple[RunRecord, ...]:
        """What belongs here and is finished, by scenario, contender and seed. Raises InputError for a folder without
        results.
        """
        if not self._wanted():
            raise InputError(f"{self.folder} holds no results of the arena")
        return self.found()

    def found(self) -> tuple[RunRecord, ...]:
        """The same; nothing of a folder without results."""
        found = (self._read(item.key) for item in self._wanted())
        return tuple(record for record in found if record is not None)

    def lacking(self) -> int:
        """How many runs belong here and are not there, or not whole."""
        return sum(self._read(item.key) is None for item in self._wanted())

    def times(self, key: str) -> RunTimes | None:
        path = self.folder / TIMES / f"{key}.json"
        return from_json(RunTimes, path.read_bytes()) if path.is_file() else None

    def write_tables(self) -> tuple[Path, ...]:
        """Write the tables anew from the runs: the same runs give the same bytes."""
        records = [record for record in self.records() if record.outcome is not None]
        return tuple(self._write_table(name, records) for name in _TABLES)

    def _write_table(self, name: str, records: Sequence[RunRecord]) -> Path:
        path, (kind, held) = self.folder / f"{name}.parquet", _TABLES[name]
        hints, names = typing.get_type_hints(kind), [field.name for field in fields(kind)]
        columns = [(_LONG_FORM.get(each, each), _arrow_name(hints[each])) for each in names]
        schema = pyarrow.schema([*_RUN_COLUMNS, *columns])
        rows = [
            (record.scenario, record.contender.label, record.seed, *(getattr(item, each) for each in names))
            for record in records
            for item in _items(record, held)
        ]
        found = [dict(zip(schema.names, row, strict=True)) for row in rows]
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found, schema=schema), part, compression="zstd")
        part.replace(path)
        return path

    def _wanted(self) -> tuple[WantedRun, ...]:
        path = self.folder / WANTED
        try:
            return from_json(tuple[WantedRun, ...], path.read_bytes()) if path.is_file() else ()
        except (FieldError, ValueError) as error:
            raise InputError(f"{path}: {error}") from None

    def _read(self, key: str) -> RunRecord | None:
        """A run, or None where it was not finished, or by a release that kept runs otherwise."""
        path = self.folder / RUNS / f"{key}.json"
        try:
            return from_json(RunRecord, path.read_bytes()) if path.is_file() else None
        except (FieldError, ValueError):
            return None

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text + ("" if text.endswith("\n") else "\n"), encoding="utf-8")
        part.replace(path)


def records_of(folders: Sequence[ResultFolder]) -> tuple[RunRecord, ...]:
    """Runs of several folders as if they lay in one, such as those of a matrix that was shared out. Contenders may have
    run under different software; a scenario must be the same everywhere, and a run that lies in two folders must have
    come out alike. Raises InputError where that is not so.
    """
    found: dict[tuple[str, str, int], RunRecord] = {}
    digests: dict[str, str] = {}
    for folder in folders:
        for record in folder.records():
            if digests.setdefault(record.scenario, record.scenario_digest) != record.scenario_digest:
                raise InputError(
                    f"{folder.folder} holds results of another {record.scenario} than the folders before it"
                )
            run = (record.scenario, record.contender.label, record.seed)
            before = found.get(run)
            if before is not None and before.outcome is not None and record.outcome not in (None, before.outcome):
                raise InputError(f"{' x '.join(run[:2])}, seed {run[2]}, came out otherwise in {folder.folder}")
            if before is None or before.outcome is None:
                found[run] = record
    return tuple(found[run] for run in sorted(found))


def out_of_date(records: Sequence[RunRecord], digests: Mapping[str, str]) -> tuple[str, ...]:
    """Which of these runs would come out anew today, in words: those of another software than this, and of a scenario
    whose file says something else now. `digests`: of the files that are here, by scenario.
    """
    others = [record.software for record in records if record.software != software()]
    versions = f" ({len(set(others))} versions of it)" if len(set(others)) > 1 else ""
    changed = sorted(
        {item.scenario for item in records if digests.get(item.scenario, item.scenario_digest) != item.scenario_digest}
    )
    told = [f"{len(others)} of {len(records)} runs are of other software than this{versions}: run them again"]
    said = [f"{name} is another file now than these runs read: run them again" for name in changed]
    return (*(told if others else ()), *said)


_RUN_COLUMNS = (("scenario", "string"), ("contender", "string"), ("seed", "int64"))
_ARROW: Mapping[object, str] = {str: "string", int: "int64", float: "float64", bool: "bool"}
_TABLES: Mapping[str, tuple[type, str]] = {
    "results": (Metric, "metrics"),
    "services": (ServiceOutcome, "services"),
    "jobs": (JobOutcome, "jobs"),
    "windows": (RunWindow, "windows"),
}
"""By table: whose fields are its columns, and which part of an outcome holds its rows."""
_LONG_FORM = {"name": "metric"}


def _arrow_name(hint: object) -> str:
    named = [each for each in typing.get_args(hint) if each is not type(None)]
    plain = named[0] if named else hint
    if isinstance(plain, typing.NewType):
        plain = plain.__supertype__
    if isinstance(plain, type) and issubclass(plain, Enum):
        plain = str
    return _ARROW[plain]


def _items(record: RunRecord, held: str) -> Sequence[Any]:
    items = getattr(record.outcome, held)
    return sorted(items, key=lambda item: item.name) if held == "metrics" else items
