"""The pool of columns: every pattern that any round found, judged and kept once.

Owns the list and its order, which is that of the master's columns. It refuses to judge and to price.
"""

from __future__ import annotations

import numpy as np

from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.problems.joint import Flags


class Pool:
    """Judged patterns without doubles."""

    def __init__(self, nothing: Judged) -> None:
        """`nothing`: no pattern, judged."""
        self._nothing = nothing
        self._seen: set[bytes] = set()
        self._judged: list[Judged] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def fresh(self, found: Patterns) -> Flags:
        """Which rows are new, the first of equal ones only. Remembers them."""
        rows = found.keys.astype(np.int32)
        new = np.zeros(len(found), dtype=np.bool_)
        data, size = rows.tobytes(), rows.shape[1] * rows.itemsize
        for index in range(len(rows)):
            key = data[index * size : (index + 1) * size]
            if key not in self._seen:
                self._seen.add(key)
                new[index] = True
        return new

    def add(self, judged: Judged) -> None:
        """Append; callers asked `fresh` before."""
        self._judged.append(judged)
        self.count += len(judged)

    @property
    def judged(self) -> Judged:
        """All of them, in the order of the master's columns."""
        if len(self._judged) != 1:
            self._judged = [Judged.joined(self._judged) if self._judged else self._nothing]
        return self._judged[0]
