"""Profile runs on the wire: what is ordered, what nodes ask for and hand in."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agents.wire import ProfileOrder, ProfilePointAsked
from app.api.schemas import RequestBody
from app.records import record
from app.store.profile_runs import DETAIL_MAX, RunState
from solvers.domain.profile import PairPoint, ProfilePoint
from solvers.domain.value import NAME_PATTERN

_PART = NAME_PATTERN.strip("^$")
SERVICE_PATTERN = f"^{_PART}/{_PART}$"
POINTS_MAX = 1000
ServiceName = Annotated[str, Field(pattern=SERVICE_PATTERN, description="`project/name`.")]


class NewProfileRun(RequestBody):
    """Measure a service's process on a device of a node."""

    service: ServiceName
    node: Annotated[str, Field(pattern=NAME_PATTERN)]
    budget_s: float = Field(1200.0, ge=10, le=86_400, allow_inf_nan=False, description="How long it may measure.")
    device: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,95}$")] = Field(
        None, description="Which device; without, the node's first free one that the service may use."
    )
    beside: ServiceName | None = Field(None, description="Measure the two side by side.")
    drain: bool = Field(False, description="Take a device with live traffic: it is moved away first.")


class ProfileOrders(RequestBody):
    """What a node has to measure, in this order."""

    items: list[ProfileOrder]


class PointsAsked(RequestBody):
    """What a run shall measure next, the most useful first."""

    items: list[ProfilePointAsked]


class RunNews(RequestBody):
    """How far a node got, and what it measured since it last told. Counts are totals of the run."""

    state: RunState
    measured: int = Field(ge=0, le=1_000_000)
    doubtful: int = Field(ge=0, le=1_000_000)
    detail: str = Field("", max_length=DETAIL_MAX)
    points: list[ProfilePoint] = Field(default_factory=list, max_length=POINTS_MAX)
    pairs: list[PairPoint] = Field(default_factory=list, max_length=POINTS_MAX)


@record
class RunGoesOn:
    """Whether the node shall go on."""

    going_on: bool
