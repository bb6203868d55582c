"""A small plant for the governor: latency rises with batches and falls with the clock, power rises with both.

Owns plain formulas with the signs that measurements of shared GPUs show, and the loop that drives a governor on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from solvers.control.governor import MorakGovernor
from solvers.control.judging import first_state
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    DeviceState,
    GovernorDecision,
    GovernorSettings,
    ReplicaEnvelope,
    ReplicaReading,
    Setting,
)

CLOCKS_MHZ = tuple(range(300, 2101, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A replica of the plant: milliseconds of launch and of each input at the highest clock, watts at full load."""

    fixed_ms: float
    input_ms: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A GPU under constant load."""

    models: tuple[Model, ...]
    idle_w: float = 40.0
    neighbour_part: float = 0.05
    """Each neighbour slows by this part, the more the larger its batch."""

    def reading(self, setting: Setting) -> DeviceReading:
        """One period."""
        clock = setting.clock_mhz_sm / CLOCKS_MHZ[-1]
        fullness = [batch / (batch + 8.0) for batch in setting.batches]
        company = sum(fullness)
        power_w = self.idle_w + sum(
            model.power_w * full * clock**2.2 for model, full in zip(self.models, fullness, strict=True)
        )
        latencies = [
            (model.fixed_ms + model.input_ms * batch / clock) * (1.0 + self.neighbour_part * (company - full))
            for model, batch, full in zip(self.models, setting.batches, fullness, strict=True)
        ]
        return DeviceReading(
            power_w=power_w,
            replicas=tuple(
                ReplicaReading(replica=f"r{position}", latency_ms=latency) for position, latency in enumerate(latencies)
            ),
        )


def envelope_for(plant: Plant, cap_w: float | None, limits_ms: tuple[float | None, ...]) -> DeviceEnvelope:
    """All batches from 1 to 64 and all clocks."""
    share = 100 // len(plant.models)
    return DeviceEnvelope(
        uuid="GPU-0",
        power_w_cap=cap_w,
        clocks_mhz_sm=CLOCKS_MHZ,
        replicas=tuple(
            ReplicaEnvelope(
                replica=f"r{position}", batch_min=1, batch_max=64, latency_ms_limit=limit, share_pct_sm=share
            )
            for position, limit in enumerate(limits_ms)
        ),
    )


def start(envelope: DeviceEnvelope) -> DeviceState:
    """Morak's start: smallest batches, 600 MHz."""
    return first_state(envelope, Setting(batches=(1,) * len(envelope.replicas), clock_mhz_sm=600))


def drive(plant: Plant, envelope: DeviceEnvelope, state: DeviceState, periods: int) -> list[GovernorDecision]:
    """Let the governor run; decision `i` answers the reading of the setting before it."""
    decisions = []
    for _ in range(periods):
        decision = MorakGovernor(settings=GovernorSettings()).step(envelope, state, plant.reading(state.setting))
        decisions.append(decision)
        state = decision.state
    return decisions
