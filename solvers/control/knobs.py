"""The steps a governor may take with one knob: where a batch or a clock goes next, and which shorter steps there are.

Owns step sizes and nothing else. Clocks are always values of the table it is given; a step that leaves the range ends
at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import ceil


def batch_step(batch: int, part: float) -> int:
    """By how much a batch changes: a part of itself, one at least."""
    return max(1, int(part * batch))


def batches_above(batch: int, highest: int, part: float) -> tuple[int, ...]:
    """Larger batches to try, the full step first, then halves of it."""
    return (
        tuple(dict.fromkeys(min(highest, batch + step) for step in _halves(batch_step(batch, part))))
        if (batch < highest)
        else ()
    )


def batch_below(batch: int, lowest: int, part: float) -> int:
    """The next smaller batch."""
    return max(lowest, batch - batch_step(batch, part))


def batch_well_below(batch: int, lowest: int, part: float) -> int:
    """The same with the step rounded up, so that small batches fall as quickly as large ones."""
    return max(lowest, batch - max(1, ceil(part * batch)))


def clocks_above(clock_mhz: int, table_mhz: Sequence[int], step_mhz: int) -> tuple[int, ...]:
    """Higher clocks to try, the full step first, then halves of it."""
    above = [each for each in table_mhz if each > clock_mhz]
    if not above:
        return ()
    nearest = [_nearest(above, clock_mhz + step) for step in _halves(step_mhz)]
    return tuple(dict.fromkeys([*nearest, above[0]]))


def clock_below(clock_mhz: int, table_mhz: Sequence[int], step_mhz: int) -> int:
    """The next lower clock; the lowest stays."""
    below = list(takewhile(lambda each: each < clock_mhz, table_mhz))
    return _nearest(below, clock_mhz - step_mhz) if below else clock_mhz


def _nearest(clocks_mhz: Sequence[int], wanted_mhz: int) -> int:
    """The clock nearest to the wanted one, the lower of two."""
    return min(clocks_mhz, key=lambda each: (abs(each - wanted_mhz), each))


def _halves(step: int) -> tuple[int, ...]:
    steps = []
    while step >= 1:
        steps.append(step)
        step //= 2
    return tuple(steps)
