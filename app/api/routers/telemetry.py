"""Stored telemetry as series in even steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from app import kinds
from app.api.answers import answer
from app.api.auth import require_project
from app.api.deps import context_of, services_of
from app.api.keys import Name, Project, Uuid
from app.api.moments import Moment, utc
from app.api.rules import ClusterReader, SharedReader
from app.services.seen.telemetry import DeviceSeries, ServiceSeries
from app.store.telemetry import TelemetryWindow
from solvers.errors import FieldError

router = APIRouter(tags=["telemetry"])
DEFAULT_SPAN = timedelta(hours=1)


def window(
    request: Request,
    start: Annotated[Moment, Query(alias="from", description="Default: an hour before `to`.")] = None,
    end: Annotated[Moment, Query(alias="to", description="Default: now.")] = None,
    step_s: Annotated[float, Query(ge=1, le=86_400, allow_inf_nan=False, description="Seconds per step.")] = 60.0,
) -> TelemetryWindow:
    """What of a series is wanted."""
    until = utc("to", end) or context_of(request).clock.now()
    try:
        return TelemetryWindow(since=utc("from", start) or until - DEFAULT_SPAN, until=until, step_s=step_s)
    except FieldError as error:
        raise FieldError(f"query:{_QUERY_NAMES.get(error.field, error.field)}", error.message) from None


_QUERY_NAMES = {"since": "from", "until": "to"}


@router.get(
    "/v1/telemetry/services/{project}/{name}",
    operation_id="get_service_telemetry",
    summary="A service over time",
    response_model=ServiceSeries,
)
def service_series(
    request: Request, actor: SharedReader, project: Project, name: Name, wanted: TelemetryWindow = Depends(window)
) -> Any:
    """Offered load, what was served, latencies, shares. Steps without a report are left out."""
    require_project(actor, project)
    services = services_of(request)
    services.documents.get(kinds.SERVICE, (project, name))
    return answer(services.telemetry.service_series(f"{project}/{name}", wanted))


@router.get(
    "/v1/telemetry/devices/{uuid}",
    operation_id="get_device_telemetry",
    summary="A device over time",
    response_model=DeviceSeries,
)
def device_series(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    uuid: Uuid,
    wanted: TelemetryWindow = Depends(window),
) -> Any:
    """Power, energy, utilisation, memory, clock. Steps without a report are left out."""
    services = services_of(request)
    services.documents.get(kinds.DEVICE, (uuid,))
    return answer(services.telemetry.device_series(uuid, wanted))
