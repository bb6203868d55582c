"""The routes on the wire."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RouteReplica(_Closed):
    """A ready process of a replica; without an endpoint it cannot be reached over HTTP. Weights are planned capacity,
    requests per second, or sizes where a plan says nothing. A `leaving` process is not as planned any more and serves
    until what is planned is ready. `generation` is that of the target which the weight comes from.
    """

    replica: str
    endpoint: str | None
    host: str | None
    port: int | None
    weight: float
    state: Literal["ready", "leaving"]
    generation: int


class Route(_Closed):
    """Where a service's requests may go. `ready_path` answers 2xx on a replica that is ready, where the service names
    one.
    """

    service: str
    generation: int
    ready_path: str | None
    replicas: list[RouteReplica]


class Routes(_Closed):
    """The routes of every service, also of those that nobody serves."""

    items: list[Route]
