"""The doorbell's route."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from app.api.deps import context_of
from app.api.doorbell import DoorbellStream, Hub, Listener
from app.api.rules import DoorbellListener

router = APIRouter(tags=["agent"])


@router.get(
    "/v1/doorbell",
    operation_id="listen_doorbell",
    summary="Hear of new generations",
    status_code=200,
    response_class=DoorbellStream,
    responses={
        200: {
            "description": 'Lines `{"generation": n}`, the current one first; lines beginning with `:` are heartbeats.',
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        }
    },
)
async def listen(request: Request, actor: DoorbellListener) -> Any:  # noqa: ARG001 - the actor is the guard
    """An endless stream; it ends after about an hour and is to be opened again."""
    hub: Hub = request.app.state.hub
    listener: Listener = request.app.state.listener
    return DoorbellStream(hub, context_of(request).settings.doorbell_heartbeat_s, listener.closing)
