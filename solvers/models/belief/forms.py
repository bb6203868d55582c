"""Forms: how a measured quantity of a replica alone depends on batch, share and clock, up to a few parameters.

Beside latency's form (`shape`) are those of power and memory, with the derivatives that learning needs. A form's
logarithm is learned; which way it may move with batch, share and slowness belongs to it, and answers keep to that.

Power above idle: still_w + reach_w * min(share, fill * batch^growth) * c^-clock, with a soft minimum. Memory:
weights_mib + input_mib * batch. Both are learned on logarithms (`growth` on its logit), as the shape of latency is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.device import GpuType
from solvers.domain.workload import ModelVariant
from solvers.models.base import Origin
from solvers.models.belief import shape
from solvers.models.belief.prior import LogValue, ShapePrior, host_bound, sensitivity

Start = Callable[[tuple[Floats, Floats, Floats], Floats, Floats], Floats]
"""(configurations, logarithms there, the prior's mean) -> parameters."""

_STEP = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`rises` says for batch, share and slowness whether the quantity may only rise (1) or only fall (-1) with it,
    or does not depend on it (0).
    """

    name: str
    log_value: LogValue
    rises: tuple[int, int, int]
    has_floor: bool = False
    """Whether there are regions that more share does not change, which scatter in their own way."""
    second_start: Start | None = None
    """Where else a search for the parameters should start."""

    def starts(self, at: tuple[Floats, Floats, Floats], target: Floats, mean: Floats) -> tuple[Floats, ...]:
        """Where a search starts beside the prior's mean."""
        return (self.second_start(at, target, mean),) if self.second_start and len(target) else ()

    def sensitivity(self, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
        """Derivatives of the logarithm by the parameters, one row per configuration."""
        return sensitivity(self.log_value, parameters, at)

    def elasticity(self, parameters: Floats, at: tuple[Floats, Floats, Floats]) -> Floats:
        """How much of the quantity follows the share: 0 none, 1 all of it."""
        batch, share, slowness = at
        if not self.has_floor:
            return np.ones(np.broadcast(batch, share).shape)
        more = self.log_value(parameters, batch, share * np.exp(_STEP), slowness)
        less = self.log_value(parameters, batch, share * np.exp(-_STEP), slowness)
        return np.asarray(np.clip(np.abs(less - more) / (2 * _STEP), 0.0, 1.0))


def _log_power(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Floats:
    still, reach, fill, growth, clock = np.moveaxis(parameters, -1, 0)
    exponent = 1 / (1 + np.exp(-growth))
    width = fill + exponent * np.log(batch)
    busy = -np.logaddexp(-2 * np.log(share), -2 * width) / 2
    return np.asarray(np.logaddexp(still, reach + busy - np.exp(clock) * np.log(slowness)))


def _log_memory(parameters: Floats, batch: Floats, share: Floats, slowness: Floats) -> Floats:
    weights, per_input = np.moveaxis(parameters, -1, 0)
    return np.asarray(np.logaddexp(weights, per_input + np.log(batch)) + 0.0 * share * slowness)


LATENCY = Form(name="latency", log_value=shape.log_latency, rises=(1, -1, 1), has_floor=True, second_start=host_bound)
POWER = Form(name="power", log_value=_log_power, rises=(1, 1, -1))
MEMORY = Form(name="memory", log_value=_log_memory, rises=(1, 0, 0))


def _independent(mean: list[float], spread: list[float], source: str) -> ShapePrior:
    return ShapePrior(
        mean=np.array(mean), covariance=np.diag(np.array(spread) ** 2), origin=Origin.SCALED, source=source
    )


def power_prior(gpu_type: GpuType | None, highest_w: float) -> ShapePrior | None:
    """Power from the specifications, else from the highest power seen (NaN: none); None when neither is known."""
    if gpu_type is None and not highest_w > 0:
        return None
    if gpu_type is None:
        full, spread, source = highest_w, 0.5, "measured powers"
    else:
        full, spread, source = 0.75 * (gpu_type.tdp_w - gpu_type.idle_w), 0.4, "the GPU type's power limit"
    return _independent([np.log(0.12 * full), np.log(full), -0.7, 0.0, 0.4], [0.8, spread, 1.0, 1.0, 0.4], source)


def memory_prior(model: ModelVariant | None, lowest_mib: float) -> ShapePrior | None:
    """Memory from the model's description, else from the lowest seen (NaN: none); None when neither is known."""
    if model is None and not lowest_mib > 0:
        return None
    if model is None:
        return _independent([np.log(0.8 * lowest_mib), np.log(0.05 * lowest_mib)], [0.7, 2.0], "measured memory")
    # A process holds some hundred MiB of context beside the weights, whatever the model.
    resident = model.memory_mib_weights + 450.0
    if model.memory_mib_per_input > 0:
        mean, spread = [np.log(resident), np.log(model.memory_mib_per_input)], [0.35, 0.6]
    else:
        mean, spread = [np.log(resident), np.log(0.02 * resident)], [0.35, 1.5]
    return _independent(mean, spread, "the model's description")
