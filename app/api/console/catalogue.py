"""What is declared and what was done: models with their measurements, policies and pools, the audit trail; and who is
signed in with which token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from app import kinds
from app.api.auth import CLUSTER_ADMIN, CLUSTER_READ
from app.api.console.door import Looking, PageRoute, Visit, by_cookie, end_sign_in
from app.api.console.glance import fleet_of, homes_of
from app.store.pages import PageOrder, whole
from app.store.webhooks import Delivery

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Overseeing = Annotated[Visit, Depends(by_cookie(CLUSTER_READ))]
EVENTS_SHOWN = 100


@router.get("/models", response_class=HTMLResponse)
def models(visit: Looking, q: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Models, who serves them, and on which GPU types they were measured."""
    measured: dict[str, list[str]] = {}
    if visit.may(CLUSTER_READ):
        for line in whole(visit.services.profiles.page):
            measured.setdefault(line.model, []).append(f"{line.gpu_type} ({line.points})")
    used: dict[str, list[str]] = {}
    for item in (*fleet_of(visit)["services"], *fleet_of(visit)["jobs"]):
        used.setdefault(item["model"], []).append(item["id"])
    found = [stored.spec for stored in visit.every(kinds.MODEL)]
    return visit.page(
        "models.html",
        models=sorted(
            (spec for spec in found if q.lower() in spec["name"].lower()),
            key=lambda spec: (spec["name"] not in used, spec["name"]),
        ),
        measured=measured,
        used=used,
        homes=homes_of(fleet_of(visit)),
        q=q,
    )


@router.get("/policies", response_class=HTMLResponse)
def policies(visit: Looking) -> Response:
    """Who decides on what: policies with their pools, and caps of power."""
    found = [stored.spec for stored in visit.every(kinds.POLICY)]
    caps = visit.every(kinds.POWER_CAP) if visit.may(CLUSTER_READ) else ()
    return visit.page(
        "policies.html",
        policies=[(spec, yaml.safe_dump(spec, sort_keys=False)) for spec in found],
        lines={line["policy"]: line for line in fleet_of(visit)["policies"]},
        caps=[stored.spec for stored in caps],
    )


@router.get("/audit", response_class=HTMLResponse)
def audit(
    visit: Overseeing,
    subject: Annotated[str, Query(max_length=256)] = "",
    cursor: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Who did what to what."""
    order = PageOrder(limit=EVENTS_SHOWN, cursor=cursor or None)
    subject = "".join(filter(str.isprintable, subject))  # what no subject can hold, PostgreSQL refuses
    page = visit.services.history.events(order, subject or None, None)
    topics = "" if cursor else "events"
    return visit.page("audit.html", topics=topics, events=page.items, next_cursor=page.next_cursor, subject=subject)


@router.get("/settings", response_class=HTMLResponse)
def settings(visit: Looking) -> Response:
    """Who is signed in with this token; for administrators, all tokens."""
    tokens = visit.services.tokens
    return visit.page(
        "settings.html",
        own=tokens.get(visit.actor.token_id),
        sign_ins=visit.services.sign_ins.of(visit.actor),
        tokens=list(whole(tokens.page)) if visit.may(CLUSTER_ADMIN) else (),
        channels=list(_channels(visit)) if visit.may(CLUSTER_READ) else (),
    )


def _channels(visit: Visit) -> Iterator[tuple[dict[str, Any], Delivery | None]]:
    """Where alarms go, each with what it was told last; what waits in line was not told yet."""
    for stored in visit.every(kinds.WEBHOOK):
        line = whole(partial(visit.services.history.deliveries, stored.key[0]))
        yield stored.spec, next((told for told in line if told.attempts), None)


@router.post("/settings/sign-ins/end")
async def end_one(visit: Looking, sign_in: Annotated[str, Form(max_length=96)]) -> Response:
    """End one of this token's sign-ins; one's own too."""
    await run_in_threadpool(end_sign_in, visit, sign_in)
    return RedirectResponse("/settings", status_code=303)
