"""Series of stored telemetry, and acknowledgements, on the wire."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from app.store.telemetry import DevicePoint, ServicePoint


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DeviceSeries(_Closed):
    """A device in even steps; steps without a report are left out."""

    uuid: str
    start: datetime
    end: datetime
    step_s: float
    items: list[DevicePoint]


class ServiceSeries(_Closed):
    """A service in even steps; steps without a report are left out."""

    service: str
    start: datetime
    end: datetime
    step_s: float
    items: list[ServicePoint]


class Acknowledged(_Closed):
    """Everything sent is stored: so many for the first time, so many already were."""

    accepted: int
    duplicates: int
