"""The file of reports that nobody has acknowledged yet, which the next agent on this node takes up.

A report is written down when it is cut and before it is sent. Nothing waits for the disk: what the system has taken
survives the death of a process, which is what this is for, and while the control plane answers the file is emptied
before any of it is written out. A file that cannot be written costs nothing but what a death would then lose.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.log import Log
from agents.wire import Report, WireError, decode, encode

REPORTS_FILE = "reports.jsonl"
BYTES_MAX = 16 * 2**20
REWRITTEN_PART = 0.75
"""So full is a file that was full, after its oldest have gone."""
AGE_S_MAX = 86_400.0
"""What is older when an agent begins is given up."""
RETRY_S = 30.0
"""After this long a file that could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class UnsentReport:
    boot_id: str
    sequence: int
    text: bytes
    """As it is sent: JSON without line breaks."""
    cluster_id: str | None = None
    """Of whose target it speaks, where it says so."""

    @property
    def name(self) -> tuple[str, int]:
        return self.boot_id, self.sequence

    @classmethod
    def of(cls, report: Report) -> UnsentReport:
        return cls(report.boot_id, report.sequence, _line(encode(report)), report.cluster_id)

    @property
    def plain_text(self) -> bytes:
        """For servers of before, which know no histories of reports."""
        return _line(encode(replace(decode(Report, json.loads(self.text)), cluster_id=None, epoch=None)))


class ReportFile:
    """A line for each report, one for the cluster they are for, and one for each time some of several were
    acknowledged. Not thread-safe.
    """

    def __init__(self, path: Path, node: str, log: Log, now_s: Callable[[], float] = time.monotonic) -> None:
        self.cluster_id: str | None = None
        """Whose reports these are, as far as anybody said."""
        self._path, self._new = path, path.with_name(f".{path.name}.new")
        self._node, self._log, self._now_s = node, log, now_s
        self._descriptor: int | None = None
        self._bytes = self._head_bytes = 0
        self._retry_at_s = 0.0

    def load(self, wall_s: float) -> list[UnsentReport]:
        """What earlier agents could not send. What cannot be read, as the end of a line that a death cut off, is told
        and left out.
        """
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            self._log.event("reports.unreadable", reason=str(error))
            return []
        found: dict[tuple[str, int], UnsentReport] = {}
        lost = 0
        for line in filter(None, lines):
            try:
                self._take(line, found, wall_s)
            except (WireError, ValueError, TypeError, KeyError, RecursionError):
                lost += 1
        if found or lost:
            self._log.event("reports.resumed", reports=len(found), unreadable=lost)
        return list(found.values())

    def _take(self, line: bytes, found: dict[tuple[str, int], UnsentReport], wall_s: float) -> None:
        plain = json.loads(line)
        if "sequence" in plain:
            report = decode(Report, plain)
            if report.node == self._node and report.observed_at_s >= wall_s - AGE_S_MAX:
                found[report.boot_id, report.sequence] = UnsentReport(
                    report.boot_id, report.sequence, line, report.cluster_id
                )
        elif "cluster_id" in plain:
            self.cluster_id = None if plain["cluster_id"] is None else str(plain["cluster_id"])
        else:
            for boot_id, sequence in plain["acknowledged"]:
                found.pop((boot_id, sequence), None)

    def append(self, report: UnsentReport, waiting: Sequence[UnsentReport]) -> None:
        """Write down one more; `waiting` are all, that one among them."""
        if self._descriptor is None or self._bytes + len(report.text) >= BYTES_MAX:
            self.rewrite(waiting)
        else:
            self._attempt(lambda: self._write(report.text))

    def settle(self, done: Iterable[tuple[str, int]], waiting: Sequence[UnsentReport]) -> None:
        """Some have been acknowledged; `waiting` are the others."""
        if self._descriptor is not None:
            self._attempt(lambda: self._write(_line({"acknowledged": sorted(done)})) if waiting else self._empty())

    def rewrite(self, waiting: Sequence[UnsentReport]) -> None:
        """Write all that wait anew, the newest if they are too many."""
        sizes = itertools.accumulate(len(each.text) + 1 for each in reversed(waiting))
        kept = sum(1 for size in sizes if size < REWRITTEN_PART * BYTES_MAX)

        def write_anew() -> None:
            self._close()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor, self._bytes = os.open(self._new, flags, 0o600), 0
            self._write(_line({"cluster_id": self.cluster_id}))
            self._head_bytes = self._bytes
            for each in itertools.islice(waiting, len(waiting) - kept, None):
                self._write(each.text)
            self._new.replace(self._path)

        self._attempt(write_anew)

    def _empty(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, self._head_bytes)
            self._bytes = self._head_bytes

    def _write(self, line: bytes) -> None:
        if self._descriptor is None or os.write(self._descriptor, line + b"\n") != len(line) + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._bytes += len(line) + 1

    def _attempt(self, action: Callable[[], None]) -> None:
        """What a full disk, or a bad one, prevents is told once and left out for a while."""
        if self._now_s() < self._retry_at_s:
            return
        try:
            action()
        except OSError as error:
            self._close()
            with contextlib.suppress(OSError):
                self._new.unlink()
            self._retry_at_s = self._now_s() + RETRY_S
            self._log.state("reports", "in_memory_only", reason=str(error))
        else:
            if self._retry_at_s:
                self._log.state("reports", "kept")

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None


def _line(plain: dict[str, object]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
