"""Wire models that are not domain values: pages, summaries, token requests. Closed for what comes in, documented for
what goes out.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """Closed: an unknown field is refused."""

    model_config = ConfigDict(extra="forbid")
