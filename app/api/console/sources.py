"""What the pages' scripts read: the stream of what changes and series, as the API gives them, for whoever is signed in.
Errors are problems here, as they are there.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from app.api.console.door import Looking
from app.api.console.workloads import LOG_LINES
from app.api.forms import Name, Project, answer
from app.api.routers import seen
from app.api.routers.seen import LastEventId, WantedTopics, answer_telemetry, follow, telemetry_query
from app.services.seen.series import TelemetryQuery

router = APIRouter(include_in_schema=False)


@router.get("/console/events")
async def events(
    request: Request, visit: Looking, topics: WantedTopics = None, last_event_id: LastEventId = None
) -> Any:
    """As `/v1/events/stream`."""
    return follow(request, visit.actor, topics, last_event_id)


@router.get("/console/logs/{project}/{name}")
def logs(request: Request, visit: Looking, project: Project, name: Name, *, replica: seen.WantedReplica = None) -> Any:
    """As `/v1/logs/{project}/{name}`, followed."""
    return seen.read_logs(request, visit.actor, project, name, replica=replica, tail=LOG_LINES, follow=True)


@router.get("/console/telemetry")
def telemetry(visit: Looking, query: Annotated[TelemetryQuery, Depends(telemetry_query)]) -> Any:
    """As `/v1/telemetry`."""
    return answer(answer_telemetry(visit.services, visit.actor, query))
