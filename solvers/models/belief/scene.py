"""Groups of replicas laid out for learning and answering: loads of members, and ordered pairs of neighbours by kind.

Pairs are walked kind by kind, a bounded number at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats
from solvers.models.base import Groups
from solvers.models.belief.encounters import Kind, places
from solvers.models.belief.pressure import OVERSOLD_COST, Edges, Features, Loads, oversold

Rows = NDArray[np.intp]
CHUNK_EDGES = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Groups with the loads of their members and the ordered pairs in them."""

    groups: Groups
    loads: Loads
    edges: Edges
    beyond: Floats

    @staticmethod
    def of(groups: Groups, loads: Loads) -> Scene:
        edges = Edges.of(groups)
        return Scene(groups=groups, loads=loads, edges=edges, beyond=oversold(groups, edges, loads.share))

    def kinds(self, wanted: Flags | None = None) -> Iterator[tuple[Kind, Rows]]:
        """Edges by GPU type and models, a bounded number at once; only those of the members wanted."""
        members, edges = self.groups.members, self.edges
        count = max(1, len(members.models))
        code = (members.gpu_type[edges.own] * count + members.model[edges.own]) * count + members.model[edges.other]
        order = np.argsort(code, kind="stable")
        if wanted is not None:
            order = order[wanted[edges.own[order]]]
        starts = np.flatnonzero(np.diff(code[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            own, other = int(edges.own[rows[0]]), int(edges.other[rows[0]])
            gpu_type = members.gpu_types[int(members.gpu_type[own])]
            kind = (gpu_type, members.models[int(members.model[own])], members.models[int(members.model[other])])
            for first in range(0, len(rows), CHUNK_EDGES):
                yield kind, rows[first : first + CHUNK_EDGES]

    def features(self, rows: Rows, reach: tuple[float, float, float, float]) -> Floats:
        """Feature matrix of some edges. Batch and share stay within `reach`."""
        ends = [self.loads.take(end[rows]) for end in (self.edges.own, self.edges.other)]
        low_batch, high_batch, low_share, high_share = reach
        own, other = (
            replace(
                end, batch=np.clip(end.batch, low_batch, high_batch), share=np.clip(end.share, low_share, high_share)
            )
            for end in ends
        )
        return Features.of(own, other, self.beyond[rows]).matrix()

    def places(self, rows: Rows) -> Floats:
        """Where edges lie among encounters."""
        loads, own, other = self.loads, self.edges.own[rows], self.edges.other[rows]
        return places(loads.batch[own], loads.batch[other], loads.share[own], loads.share[other])

    def scale(self) -> Floats:
        """How much larger than beside ordinary neighbours slowdowns are, and so their noise."""
        return 1.0 + OVERSOLD_COST * self.over_edges(self.beyond)

    def over_edges(self, values: Floats) -> Floats:
        """Sum over every member's neighbours."""
        return np.asarray(np.bincount(self.edges.own, weights=values, minlength=len(self.groups)), dtype=np.float64)
