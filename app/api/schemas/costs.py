"""Cost reports on the wire. Money is in US dollars, as JSON numbers rounded to a millionth; the exact sums are in the
database's views.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from app.store.ledger import Accounting, CostBy


class CostLine(BaseModel):
    """Cost of one group."""

    model_config = ConfigDict(extra="forbid")

    key: str
    usd: float
    usd_idle: float = Field(description="Part of `usd` that nobody held.")
    usd_unobserved: float = Field(description="Part of `usd` about which no report came.")
    usd_energy: float = Field(description="Energy beside the price of the devices.")
    held_h: float
    share_gpu_h: float
    memory_gib_h: float
    energy_kwh: float


class Costs(BaseModel):
    """A cost report of the whole hours from `start` up to `end`."""

    model_config = ConfigDict(extra="forbid")

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None
    usd: float
    items: list[CostLine]
