"""The physical shape of a replica's latency alone: ten parameters, one formula.

With b inputs, a share s of the device's SMs (1 = all) and slowness c = (highest clock / clock) of the SMs:

    width    = fill * b^growth                                    SMs (share of the device) that b inputs can keep busy
    compute  = work_ms * b * (s^-sharpness + width^-sharpness)^(1/sharpness)
    device   = launch_ms + input_ms * b + (compute + weights_ms / s) * c^clock
    latency  = (host_ms^floor + device^floor)^(1/floor)           the host prepares the next batch beside the device

so that latency never rises with share or clock and never falls with batch, whatever the parameters. Everything learned
is on the learned scale: logarithms, for `growth` its logit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from solvers.domain.arrays import Floats

SHAPE_VERSION = "1"
"""Of the list and the formula; parameters of another version mean something else."""

NAMES = (
    "host_ms", "launch_ms", "input_ms", "work_ms", "weights_ms", "fill", "growth", "sharpness", "floor", "clock",
)  # fmt: skip
"""In this order everywhere. `work_ms`: one input on the whole device at its highest clock if it could fill it;
`weights_ms`: work of a batch that does not depend on its size; `fill`: share of the device that one input keeps busy
(1 = all); `growth`: within 0 and 1; the last three are exponents.
"""

COUNT = len(NAMES)
TIMES = slice(0, 5)
"""The parameters that are times: a model twice as slow in everything has them all doubled."""
WORK, WEIGHTS, FILL, GROWTH, SHARPNESS, FLOOR, CLOCK = range(3, 10)
_LOGIT_MARGIN = 1e-6


def learned(natural: Sequence[float] | Floats) -> Floats:
    """Parameters in units on the scale that they are learned on."""
    values = np.asarray(natural, dtype=np.float64)
    found = np.log(np.maximum(values, 1e-12))
    growth = np.clip(values[..., GROWTH], _LOGIT_MARGIN, 1 - _LOGIT_MARGIN)
    found[..., GROWTH] = np.log(growth / (1 - growth))
    return found


def natural(parameters: Sequence[float] | Floats) -> Floats:
    """Parameters in units from the learned scale."""
    values = np.asarray(parameters, dtype=np.float64)
    found = np.exp(values)
    found[..., GROWTH] = 1 / (1 + np.exp(-values[..., GROWTH]))
    return found


def log_latency(parameters: Floats, batch: ArrayLike, share: ArrayLike, slowness: ArrayLike = 1.0) -> Floats:
    """Logarithm of latency in ms. `parameters` are on the learned scale, the last axis runs over `NAMES`; what comes
    before it broadcasts against the other arguments. `share` is a fraction, `slowness` highest clock over clock.
    """
    return log_parts(parameters, batch, share, slowness)[0]


def log_parts(
    parameters: Floats, batch: ArrayLike, share: ArrayLike, slowness: ArrayLike = 1.0
) -> tuple[Floats, Floats, Floats]:
    """Logarithm of latency, and which part of it (0..1) the device bounds, and which part of the device's time needs
    SMs.
    """
    host, launch, per_input, work, weights, fill, growth, sharpness, floor, clock = np.moveaxis(
        natural(np.asarray(parameters)), -1, 0
    )
    inputs, part = np.asarray(batch, dtype=np.float64), np.asarray(share, dtype=np.float64)
    log_width = np.log(fill) + growth * np.log(inputs)
    log_narrow = np.logaddexp(-sharpness * np.log(part), -sharpness * log_width) / sharpness
    busy = (work * inputs * np.exp(log_narrow) + weights / part) * np.asarray(slowness, dtype=np.float64) ** clock
    device = launch + per_input * inputs + busy
    log_device = np.log(device)
    log_total = np.logaddexp(floor * np.log(host), floor * log_device) / floor
    return log_total, np.exp(floor * (log_device - log_total)), busy / device
