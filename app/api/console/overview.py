"""The first page: whether all is well, what it costs, who decided last, and what needs somebody."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from app import kinds
from app.api.auth import CLUSTER_READ, COST_READ
from app.api.console.door import Looking, PageRoute, Visit
from app.api.console.glance import Plain, fleet_of
from app.api.console.words import outcome_text, planner_text
from app.api.deps import context_of
from app.records import plain
from app.store.ledger import Accounting, CostBy, CostQuery
from app.store.pages import PageOrder
from solvers.cycle.record import Lane
from solvers.domain.device import PowerScope

CYCLES_SHOWN = 8
AT_RISK_SHOWN = 8
AGAIN_S = 60
"""What no news tells of (the bill, a project's sums) is asked for anew so often, where no cycle did so."""
DAY, WEEK = timedelta(days=1), timedelta(days=7)
LANES = {Lane.ACT: "", Lane.APPROVE: "for services on approve, ", Lane.SHADOW: "for services on shadow, "}

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/", response_class=HTMLResponse)
def overview(visit: Looking) -> Response:
    """The fleet at a glance."""
    fleet = fleet_of(visit)
    risky = at_risk(fleet)
    return visit.page(
        "overview.html",
        fleet=fleet,
        topics="fleet,services,cycles" if visit.may(CLUSTER_READ) else "services,work",
        every_s=AGAIN_S,
        power_w=sum(device["power_w"] or 0.0 for device in fleet["devices"]),
        cap_w=_cap_w(visit),
        age_s=visit.services.status.stands_s(),
        budget=worst_budget(fleet["services"]),
        spent=_spent(visit, context_of(visit.request).clock.now()),
        at_risk=risky[:AT_RISK_SHOWN],
        at_risk_count=len(risky),
        cycles=recent_cycles(visit) if visit.may(CLUSTER_READ) else [],
        waiting=visit.services.plans.waiting(visit.actor.project),
    )


def budget_used(service: Plain) -> float | None:
    """How much of what its SLO lets miss was missed in the last five minutes; above 1: too much."""
    attainment, percentile = service["slo_attainment"], service["slo"].get("percentile")
    if attainment is None or percentile is None or percentile >= 100:
        return None
    return float((1 - attainment) / (1 - percentile / 100))


def worst_budget(services: list[Plain]) -> tuple[str, float] | None:
    """The service that used most of its error budget."""
    used = [(service["id"], budget_used(service)) for service in services]
    known = [(name, part) for name, part in used if part is not None]
    return max(known, key=lambda item: item[1], default=None)


def at_risk(fleet: Plain) -> list[Plain]:
    """Services that miss their SLO, have fewer replicas than planned, or none, or are not served whole; the worst
    first. Then jobs and tasks without a place.
    """
    short = {item["id"]: item for item in fleet["short"]}
    services = [
        {
            **service,
            "budget": budget_used(service),
            "why": why,
            "home": "services",
            "part": short.get(service["id"], {}).get("part_short"),
        }
        for service in fleet["services"]
        if (why := _worries(service, short.get(service["id"])))
    ]
    work = [
        {**item, "slo_attainment": None, "latency_ms_p99": None, "why": [short[item["id"]]["told"]], "home": "work"}
        for item in fleet["jobs"]
        if item["id"] in short
    ]
    return [*sorted(services, key=lambda item: (-(item["budget"] or 0), -(item["part"] or 0), item["id"])), *work]


def _worries(service: Plain, short: Plain | None) -> list[str]:
    lacking, told = service["replicas_planned"] - service["replicas_ready"], list[str]()
    if (budget_used(service) or 0) > 1:
        told.append("misses its SLO")
    if lacking > 0:
        told.append(f"{lacking} not ready")
    idle = not service["replicas_planned"] and service["mode"] != "off"
    if short is not None or idle:
        on = f"; it is on {service['mode']}" if idle and service["mode"] != "auto" else ""
        told.append(("nothing planned" if short is None else short["told"]) + on)
    return told


def recent_cycles(visit: Visit, lane: Lane | None = None) -> list[dict[str, Any]]:
    """The last decisions in words."""
    page = visit.services.history.cycles(PageOrder(limit=CYCLES_SHOWN), lane, None)
    return [
        {
            "id": cycle.id, "at": cycle.started_at, "lane": LANES[cycle.lane],
            "planner": cycle.planner and planner_text(cycle.planner), "elapsed_ms": cycle.elapsed_ms,
            "outcome": outcome_text(cycle), "plan": cycle.plan_digest if cycle.generation is not None else None,
        }
        for cycle in page.items
    ]  # fmt: skip


def _cap_w(visit: Visit) -> float | None:
    if not visit.may(CLUSTER_READ):
        return None
    caps = visit.every(kinds.POWER_CAP)
    found = [cap.spec["limit_w"] for cap in caps if cap.spec["scope"] == PowerScope.CLUSTER.value]
    return min(found, default=None)


def _spent(visit: Visit, now: datetime) -> Plain | None:
    """The last day's cost, and the same day's a week before."""
    if not visit.may(COST_READ):
        return None
    usd = []
    for until in (now, now - WEEK):
        query = CostQuery(
            by=CostBy.PROJECT, accounting=Accounting.SHARE, start=until - DAY, end=until, project=visit.actor.project
        )
        usd.append(plain(visit.services.costs.report(query))["usd"])
    return {"usd": usd[0], "before": usd[1] or None}
