"""FTRL-Proximal, the per-coordinate online learner of OLTunes (Algorithm 1).

Owns the update of the two accumulators of every coordinate and the weight that follows from them. It refuses to know
what the coordinates mean: callers hand in gradients, as arrays of any one shape, and the weights come back as that.

Symbols: z accumulated gradient, n accumulated squared gradient, eta learning rate, zeta stability, lambda_1 and
lambda_2 the two regularisations. The printed algorithm adds up plain gradients, which makes it dual averaging; the
canonical form also takes sigma * w off, so that each step is regularised around the weight before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.value import check_not_negative, check_positive


class FtrlMode(StrEnum):
    """Which accumulation: the one of the literature or the one printed in the paper."""

    CANONICAL = "canonical"
    PAPER = "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class FtrlSettings:
    """Hyper-parameters, the same for all coordinates."""

    eta: float
    zeta: float
    lambda_1: float
    lambda_2: float
    mode: FtrlMode = FtrlMode.CANONICAL

    def __post_init__(self) -> None:
        check_positive("eta", self.eta)
        check_positive("zeta", self.zeta)
        check_not_negative("lambda_1", self.lambda_1)
        check_not_negative("lambda_2", self.lambda_2)


def weights(z: Floats, n: Floats, settings: FtrlSettings) -> Floats:
    """The weight of every coordinate; 0 where its gradients have not added up to more than lambda_1."""
    rate = (settings.zeta + np.sqrt(n)) / settings.eta + settings.lambda_2
    # Shrinking |z| by lambda_1 down to 0 at most is both branches of the printed rule at once.
    return np.asarray(-np.sign(z) * np.maximum(np.abs(z) - settings.lambda_1, 0.0) / rate)


def accumulated(z: Floats, n: Floats, gradient: Floats, settings: FtrlSettings) -> tuple[Floats, Floats]:
    """Both accumulators after one gradient per coordinate; coordinates with gradient 0 stay as they are."""
    n_after = n + gradient**2
    if settings.mode is FtrlMode.PAPER:
        return z + gradient, n_after
    sigma = (np.sqrt(n_after) - np.sqrt(n)) / settings.eta
    return z + gradient - sigma * weights(z, n, settings), n_after
