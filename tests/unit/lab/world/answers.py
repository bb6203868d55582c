"""What became of requests, in numbers."""

from __future__ import annotations

import numpy as np

from lab.world.queues import RequestsOutcome
from solvers.domain.arrays import Floats


def latency_ms(out: RequestsOutcome) -> Floats:
    """Of each request; nan for what was dropped or still waits."""
    return np.asarray(1000.0 * (out.finish_s - out.arrival_s))


def completed(out: RequestsOutcome) -> int:
    return int(np.count_nonzero(out.batch))


def late(out: RequestsOutcome, limit_ms: float) -> int:
    """Answers later than this; dropped requests are not in here."""
    return int(np.count_nonzero(latency_ms(out) > limit_ms * (1.0 + 1e-9)))
