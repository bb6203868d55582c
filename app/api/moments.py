"""Moments in queries: always with a zone in the end, and within the years that anybody can mean."""

from __future__ import annotations

from datetime import UTC, datetime

from solvers.errors import FieldError

Moment = datetime | None
YEAR_MIN = 2000
YEAR_MAX = 2199


def utc(name: str, moment: datetime | None) -> datetime | None:
    """The moment in UTC; one without a zone is taken as UTC. Raises FieldError for years that nobody can mean."""
    if moment is None:
        return None
    if not YEAR_MIN <= moment.year <= YEAR_MAX:
        raise FieldError(f"query:{name}", f"`{name}` must lie between the years {YEAR_MIN} and {YEAR_MAX}")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
