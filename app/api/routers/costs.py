"""What was spent, by whom, under which accounting."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from app.api.answers import answer
from app.api.auth import visible_project
from app.api.deps import context_of, services_of
from app.api.moments import Moment, utc
from app.api.rules import CostReader
from app.services.seen.history import Costs
from app.store.ledger import Accounting, CostBy, CostQuery
from solvers.domain.value import NAME_PATTERN

router = APIRouter(tags=["costs"])
DEFAULT_SPAN = timedelta(hours=24)


def span(
    request: Request,
    start: Annotated[Moment, Query(alias="from", description="Default: 24 hours before `to`.")] = None,
    end: Annotated[Moment, Query(alias="to", description="Default: now.")] = None,
) -> tuple[datetime, datetime]:
    """From when to when."""
    until = utc("to", end) or context_of(request).clock.now()
    return utc("from", start) or until - DEFAULT_SPAN, until


@router.get("/v1/costs", operation_id="get_costs", summary="Cost report", response_model=Costs)
def get_costs(
    request: Request,
    actor: CostReader,
    *,
    by: CostBy = CostBy.SERVICE,
    accounting: Accounting = Accounting.SHARE,
    project: Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=63)] = None,
    wanted: tuple[datetime, datetime] = Depends(span),
) -> Any:
    """Whole hours, the running one included. A project's token sees its own project."""
    start, end = wanted
    query = CostQuery(by=by, accounting=accounting, start=start, end=end, project=visible_project(actor, project))
    return answer(services_of(request).costs.report(query))
