"""Named random streams: one independent generator per purpose, so that an extra draw in one place never disturbs
another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True)
class Streams:
    """A seed from which every named stream follows."""

    seed: int

    def stream(self, purpose: str) -> numpy.random.Generator:
        """Generator for one purpose; the same seed and purpose always give the same numbers."""
        import numpy as np  # the agent's light install has no numpy

        digest = hashlib.sha256(f"{self.seed}:{purpose}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))
