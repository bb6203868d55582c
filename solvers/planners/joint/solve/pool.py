"""The pool of columns: every pattern that any round found, judged and kept once.

Owns the list and its order, which is that of the master's columns. It refuses to judge and to price.
"""

from __future__ import annotations

import numpy as np

from solvers.planners.joint.solve.sets import Judged, Sets, joined, stacked
from solvers.problems.joint import Flags, Whole


class Pool:
    """Judged patterns without doubles."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._seen: set[bytes] = set()
        self._sets: list[Sets] = []
        self._judged: list[Judged] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def fresh(self, sets: Sets) -> Flags:
        """Which rows are new, the first of equal ones only. Remembers them."""
        rows = np.concatenate([sets.kind[:, None], sets.member, sets.share], axis=1).astype(np.int32)
        new = np.zeros(len(sets), dtype=np.bool_)
        data, size = rows.tobytes(), rows.shape[1] * rows.itemsize
        for index in range(len(rows)):
            key = data[index * size : (index + 1) * size]
            if key not in self._seen:
                self._seen.add(key)
                new[index] = True
        return new

    def add(self, sets: Sets, judged: Judged) -> None:
        """Append; callers asked `fresh` before."""
        self._sets.append(sets)
        self._judged.append(judged)
        self.count += len(sets)

    @property
    def sets(self) -> Sets:
        """All of them, in the order of the master's columns."""
        if len(self._sets) != 1:
            self._sets = [joined(self._sets, self._width)]
        return self._sets[0]

    @property
    def judged(self) -> Judged:
        """The same, judged."""
        if len(self._judged) != 1:
            self._judged = [stacked(self._judged) if self._judged else _nothing(self._width)]
        return self._judged[0]

    def take(self, rows: Whole) -> tuple[Sets, Judged]:
        """Some of them."""
        return self.sets.take(rows), self.judged.take(rows)


def _nothing(width: int) -> Judged:
    """Of no candidate: where no pattern at all is lawful."""
    by_member, by_row = np.zeros((0, width)), np.zeros(0)
    return Judged(
        ok=by_row.astype(np.bool_),
        rate=by_member,
        power=by_member,
        batch=by_member.astype(np.int64),
        usd=by_row,
        draw=by_row,
    )
