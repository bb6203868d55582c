"""What a check is: a look that is given up in time, and one line of what was found and what to do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from app.cli.output import sentence_of
from app.settings import Settings

TOLD_MAX = 300
CLOCK_S_WELL = 3.0


class Grade(StrEnum):
    """`wrong` ends in status 1; `unseen` could not be looked at, which proves nothing."""

    WELL = "well"
    ODD = "odd"
    WRONG = "wrong"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a look found. `todo` is empty where all is well."""

    state: Grade
    found: str
    todo: str = ""


well, odd, wrong, unseen = (partial(Symptom, grade) for grade in Grade)


@dataclass(frozen=True, slots=True)
class Check:
    """`todo` is for when the look fails or does not come back."""

    name: str
    look: Callable[[], Symptom]
    todo: str = ""

    def symptom(self, limit_s: float) -> Symptom:
        """What is found within the limit. A look that hangs is left behind in a thread that ends with the process."""
        found: queue.Queue[Symptom] = queue.Queue()
        threading.Thread(target=lambda: found.put(self._seen()), name=self.name, daemon=True).start()
        try:
            return found.get(timeout=limit_s)
        except queue.Empty:
            return wrong(f"no answer within {limit_s:g} s", self.todo)

    def _seen(self) -> Symptom:
        try:
            return self.look()
        except Exception as error:  # noqa: BLE001 - whatever a look fails with is what it found
            told = " ".join((sentence_of(error) or f"{type(error).__name__}: {error}").split())
            return wrong(told[:TOLD_MAX], self.todo)


def told_skew(ahead_s: float, whose: str, settings: Settings) -> Symptom:
    """A clock beside this machine's."""
    told = f"{whose} clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) >= settings.report_clock_skew_s:
        return wrong(told, "set both by NTP: reports from a clock so far ahead are refused")
    return well(told) if abs(ahead_s) <= CLOCK_S_WELL else odd(told, "set both by NTP")
