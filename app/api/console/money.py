"""Money: what was spent, by whom, as a table, a file or SQL; and what would be if, up to four options side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response

from app import kinds
from app.api.auth import CLUSTER_WRITE, COST_READ, visible_project
from app.api.console.door import HEADERS, PageRoute, Visit, by_cookie
from app.api.deps import context_of
from app.records import plain
from app.services.whatif.changes import Changes, NodesAdded
from app.services.whatif.question import WhatIfQuestion
from app.store.ledger import Accounting, CostBy, CostQuery
from app.store.pages import PageOrder
from solvers.domain.ids import GpuTypeName
from solvers.errors import FieldError, HeadroomError

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Paying = Annotated[Visit, Depends(by_cookie(COST_READ))]
Asking = Annotated[Visit, Depends(by_cookie(CLUSTER_WRITE))]
DAYS = {"1": "1 day", "7": "1 week", "30": "30 days", "90": "90 days"}
OPTIONS_MAX = 4
MONTH_H = 730.0
DEADLINE_S = 15.0
_KEYS = {
    CostBy.SERVICE: "CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE workload END",
    CostBy.PROJECT: "CASE WHEN kind IN ('idle', 'unobserved') THEN '(' || kind || ')' ELSE project END",
    CostBy.DEVICE: "device_uuid",
    CostBy.NODE: "node_id",
    CostBy.GPU_TYPE: "gpu_type",
    CostBy.HOUR: "hour",
    CostBy.DAY: "(hour AT TIME ZONE 'UTC')::date",
}
COLUMNS = (
    "key", "usd", "usd_idle", "usd_unobserved", "usd_energy", "held_h", "share_gpu_h", "memory_gib_h", "energy_kwh",
)  # fmt: skip


def _query(
    visit: Paying,
    by: CostBy = CostBy.SERVICE,
    accounting: Accounting = Accounting.SHARE,
    days: Annotated[float, Query(gt=0, le=3700)] = 7,
    project: Annotated[str, Query(max_length=63)] = "",
    label: Annotated[str, Query(max_length=63)] = "",
) -> CostQuery:
    until = context_of(visit.request).clock.now()
    own = visible_project(visit.actor, project or None)
    asked = CostQuery(by=by, accounting=accounting, start=until - timedelta(days=days), end=until, project=own)
    return replace(asked, by=CostBy.LABEL, label=label) if label else asked


Spent = Annotated[CostQuery, Depends(_query)]


@router.get("/costs", response_class=HTMLResponse)
def costs(visit: Paying, query: Spent) -> Response:
    """What was spent."""
    found = plain(visit.services.costs.report(query))
    items = found["items"]
    if query.by not in (CostBy.DAY, CostBy.HOUR):
        items = sorted(items, key=lambda item: -item["usd"])
    spent_h = max(1.0, (query.end - query.start).total_seconds() / 3600)
    projects = visit.services.documents.page(kinds.PROJECT, PageOrder(limit=500), visit.actor.project).items
    return visit.page(
        "costs.html",
        costs=found,
        items=items,
        top=max((item["usd"] for item in items), default=0.0) or 1.0,
        month_usd=found["usd"] / spent_h * MONTH_H,
        query=query,
        by=[each.value for each in CostBy if each is not CostBy.LABEL],
        accountings=[each.value for each in Accounting],
        days=DAYS,
        chosen={name: visit.request.query_params.get(name, "") for name in ("days", "project", "label")},
        projects=[stored.key[0] for stored in projects],
        download=f"/costs.csv?{visit.request.url.query}",
        sql=as_sql(query, found) if query.by in _KEYS else None,
    )


def as_sql(query: CostQuery, found: Mapping[str, str]) -> str:
    """The same question for psql."""
    own = f"\n  AND project = '{query.project}'" if query.project is not None else ""
    return (
        f"SELECT {_KEYS[query.by]} AS {query.by.value}, round(sum(usd_{query.accounting.value}), 4) AS usd\n"
        f"FROM ledger_hourly\nWHERE hour >= '{found['start']}' AND hour < '{found['end']}'{own}\n"
        "GROUP BY 1 ORDER BY 2 DESC;"
    )


@router.get("/costs.csv")
def costs_as_csv(visit: Paying, query: Spent) -> Response:
    """The same as a file."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((query.by.value, *COLUMNS[1:]))
    for item in plain(visit.services.costs.report(query))["items"]:
        writer.writerow([_cell(item[name]) for name in COLUMNS])
    name = f"headroom-costs-by-{query.by.value}-{query.end:%Y-%m-%d}.csv"
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: object) -> object:
    """Nothing that a spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


# --- What if


@router.get("/what-if", response_class=HTMLResponse)
def what_if(visit: Asking) -> Response:
    """Options, planned one after the other. Nothing is stored and nothing changes; asked by GET, so that an answer has
    an address.
    """
    asked = [_option(visit.request, number) for number in range(1, OPTIONS_MAX + 1)]
    options = [option for option in asked if option["given"]]
    types = [
        stored.key[0] for stored in visit.services.documents.page(kinds.GPU_TYPE, PageOrder(limit=500), None).items
    ]
    made = [_answered(visit, option) for option in options]
    before = next((item["answer"]["before"] for item in made if item.get("answer")), None)
    return visit.page("whatif.html", asked=asked, types=types, made=made, before=before, month_h=MONTH_H)


def _option(request: Request, number: int) -> dict[str, Any]:
    told = {name: request.query_params.get(f"{name}{number}", "").strip() for name in ("type", "gpus", "rate", "lose")}
    return {**told, "number": number, "given": any(told.values())}


def _answered(visit: Visit, option: dict[str, Any]) -> dict[str, Any]:
    try:
        question = WhatIfQuestion(changes=_changes(option), deadline_s=DEADLINE_S)
        found = plain(visit.services.simulations.answer(question))["simulation"]
    except (HeadroomError, ValueError) as error:
        return {**option, "problem": error.message if isinstance(error, HeadroomError) else "this is no number"}
    return {**option, "answer": found}


def _changes(option: dict[str, Any]) -> Changes:
    gpus = int(option["gpus"] or 0)
    if gpus and not option["type"]:
        raise FieldError("type", "say which GPU type to add")
    added = (NodesAdded(gpu_type=GpuTypeName(option["type"]), gpus=gpus),) if gpus else ()
    lost = tuple(name for name in option["lose"].replace(",", " ").split())
    return Changes(nodes_added=added, rate_factor=float(option["rate"] or 1), nodes_lost=lost)
