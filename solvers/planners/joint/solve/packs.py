"""Whole devices packed at random by value: many patterns at once for a few workloads.

Owns the packing. Every pack is one device of some kind; item by item it takes the replica of most value per share,
distorted by chance so that packs differ. Values are by duals, for no more than what is still asked. It refuses to judge
and to choose among packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import Floats, Whole

_CROWDED = 0.4
"""Pressure of the others that items are valued at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """For whom to pack: variants, and by workload what a part of the rate is worth and how much is still asked."""

    variants: Whole
    usd: Floats
    part: Floats


class Packs:
    """Values of items are kept by kind and variant as they are needed."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self._known: dict[int, tuple[Floats, Floats]] = {}

    def draw(self, wanted: Wanted, kinds: Whole, rng: np.random.Generator) -> Patterns:
        """One pack for each of these kinds."""
        problem, width = self.judge.problem, self.judge.width
        shares = problem.shares_pct
        variants = np.full((len(kinds), width), -1, dtype=np.int64)
        held = np.zeros((len(kinds), width), dtype=np.int64)
        if not len(wanted.variants):
            return Patterns(kind=kinds, variants=variants, shares_pct=held)
        names, place = np.unique(kinds, return_inverse=True)
        value, memory = self._values(names, wanted)
        owner = self.judge.workload[wanted.variants]
        count = len(wanted.variants)
        noise = rng.uniform(0.3, 1.0, (len(kinds), count))
        free = np.full(len(kinds), 100)
        room = self.judge.room_mib[problem.kind_pool[kinds]]
        taken = np.zeros((len(kinds), count), dtype=bool)
        clients = self.judge.clients[problem.kind_pool[kinds]]
        for step in range(width):
            score = value[place] / shares[None, None, :] * noise[:, :, None]
            fits = (shares[None, None, :] <= free[:, None, None]) & (memory[place] <= room[:, None, None])
            fits &= ~taken[:, :, None] & (step < clients)[:, None, None]
            score = np.where(fits, score, 0.0).reshape(len(kinds), -1)
            best = np.argmax(score, axis=1)
            packed = np.flatnonzero(score[np.arange(len(kinds)), best] > 0)
            if not len(packed):
                break
            item, size = best[packed] // len(shares), best[packed] % len(shares)
            variants[packed, step], held[packed, step] = wanted.variants[item], shares[size]
            free[packed] -= shares[size]
            room[packed] -= memory[place[packed], item, size]
            taken[packed] |= owner[None, :] == owner[item][:, None]
        return Patterns(kind=kinds, variants=variants, shares_pct=held)

    def _values(self, kinds: Whole, wanted: Wanted) -> tuple[Floats, Floats]:
        """Kind x variant x share: worth and memory of an item."""
        rate = self.judge.problem.rate_rps[self.judge.workload[wanted.variants]][:, None]
        work = self.judge.workload[wanted.variants]
        values, memories = [], []
        for kind in kinds.tolist():
            if kind not in self._known:
                self._known[kind] = self._items(kind)
            capacity, memory = (item[wanted.variants] for item in self._known[kind])
            part = np.minimum(capacity / np.maximum(rate, 1e-12), wanted.part[work][:, None])
            values.append(part * wanted.usd[work][:, None])
            memories.append(memory)
        return np.array(values), np.array(memories)

    def _items(self, kind: int) -> tuple[Floats, Floats]:
        """Variant x share: capacity beside some neighbours and memory."""
        problem = self.judge.problem
        table, shares = int(problem.kind_table[kind]), problem.shares_pct
        variants = np.repeat(np.arange(len(problem.variants)), len(shares))
        slow = problem.crowd[table] * (1 + problem.sensitivity[table] * _CROWDED)
        rows = Patterns(
            kind=np.full(len(variants), kind),
            variants=variants[:, None],
            shares_pct=np.tile(shares, len(problem.variants))[:, None],
        )
        served = self.judge.judge_slowed(rows, slow[variants][:, None])
        shape = (len(problem.variants), len(shares))
        capacity = np.where(served.lawful, served.capacity_rps[:, 0], 0.0).reshape(shape)
        return capacity, served.memory_mib[:, 0].reshape(shape)
