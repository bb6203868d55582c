"""InSS' problem (1) as a choice of columns: a column puts one replica of a model on a GPU with a share and a batch.

A model wants so many columns, at most one on a GPU; what finds no place is left out, and so are columns that break a
promise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole, most_of

DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Knapsack:
    """One element per column; `wanted` by model, rooms by GPU."""

    model: Whole
    gpu: Whole
    share_pct: Floats
    memory_mib: Floats
    throughput_rps: Floats
    served: Floats
    """Part of its replica's rate that a column serves: 1 where it keeps (1d)."""
    wanted: Whole
    share_room_pct: Floats
    memory_room_mib: Floats
    staying_rps: Floats | float = 0.0
    """What a column counts more because its service stands on its GPU; at most its throughput."""

    def __len__(self) -> int:
        return len(self.model)

    @property
    def worth(self) -> Floats:
        """Serving comes before throughput: a replica served weighs more than all the throughput there can be."""
        best = most_of(self.throughput_rps, self.model, np.zeros(len(self.wanted)))
        return np.asarray(
            self.throughput_rps + self.staying_rps + (1.0 + 2.0 * float(best @ self.wanted)) * self.served
        )

    def capacity_rps(self, chosen: Flags) -> float:
        """The objective of problem (1)."""
        return float(self.throughput_rps[chosen].sum())

    def feasible(self, chosen: Flags) -> bool:
        """Whether (1a), (1b) and (1e) hold."""
        gpus, models = len(self.share_room_pct), len(self.wanted)
        share = np.bincount(self.gpu[chosen], weights=self.share_pct[chosen], minlength=gpus)
        memory = np.bincount(self.gpu[chosen], weights=self.memory_mib[chosen], minlength=gpus)
        counts = np.bincount(self.model[chosen], minlength=models)
        places = np.unique(self.model[chosen] * gpus + self.gpu[chosen], return_counts=True)[1]
        return bool(
            (share <= self.share_room_pct + DUST).all()
            and (memory <= self.memory_room_mib + DUST).all()
            and (counts <= self.wanted).all()
            and (places <= 1).all()
        )
