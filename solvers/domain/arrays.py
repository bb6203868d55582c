"""Names for arrays of numbers, of whole numbers and of yes or no; and random numbers, a stream for every purpose, so
that an extra draw in one place never disturbs another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy


Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Streams:
    """A seed from which every named stream follows."""

    seed: int

    def stream(self, purpose: str) -> numpy.random.Generator:
        """Generator for one purpose; the same seed and purpose always give the same numbers."""
        import numpy as np  # the agent's light install has no numpy

        digest = hashlib.sha256(f"{self.seed}:{purpose}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))
