"""What the pages' scripts read: the stream of what changes and series, as the API gives them, for whoever is signed in.
Errors are problems here, as they are there.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from app.api.console.door import Looking
from app.api.forms import answer
from app.api.routers.seen import LastEventId, WantedTopics, answer_telemetry, follow, telemetry_query
from app.services.seen.series import TelemetryQuery

router = APIRouter(include_in_schema=False)


@router.get("/console/events")
async def events(
    request: Request, visit: Looking, topics: WantedTopics = None, last_event_id: LastEventId = None
) -> Any:
    """As `/v1/events/stream`."""
    return follow(request, visit.actor, topics, last_event_id)


@router.get("/console/telemetry")
def telemetry(visit: Looking, query: Annotated[TelemetryQuery, Depends(telemetry_query)]) -> Any:
    """As `/v1/telemetry`."""
    return answer(answer_telemetry(visit.services, visit.actor, query))
