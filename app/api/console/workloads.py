"""What runs: services in a table to sort and filter, one service over time with its reasons, jobs and tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

import yaml
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from app import kinds
from app.api.auth import CLUSTER_READ, require_project
from app.api.console.door import HEADERS, Looking, PageRoute, Visit
from app.api.console.glance import Plain, fleet_of
from app.api.console.overview import at_risk, budget_used
from app.api.deps import context_of
from app.api.forms import Name, Project
from app.api.routers.seen import WantedReplica, log_stream
from app.records import plain
from app.services.seen.logs import LogWish
from app.store.pages import PageOrder
from app.store.tasks import TaskListing
from app.store.telemetry import TelemetryWindow
from solvers.domain.workload import SloScope
from solvers.errors import NotFoundError

router = APIRouter(include_in_schema=False, route_class=PageRoute)
SORTS = ("id", "slo_attainment", "budget", "latency_ms_p99", "rate_rps", "replicas_ready", "model", "mode", "policy")
SHOWN, LOG_LINES = 100, 200
TASKS_SHOWN = 200
Word = Annotated[str, Query(max_length=100)]
Hours = Annotated[float, Query(ge=0.1, le=720)]
CHARTS = (
    {"name": "Requests per second", "fields": ["offered_rps", "completed_rps", "dropped_rps"], "live": "rate_rps"},
    {"name": "Latency end to end, ms", "fields": ["latency_ms_p50", "latency_ms_p99"], "live": "latency_ms_p99"},
    {"name": "Within its SLO, part of requests", "fields": ["slo_attainment"], "live": "slo_attainment", "near": True},
    {"name": "Replicas", "fields": ["replicas"], "live": "replicas_ready"},
    {"name": "SM share held, %", "fields": ["share_pct_sm"], "live": ""},
    {"name": "$/h by the share it holds", "fields": ["usd_per_h"], "live": ""},
    {"name": "Energy per request, J", "fields": ["energy_j_per_request"], "live": ""},
)


@router.get("/services", response_class=HTMLResponse)
def services(
    visit: Looking,
    q: Word = "",
    project: Word = "",
    mode: Word = "",
    risk: Word = "",
    sort: Word = "id",
    *,
    every: bool = False,
) -> Response:
    """All of them, as the address says; of many the first, unless every one is asked for."""
    fleet = fleet_of(visit)
    found = [{**item, "budget": budget_used(item)} for item in fleet["services"]]
    risky = {item["id"] for item in at_risk(fleet)}
    wanted = [
        item
        for item in found
        if q.lower() in f"{item['id']} {item['model']}".lower()
        and project in ("", item["project"])
        and mode in ("", item["mode"])
        and (not risk or item["id"] in risky)
    ]
    key, down = sort.removeprefix("-"), sort.startswith("-")
    key = key if key in SORTS else "id"
    known = sorted((item for item in wanted if item[key] is not None), key=lambda item: (item[key], item["id"]))
    wanted = (known[::-1] if down else known) + [item for item in wanted if item[key] is None]
    return visit.page(
        "services.html",
        topics="services",
        services=wanted[: None if every else SHOWN],
        count=len(wanted),
        every=len(found),
        projects=sorted({item["project"] for item in found}),
        modes=sorted({item["mode"] for item in found}),
        chosen={"q": q, "project": project, "mode": mode, "risk": risk, "sort": sort},
        sort=key,
        down=down,
        keep=urlencode({"q": q, "project": project, "mode": mode, "risk": risk}),
    )


@router.get("/services/{project}/{name}", response_class=HTMLResponse)
def service(visit: Looking, project: Project, name: Name, hours: Hours = 1, why_not: Word = "") -> Response:
    """One service: what it gets, what it costs, why it is as it is."""
    require_project(visit.actor, project)
    stored = visit.services.documents.get(kinds.SERVICE, (project, name))
    workload = f"{project}/{name}"
    fleet = fleet_of(visit)
    line = next((item for item in fleet["services"] if item["id"] == workload), None)
    if line is None:
        raise NotFoundError(f"there is no service {workload}")
    held = _held(fleet, workload)
    charts = {
        "subjects": [f"services/{workload}"], "topic": f"services/{workload}", "hours": hours,
        "charts": _lined(line["slo"]), "marks": _marks(visit),
    }  # fmt: skip
    return visit.page(
        "service.html",
        topics="services,cycles" if visit.may(CLUSTER_READ) else "services",
        service={**line, "budget": budget_used(line)},
        held=held,
        usd_per_h=sum(device["price_usd_per_h"] * at["share_pct_sm"] / 100 for device, at in held),
        charts=charts,
        hours=hours,
        explained=_explained(visit, workload, fleet, why_not or None),
        types=[stored.key[0] for stored in visit.every(kinds.GPU_TYPE)],
        why_not=why_not,
        yaml=yaml.safe_dump(_said(stored.spec), allow_unicode=True),
        version=stored.version,
        events=_history(visit, f"services/{workload}"),
        past=_past(visit, line, hours),
    )


def _held(fleet: Plain, workload: str) -> list[tuple[Plain, Plain]]:
    """Its replicas, each with the device that holds it."""
    return [(device, at) for device in fleet["devices"] for at in device["replicas"] if at["workload"] == workload]


@router.get("/logs/{project}/{name}")
def log_text(visit: Looking, project: Project, name: Name, replica: WantedReplica = None) -> Any:
    """The last lines that its workers wrote, for whoever has no scripts, or wants to keep them."""
    require_project(visit.actor, project)
    wish = LogWish(workload=f"{project}/{name}", replica=replica, lines=LOG_LINES, follow=False, as_text=True)
    answer = log_stream(visit.request, visit.actor, wish, b"")
    answer.headers.update({**HEADERS, "content-type": "text/plain; charset=utf-8"})
    return answer


def _explained(visit: Visit, workload: str, fleet: Plain, why_not: str | None) -> Any:
    if fleet["plan"] is None:
        return None
    try:
        return plain(visit.services.plans.explain(fleet["plan"]["id"], visit.actor.project, workload, why_not))
    except NotFoundError:
        if why_not is not None:
            raise
        return None


def _lined(slo: Plain) -> list[Plain]:
    """The charts, with the SLO as a line where it is one."""
    lines = {"Latency end to end, ms": slo.get("latency_ms") if slo["scope"] == SloScope.END_TO_END.value else None}
    if slo.get("percentile") is not None:
        lines["Within its SLO, part of requests"] = slo["percentile"] / 100
    return [{**chart, "line": lines.get(str(chart["name"])), "line_name": "SLO"} for chart in CHARTS]


def _past(visit: Visit, line: Plain, hours: float) -> Plain | None:
    """How the whole span went, as one step of the charts; None where nothing was seen."""
    until = context_of(visit.request).clock.now()
    span = TelemetryWindow(since=until - timedelta(hours=hours), until=until, step_s=hours * 3600)
    found = plain(visit.services.telemetry.service_series(line["id"], span))["items"]
    return found[-1] | {"budget": budget_used({**found[-1], "slo": line["slo"]})} if found else None


def _marks(visit: Visit) -> list[dict[str, Any]]:
    """When plans were promoted, for the charts."""
    if not visit.may(CLUSTER_READ):
        return []
    lines = visit.services.history.targets(PageOrder(limit=100)).items
    return [{"at": line.promoted_at.timestamp(), "text": f"generation {line.generation}"} for line in lines]


def _said(spec: Plain) -> Plain:
    """A document without what it leaves open."""
    return {
        name: _said(part) if isinstance(part, dict) else part
        for name, part in spec.items()
        if part is not None and part != []
    }


def _history(visit: Visit, subject: str) -> list[Any]:
    if not visit.may(CLUSTER_READ):
        return []
    return list(visit.services.history.events(PageOrder(limit=12), subject, None).items)


@router.get("/work", response_class=HTMLResponse)
def work(visit: Looking, cursor: Annotated[str, Query(max_length=2000)] = "") -> Response:
    """Training jobs and offline tasks: how far, where, when done; of many tasks a page after the other."""
    fleet = fleet_of(visit)
    listing = TaskListing(limit=TASKS_SHOWN, cursor=cursor or None, project=visit.actor.project)
    page = visit.services.tasks.page(listing, visit.actor.project)
    return visit.page(
        "work.html",
        topics="work",
        jobs=[item for item in fleet["jobs"] if item["kind"] == "job"],
        tasks=[plain(item) for item in page.items],
        next_cursor=page.next_cursor,
        devices={device["id"]: f"{device['node']} #{device['index']}" for device in fleet["devices"]},
    )


@router.get("/work/{project}/{name}", response_class=HTMLResponse)
def one_work(visit: Looking, project: Project, name: Name) -> Response:
    """A job or task: how far it is, where it runs, what its workers write."""
    require_project(visit.actor, project)
    workload, fleet = f"{project}/{name}", fleet_of(visit)
    line = next((item for item in fleet["jobs"] if item["id"] == workload), None)
    if line is None:
        raise NotFoundError(f"there is no job or task {workload}")
    kind = kinds.JOB if line["kind"] == kinds.JOB.name else kinds.TASK
    stored = visit.services.documents.get(kind, (project, name))
    return visit.page(
        "one_work.html",
        topics="work",
        work=line,
        held=_held(fleet, workload),
        explained=_explained(visit, workload, fleet, None),
        yaml=yaml.safe_dump(_said(stored.spec), allow_unicode=True),
        version=stored.version,
        events=_history(visit, f"{kind.plural}/{workload}"),
    )
