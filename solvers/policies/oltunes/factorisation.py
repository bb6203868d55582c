"""The factorisation machine of OLTunes (Eq. 2) over the features of Table 3, taught by FTRL-Proximal.

Evaluation is linear in the active features times the rank, gradients are of the squared error (Eq. 3), and the state is
what learning goes on from. A row names its active features and their values, padded with feature 0, the bias, which
takes part in no interaction. Online learning is one FTRL step per row; fitting goes over rows several times. Targets
come standardised.

Symbols: w linear weights and V (rank m_f) interaction factors lie side by side in one array of coordinates, feature x
target x (1 + m_f). Starting V at 0 would keep it there, so each factor starts at a small random centre and FTRL learns
the distance from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Floats, Whole
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


BIAS = 0
_CENTRE_STD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRows:
    """Sparse features: the active ones of every row and their values, padded with feature 0 of value 0."""

    index: Whole
    value: Floats

    def __len__(self) -> int:
        return len(self.index)

    def beside(self, other: FeatureRows) -> FeatureRows:
        """The features of both in every row."""
        return FeatureRows(
            index=np.concatenate([self.index, other.index], axis=1),
            value=np.concatenate([self.value, other.value], axis=1),
        )

    def take(self, rows: Whole) -> FeatureRows:
        """Some of the rows."""
        return FeatureRows(index=self.index[rows], value=self.value[rows])

    def dense(self, width: int) -> Floats:
        """All features of every row as a matrix; features beyond `width` are left out."""
        known = self.index < width
        matrix = np.zeros((len(self), width))
        row = np.broadcast_to(np.arange(len(self))[:, None], self.index.shape)
        np.add.at(matrix, (row[known], self.index[known]), self.value[known])
        return matrix


@dataclass(frozen=True, kw_only=True)
class FactorisationMachine:
    """A machine as a value: learning gives a new one. `z` and `n` are FTRL's accumulators of every coordinate."""

    settings: FtrlSettings
    seed: int
    centre: Floats
    z: Floats
    n: Floats

    @staticmethod
    def fresh(*, targets: int, rank: int, settings: FtrlSettings, seed: int) -> FactorisationMachine:
        """A machine that knows the bias alone."""
        empty = np.zeros((1, targets, 1 + rank))
        return FactorisationMachine(settings=settings, seed=seed, centre=empty, z=empty, n=empty)

    @property
    def width(self) -> int:
        """How many features it knows."""
        return len(self.centre)

    @cached_property
    def coordinates(self) -> Floats:
        """Weights and factors now."""
        return self.centre + weights(self.z, self.n, self.settings)

    def widened(self, width: int) -> FactorisationMachine:
        """The same machine with more features, all of them untaught."""
        if width <= self.width:
            return self
        shape = self.centre.shape[1:]
        added = np.zeros((width - self.width, *shape))
        # A stream of its own for every feature: its centre does not depend on how many came along with it.
        for row, feature in enumerate(range(self.width, width)):
            rng = np.random.default_rng((self.seed, feature))
            added[row, :, 1:] = rng.normal(0.0, _CENTRE_STD, (shape[0], shape[1] - 1))
        zeros = np.zeros_like(added)
        return replace(
            self,
            centre=np.concatenate([self.centre, added]),
            z=np.concatenate([self.z, zeros]),
            n=np.concatenate([self.n, zeros]),
        )

    def recentred(self) -> FactorisationMachine:
        """What is known now as the new centre, with learning rates as at the beginning."""
        zeros = np.zeros_like(self.z)
        return replace(self, centre=self.coordinates, z=zeros, n=zeros)

    def predict(self, rows: FeatureRows) -> Floats:
        """Every target of every row. Features must be below `width`."""
        return _evaluated(self.coordinates, rows)[0]

    def taught(self, rows: FeatureRows, targets: Floats, rows_per_step: int = 1) -> FactorisationMachine:
        """One pass over the rows in their order, one FTRL step for each `rows_per_step` of them."""
        z, n, coordinates = self.z.copy(), self.n.copy(), self.coordinates.copy()
        for start in range(0, len(rows), rows_per_step):
            part = slice(start, start + rows_per_step)
            active = FeatureRows(index=rows.index[part], value=rows.value[part])
            touched, gradient = _gradient(coordinates, active, targets[part])
            z[touched], n[touched] = accumulated(z[touched], n[touched], gradient, self.settings)
            coordinates[touched] = self.centre[touched] + weights(z[touched], n[touched], self.settings)
        return replace(self, z=z, n=n)


def _evaluated(coordinates: Floats, rows: FeatureRows) -> tuple[Floats, Floats, Floats]:
    """Targets per row, and what gradients need again: the factors times the values, and their sums per row."""
    active = coordinates[rows.index] * rows.value[:, :, None, None]
    factors = active[..., 1:]
    sums = factors.sum(axis=1)
    pairs = 0.5 * (np.square(sums) - np.square(factors).sum(axis=1)).sum(axis=-1)
    return active[..., 0].sum(axis=1) + pairs, factors, sums


def _gradient(coordinates: Floats, rows: FeatureRows, targets: Floats) -> tuple[Whole, Floats]:
    """The features that are active in some row, and the gradient of the squared error by their coordinates."""
    predicted, factors, sums = _evaluated(coordinates, rows)
    slope = 2.0 * (predicted - targets)[:, None, :, None] * rows.value[:, :, None, None]
    each = np.concatenate([slope, slope * (sums[:, None] - factors)], axis=-1)
    touched, position = np.unique(rows.index, return_inverse=True)
    gradient = np.zeros((len(touched), *each.shape[2:]))
    np.add.at(gradient, position.ravel(), each.reshape(-1, *each.shape[2:]))
    gradient[touched == BIAS, :, 1:] = 0.0
    return touched, gradient
