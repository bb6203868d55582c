"""A model of replicas alone that only looks up what was measured: the denominator of every measured slowdown.

Owns the exact look-up by model, GPU type, batch, share and clock. It lets interference be judged with nothing wrong in
the part alone, and refuses to know anything between the cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Answer, ModelSpec, Origin, Quantity, Queries, Samples, refuse_quantity

_Key = tuple[str, str, float, float, float]
_RELATIVE_STD = 1e-3


def _keys(queries: Queries) -> Iterator[_Key]:
    clocks = np.nan_to_num(queries.clock_mhz, nan=-1.0)
    for row in range(len(queries)):
        model, gpu_type = queries.models[queries.model[row]], queries.gpu_types[queries.gpu_type[row]]
        batch, share_pct = round(float(queries.batch[row]), 6), round(float(queries.share_pct[row]), 6)
        yield model, gpu_type, batch, share_pct, round(float(clocks[row]), 3)


class MeasuredSolo:
    """The measured cells. A value."""

    def __init__(self, samples: Samples) -> None:
        self._latency_ms = dict(zip(_keys(samples.queries), samples.latency_ms.tolist(), strict=True))

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(name="measured", version="1", formula="look-up of measured cells")

    def fit(self, samples: Samples) -> Self:
        return type(self)(samples)

    def update(self, samples: Samples) -> Self:
        return type(self)(samples)

    def latency_ms(self, queries: Queries) -> Floats:
        """Measured latency; NaN where nothing was measured."""
        return np.array([self._latency_ms.get(key, np.nan) for key in _keys(queries)])

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        refuse_quantity(self.spec, quantity)
        mean = self.latency_ms(queries)
        known = np.isfinite(mean)
        return Answer(
            mean=mean,
            std=_RELATIVE_STD * mean,
            support=known,
            distance=np.where(known, 0.0, np.inf),
            origin=np.full(len(mean), Origin.MEASURED, dtype=np.int8),
        )

    def dump(self) -> Plain:
        return None
