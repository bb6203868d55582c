"""One line of the comparison, and how it is timed and printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A case. `peer` is what was published or measured of the other system, on the same inputs only where
    `same_inputs`; `yardstick` is another method tried here on our inputs.
    """

    case: str
    unit: str
    peer: float | None
    same_inputs: bool
    yardstick: float | None
    yardstick_is: str
    ours: float
    bound: float | None
    unserved: int
    seconds: float
    note: str = ""

    @property
    def gap_pct(self) -> float | None:
        """Of the answer above the bound."""
        if self.bound is None:
            return None
        return 100 * max(0.0, self.ours - self.bound) / max(1e-12, abs(self.ours))

    def plain(self) -> dict[str, str | float | int | bool | None]:
        """For the file."""
        return {**asdict(self), "gap_pct": self.gap_pct}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The answer, and processor seconds: others may compute beside us."""
    begun = time.process_time()
    answer = work()
    return answer, time.process_time() - begun


def table(records: list[Record]) -> str:
    """Markdown."""
    lines = [
        "| case | peer | yardstick here | ours | bound | gap | unserved | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in records:
        peer = "–" if item.peer is None else f"{_number(item.peer)}{'' if item.same_inputs else ' (other draw)'}"
        yardstick = "–" if item.yardstick is None else f"{_number(item.yardstick)} ({item.yardstick_is})"
        gap = "–" if item.gap_pct is None else f"{item.gap_pct:.3f} %"
        bound = "–" if item.bound is None else _number(item.bound)
        lines.append(
            f"| {item.case} | {peer} | {yardstick} | {_number(item.ours)} {item.unit} | {bound} | {gap} "
            f"| {item.unserved} | {item.seconds:.3f} |"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".")
