"""What a file of kind `world` may say about loads: arrivals in the open, clients, and data to be replayed.

Owns the forms and the reading of times (`90s`, `15min`, `2h`, `1d`, or plain seconds). Everything is closed: an unknown
field is a complaint.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from lab.arena.kinds import ScenarioForm
from solvers.sim.arrivals import Spacing

_DURATION = r"^(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)$"
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _seconds(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    found = re.fullmatch(_DURATION, given.strip())
    if found is None:
        raise ValueError(f"{given!r} is no time; say seconds, or a number with ms, s, min, h or d, such as 15min")
    return float(found[1]) * _SECONDS[found[2]]


Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION}],
            "description": "A time: seconds as a number, or a text such as 90s, 15min, 2h, 1d.",
        }
    ),
]
Rate = Annotated[float, Field(ge=0, le=1e9)]
Factor = Annotated[float, Field(gt=0, le=1e9)]


Points = Annotated[tuple[tuple[Duration, Rate], ...], Field(min_length=1, max_length=10_000)]
"""Moments with numbers: `[[0s, 200], [10min, 800]]`."""


class SteadyForm(ScenarioForm):
    """The same rate all the time."""

    pattern: Literal["steady"]
    rate_rps: Rate
    spacing: Spacing = Spacing.POISSON


class BurstsForm(ScenarioForm):
    """Two rates that take turns at random (MMPP); `calm` and `burst` are how long either lasts on average."""

    pattern: Literal["bursts"]
    rate_rps_calm: Rate
    rate_rps_burst: Rate
    calm: Duration
    burst: Duration
    spacing: Spacing = Spacing.POISSON


class DailyForm(ScenarioForm):
    """A wave that begins at its lowest, with one spike."""

    pattern: Literal["daily"]
    rate_rps_mean: Rate
    swing: Annotated[float, Field(ge=0, le=1)] = 0.5
    period: Duration = 86_400.0
    spike_factor: Rate = 4.0
    spike_at: Duration = 0.0
    spike: Duration = 0.0
    spacing: Spacing = Spacing.POISSON


class PointsForm(ScenarioForm):
    """Rates by points in time, straight lines between them (`ramp`) or steps."""

    pattern: Literal["points"]
    points: Points
    ramp: bool = True
    spacing: Spacing = Spacing.POISSON


class Scaled(ScenarioForm):
    """How a day or a trace becomes a load: a part of it, faster or slower, and at most one word on its height."""

    begin: Duration = 0.0
    """Where in the day or trace the run begins."""
    end: Duration | None = None
    """Where it ends, to begin anew at `begin`."""
    time_scale: Factor = 1.0
    """0.1: ten times as fast, at the same rates."""
    rate_scale: Factor | None = None
    mean_rps: Factor | None = None
    """Scale the part so that this is its mean."""
    peak_rps: Factor | None = None
    """Scale the part so that this is its highest bin."""
    spacing: Spacing = Spacing.POISSON


class ShapeForm(Scaled):
    """A day as a fitted curve, which needs no data."""

    pattern: Literal["shape"]
    shape: Literal["twitter-day5", "twitter-median-day"]


class TraceForm(Scaled):
    """A real trace out of the folder that HEADROOM_DATA names."""

    pattern: Literal["trace"]
    source: Literal["twitter", "azure-llm", "mooncake", "muxserve", "dlrm"]
    day: Annotated[int, Field(ge=1, le=20)] | None = None
    """twitter: one of its days; otherwise all of them."""
    part: Literal["code", "conv"] = "conv"
    """azure-llm: which of the two services."""
    app: str | None = None
    """dlrm: whose GPU instances (`app_0`), each standing for one request per second; scale as you need."""
    service: str | None = None
    """muxserve: whose rate (`llm-1`)."""
    condense: int = 2000
    """muxserve: how much the authors compressed time."""
    bin: Annotated[Duration, Field(gt=0)] | None = None
    """How long a rate holds; each source has its own choice."""


class ClosedForm(ScenarioForm):
    """Clients that wait for their answer, think, and ask again. Either a number of them, or points in time."""

    pattern: Literal["closed"]
    clients: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    points: Points | None = None
    ramp: bool = True
    step: Annotated[Duration, Field(gt=0)] = 10.0
    """How long the number of clients stays on a ramp."""
    think: Duration
    """Mean of the exponential thinking time."""


class SaturatingForm(ScenarioForm):
    """There is always a full batch waiting."""

    pattern: Literal["saturating"]


LoadForm = Annotated[
    SteadyForm | BurstsForm | DailyForm | PointsForm | ShapeForm | TraceForm | ClosedForm | SaturatingForm,
    Field(discriminator="pattern"),
]
