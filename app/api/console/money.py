"""Money: what was spent, by whom, as a table, a file or SQL; and what would be if, up to four options side by side."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from starlette.background import BackgroundTask

from app import kinds
from app.api.auth import CLUSTER_READ, CLUSTER_WRITE, COST_READ, visible_project
from app.api.console.door import HEADERS, PageRoute, Visit, by_cookie
from app.api.console.glance import fleet_of, homes_of
from app.api.deps import context_of
from app.errors import FieldsError
from app.records import plain
from app.services.planning.plans import Inquiry
from app.services.whatif.changes import Changes, NodesAdded
from app.services.whatif.question import WhatIfQuestion
from app.store.ledger import Accounting, CostBy, CostQuery
from solvers.domain.ids import GpuTypeName
from solvers.domain.value import NAME_PATTERN
from solvers.errors import FieldError, HeadroomError

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Paying = Annotated[Visit, Depends(by_cookie(COST_READ))]
Asking = Annotated[Visit, Depends(by_cookie(CLUSTER_WRITE))]
DAYS = {"1": "1 day", "7": "1 week", "30": "30 days", "90": "90 days"}
OPTIONS_MAX = 4
MONTH_H = 730.0
CSV = "text/csv; charset=utf-8"
DEADLINE_S = 15.0
GPUS_MAX, RATE_MAX = 512, 100
_FIELDS = {"gpus": "gpus", "type": "gpu_type", "rate": "rate_factor", "lose": "nodes_lost"}
"""Of an option, and what of a question is made of each."""
_KEYS = {
    CostBy.SERVICE: '"x_Workload"',
    CostBy.PROJECT: '"SubAccountId"',
    CostBy.MODEL: "coalesce(\"Tags\" ->> 'model', '(none)')",
    CostBy.DEVICE: '"ResourceId"',
    CostBy.NODE: '"x_NodeId"',
    CostBy.GPU_TYPE: '"SkuId"',
    CostBy.HOUR: 'to_char("ChargePeriodStart" AT TIME ZONE \'UTC\', \'YYYY-MM-DD"T"HH24:MI"Z"\')',
    CostBy.DAY: "to_char(\"ChargePeriodStart\" AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    CostBy.MONTH: "to_char(\"ChargePeriodStart\" AT TIME ZONE 'UTC', 'YYYY-MM')",
}
_AMOUNTS = {
    Accounting.SHARE: "BilledCost",
    Accounting.MEMORY: "x_CostByMemory",
    Accounting.WHOLE: "x_CostByWholeGpu",
}
_LEDGERS_OWN = ("project", "workload", "model", "kind")
"""Tags that the ledger itself has, whatever a label of such a key says."""
_WORKLOADS = (CostBy.SERVICE, CostBy.PROJECT, CostBy.MODEL, CostBy.LABEL)
_TIMES = (CostBy.HOUR, CostBy.DAY, CostBy.MONTH)
COLUMNS = (
    "key", "usd", "usd_idle", "usd_unobserved", "usd_energy", "held_h", "share_gpu_h", "memory_gib_h", "energy_kwh",
)  # fmt: skip
OF_ALL = ("start", "end", "accounting", "accounted_until")
"""What is said of all lines: a file has no other place for it than each of them."""


OneOrNone = Annotated[str, Query(pattern=f"{NAME_PATTERN}|^$", max_length=63)]


def _query(
    visit: Paying,
    by: CostBy = CostBy.SERVICE,
    accounting: Accounting = Accounting.SHARE,
    days: Annotated[float, Query(gt=0, le=3700)] = 7,
    project: OneOrNone = "",
    label: OneOrNone = "",
) -> CostQuery:
    until = context_of(visit.request).clock.now()
    # Whole hours, as the ledger is read by most: of the running one what is accounted.
    start = (until - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
    own = visible_project(visit.actor, project or None)
    asked = CostQuery(by=by, accounting=accounting, start=start, end=until, project=own)
    return replace(asked, by=CostBy.LABEL, label=label) if label else asked


Spent = Annotated[CostQuery, Depends(_query)]


@router.get("/costs", response_class=HTMLResponse)
def costs(visit: Paying, query: Spent) -> Response:
    """What was spent."""
    found = plain(visit.services.costs.report(query))
    items = found["items"]
    if query.by not in _TIMES:
        items = sorted(items, key=lambda item: -item["usd"])
    return visit.page(
        "costs.html",
        costs=found,
        items=items,
        homes=homes_of(fleet_of(visit)),
        top=max((item["usd"] for item in items), default=0.0) or 1.0,
        query=query,
        by=[each.value for each in CostBy if each is not CostBy.LABEL],
        accountings=[each.value for each in Accounting],
        days=DAYS,
        chosen={name: visit.request.query_params.get(name, "") for name in ("by", "days", "project", "label")},
        projects=[stored.key[0] for stored in visit.every(kinds.PROJECT, visit.actor.project)],
        download=f"/costs.csv?{visit.request.url.query}",
        focus=f"/costs/focus.csv?{visit.request.url.query}",
        sql=as_sql(query),
        **_month(visit, query.project),
    )


def _month(visit: Visit, project: str | None) -> dict[str, Any]:
    """Budgets, and what this month comes to at its end if its rest costs as the last week did."""
    now = context_of(visit.request).clock.now()
    begun = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    over = (begun + timedelta(days=32)).replace(day=1)
    asked = CostQuery(by=CostBy.PROJECT, accounting=Accounting.SHARE, start=begun, end=now, project=project)
    spent = visit.services.costs.report(asked).usd
    lately = visit.services.costs.spending_span(now)
    per_h = visit.services.costs.report(replace(asked, start=lately.start)).usd / lately.hours
    forecast = spent + per_h * (over - lately.until).total_seconds() / 3600
    budgets = visit.services.costs.budgets() if visit.may(CLUSTER_READ) else ()
    return {"budgets": budgets, "month_spent": spent, "month_forecast": forecast, "month": f"{begun:%B}"}


def as_sql(query: CostQuery) -> str | None:
    """The same question for whoever may read the views; what is in it comes from closed lists, or is a name. None where
    the view has no such label.
    """
    if query.label in _LEDGERS_OWN:
        return None
    key = _KEYS[query.by] if query.label is None else f"coalesce(\"Tags\" ->> '{query.label}', '(none)')"
    if query.by in _WORKLOADS:
        key = f"CASE WHEN \"x_LedgerKind\" IN ('idle', 'unobserved') THEN '(' || \"x_LedgerKind\" || ')' ELSE {key} END"
    own = "" if query.project is None else f"\n  AND \"SubAccountId\" = '{query.project}'"
    order = "1" if query.by in _TIMES else "2 DESC"
    begin, end = (f"{moment:%Y-%m-%d %H:%M:%S}Z" for moment in (query.start, query.end))
    return (
        f'SELECT {key} AS {query.by.value}, round(sum("{_AMOUNTS[query.accounting]}"), 6) AS usd\n'
        f"FROM cost_focus\n"
        f"WHERE \"ChargePeriodStart\" >= '{begin}' AND \"ChargePeriodStart\" < '{end}'{own}\n"
        f"GROUP BY 1 ORDER BY {order};"
    )


@router.get("/costs.csv")
def costs_as_csv(visit: Paying, query: Spent) -> Response:
    """The same as a file."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((query.by.value, *COLUMNS[1:], *OF_ALL))
    found = plain(visit.services.costs.report(query))
    for item in found["items"]:
        writer.writerow([*(_cell(item[name]) for name in COLUMNS), *(found[name] for name in OF_ALL)])
    name = f"headroom-costs-by-{query.by.value}-{query.end:%Y-%m-%d}.csv"
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type=CSV, headers=headers)


@router.get("/costs/focus.csv")
def costs_as_focus(visit: Paying, query: Spent) -> Response:
    """The span's hours in the columns of FOCUS, as the API gives them."""
    found = visit.services.costs.focus(query.start, query.end, query.project)
    name = f"headroom-focus-{query.start:%Y-%m-%d}-{query.end:%Y-%m-%d}.csv"
    headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(found, media_type=CSV, headers=headers, background=BackgroundTask(found.close))


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
    types = [stored.key[0] for stored in visit.every(kinds.GPU_TYPE)]
    simulations = visit.services.simulations.together()
    made = [_answered(simulations, option) for option in asked]
    return visit.page(
        "whatif.html",
        options=made,
        types=types,
        done=[item for item in made if item["answer"] is not None],
        empty=bool(visit.request.query_params) and not any(option["given"] for option in asked),
        gpus_max=GPUS_MAX,
        rate_max=RATE_MAX,
        month_h=MONTH_H,
    )


def _option(request: Request, number: int) -> dict[str, Any]:
    told = {name: request.query_params.get(f"{name}{number}", "").strip() for name in _FIELDS}
    return {**told, "number": number, "given": any(told.values()), "answer": None, "field": "", "problem": ""}


def _answered(simulations: Inquiry, option: dict[str, Any]) -> dict[str, Any]:
    """With its answer, or with what is wrong with it and which field that is about."""
    if not option["given"]:
        return option
    try:
        question = WhatIfQuestion(changes=_changes(option), deadline_s=DEADLINE_S)
        return {**option, "answer": plain(simulations.answer(question))["simulation"]}
    except FieldsError as error:
        fault = error.faults[0]
        return {**option, "field": _field(fault.pointer), "problem": fault.detail}
    except FieldError as error:
        return {**option, "field": _field(error.field), "problem": error.message}
    except HeadroomError as error:
        return {**option, "problem": error.message}


def _field(pointer: str) -> str:
    """Which field of the form a part of the question was made of."""
    parts = pointer.split("/")
    return next((field for field, made in _FIELDS.items() if made in parts), "")


def _changes(option: dict[str, Any]) -> Changes:
    gpus, rate = _number(option["gpus"], 0), _number(option["rate"], 1)
    if not (gpus.is_integer() and 0 <= gpus <= GPUS_MAX):
        raise FieldError("gpus", f"a whole number up to {GPUS_MAX}")
    if not 0 <= rate <= RATE_MAX:
        raise FieldError("rate_factor", f"a number up to {RATE_MAX}, such as 1.5")
    if gpus and not option["type"]:
        raise FieldError("gpu_type", "say which GPU type to add")
    if option["type"] and not gpus:
        raise FieldError("gpus", "say how many of this type to add")
    lost = tuple(name for name in option["lose"].replace(",", " ").split())
    if not (gpus or lost) and rate == 1:
        raise FieldError("rate_factor" if option["rate"] else "gpus", "this changes nothing")
    added = (NodesAdded(gpu_type=GpuTypeName(option["type"]), gpus=int(gpus)),) if gpus else ()
    return Changes(nodes_added=added, rate_factor=rate, nodes_lost=lost)


def _number(text: str, nothing: float) -> float:
    try:
        return float(text or nothing)
    except ValueError:
        return math.nan
