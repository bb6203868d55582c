"""InSS alone: running time by locally weighted regression over batch and share.

Owns the regression (a plane in the logarithms of batch, share and latency around every question; tricube kernel on
log batch and share; bandwidth by leaving out one sample at a time). Profiles give the whole latency of a batch and
neither bytes nor kernel counts, so transfer (t_d, t_f) and launching (t_s alone) are part of what the regression learns
(o_r absorbs them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import ModelSpec, Quantity
from solvers.models.parts.curves import CurveModel, Rows

SPEC = ModelSpec(
    name="inss",
    version="1",
    formula="locally weighted regression of running time over batch and share (InSS)",
    quantities=tuple(Quantity),
)
BANDWIDTHS = (0.12, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 3.0)
"""Reach of the kernel, in spans of the measured box."""
TREND = np.array([0.8, -0.7])
"""Exponents of batch and share that a plane leans on where its neighbours lie too close together to show any."""
_RIDGE = 1e-3
_CHUNK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlane:
    """The samples and the reach of the kernel. Kernel coordinates are scaled to the measured box."""

    points: Floats
    regressors: Floats
    target: Floats
    low: Floats
    span: Floats
    reach: float

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        """Latency in ms of every row."""
        places = (_kernel_coordinates(batch, share_pct) - self.low) / self.span
        regressors = _regressors(batch, share_pct)
        parts = [
            self.near(places[start : start + _CHUNK], regressors[start : start + _CHUNK])
            for start in range(0, len(batch), _CHUNK)
        ]
        return np.exp(np.concatenate(parts) + regressors @ TREND) * cycle if parts else np.zeros(0)

    def near(self, places: Floats, regressors: Floats, leave_out: bool = False) -> Floats:
        """Log latency beyond the trend. `leave_out`: the places are the points, and none may see itself."""
        away = np.linalg.norm(places[:, None, :] - self.points[None, :, :], axis=2)
        if leave_out:
            np.fill_diagonal(away, np.inf)
        # The kernel reaches at least the four nearest, so that a plane is defined everywhere.
        count = min(4, self.points.shape[0]) - 1
        least = np.partition(away, count, axis=1)[:, count]
        reach = np.maximum(self.reach, np.where(np.isfinite(least), 1.2 * least, self.reach))
        weights = (1.0 - np.minimum(away / reach[:, None], 1.0) ** 3) ** 3
        shifted = self.regressors[None, :, :] - regressors[:, None, :]
        design = np.concatenate([np.ones((*away.shape, 1)), shifted], axis=2)
        weighted = design * weights[:, :, None]
        normal = np.einsum("qpi,qpj->qij", weighted, design)
        centre = np.sum(weights * self.target, axis=1) / np.maximum(weights.sum(axis=1), 1e-12)
        right = np.einsum("qpi,qp->qi", weighted, self.target[None, :] - centre[:, None])
        normal = normal + np.diag([1e-9, _RIDGE, _RIDGE]) * np.maximum(normal[:, :1, :1], 1e-6)
        return np.asarray(centre + np.linalg.solve(normal, right[:, :, None])[:, 0, 0])


def _kernel_coordinates(batch: Floats, share_pct: Floats) -> Floats:
    return np.stack([np.log(batch), share_pct / 100.0], axis=1)


def _regressors(batch: Floats, share_pct: Floats) -> Floats:
    return np.log(np.stack([batch, share_pct], axis=1))


def learn(rows: Rows) -> LocalPlane:
    """The samples, with the reach that does best on samples left out."""
    coordinates = _kernel_coordinates(rows.batch, rows.share_pct)
    low = coordinates.min(axis=0)
    span = np.maximum(coordinates.max(axis=0) - low, 1e-6)
    regressors = _regressors(rows.batch, rows.share_pct)
    target = np.log(rows.value / rows.cycle) - regressors @ TREND
    places = (coordinates - low) / span
    planes = [
        LocalPlane(points=places, regressors=regressors, target=target, low=low, span=span, reach=reach)
        for reach in BANDWIDTHS
    ]
    if len(target) < 5:
        return planes[-1]
    wrong = [np.mean((plane.near(places, regressors, leave_out=True) - target) ** 2) for plane in planes]
    return planes[int(np.argmin(wrong))]


MODEL = CurveModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
