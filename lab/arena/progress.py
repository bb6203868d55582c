"""How far the runs are, for people: a bar on a terminal, a plain line for each finished run elsewhere.

Owns what is said on standard error while runs go on.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from lab.arena.running import Began, Event, RunEnded, RunPart, RunTask

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def name_of(task: RunTask) -> str:
    """A run in words."""
    return f"{task.scenario} × {task.entry.contender.label}, seed {task.seed}"


class ProgressLines:
    """One line for each finished run."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is left open."""

    def __call__(self, event: Event) -> None:
        """Say it where a run ended."""
        if isinstance(event, RunEnded):
            self._done += 1
            error = event.finished.record.error
            said = f"failed: {error}" if error else f"{event.finished.wall_s:.1f} s"
            sys.stderr.write(f"[{self._done}/{self._total}] {name_of(event.task)}: {said}\n")
            sys.stderr.flush()


class Bars:
    """A bar for all runs, and one for each that is under way."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars: Progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=Console(stderr=True, highlight=False), transient=False,
        )  # fmt: skip
        self._all = self._bars.add_task("runs", total=total)
        self._under_way: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Move the bars."""
        key = event.task.key
        if isinstance(event, Began):
            self._under_way[key] = self._bars.add_task(f"  {name_of(event.task)}", total=100)
        elif isinstance(event, RunPart):
            self._bars.update(self._under_way[key], completed=round(100 * event.part))
        else:
            if key in self._under_way:
                self._bars.remove_task(self._under_way.pop(key))
            self._bars.advance(self._all)
            if event.finished.record.error:
                self._bars.console.print(f"{name_of(event.task)} failed: {event.finished.record.error}")


def teller(total: int) -> Bars | ProgressLines:
    """What suits standard error."""
    return Bars(total) if sys.stderr.isatty() else ProgressLines(total)
