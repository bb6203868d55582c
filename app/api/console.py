"""The console: one server-rendered page, a sign-in that turns a token into a session cookie, and the stream that
keeps the page live.

It loads nothing from elsewhere and changes nothing on GET. Streams hold no thread and no database connection while
they wait.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.security import HTTPAuthorizationCredentials
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.concurrency import run_in_threadpool

from app.api.auth import identify
from app.api.deps import Services, context_of, services_of
from app.api.streams import HeldStream, OpenStream
from app.errors import ForbiddenError, RateLimitedError, UnauthenticatedError
from app.records import plain
from app.services.declared.tasks import TaskStatusLine
from app.services.declared.tokens import Actor
from app.services.explaining.sentences import hold_sentence
from app.store.cycles import CycleState, CycleSummary
from app.store.pages import PageOrder
from app.store.tasks import TaskListing, TaskState
from app.store.tokens import Role
from solvers.cycle.parts import MERGED
from solvers.cycle.record import Lane
from solvers.domain.workload import SloScope, WorkloadKind
from solvers.errors import HeadroomError, NotFoundError, TransientError

# --- What the console shows, as a view: the fleet's summary turned into tiles, bars, rows and words, and cached for a
# moment


COLOURS = 12
TEXTURES = 3
CYCLES_SHOWN = 8
TASKS_SHOWN = 20
ATTAINMENT_GOOD = 0.98
ATTAINMENT_POOR = 0.90
FRESH_MS = 900.0
_LANES = {Lane.ACT: "", Lane.APPROVE: "for services on approve, ", Lane.SHADOW: "for services on shadow, "}
_UNITS = {WorkloadKind.JOB: "iterations", WorkloadKind.TASK: "inputs"}
_SCOPES = {SloScope.END_TO_END: "", SloScope.EXECUTION: " of execution"}
Plain = dict[str, Any]


def environment() -> Environment:
    """Templates with escaping on and a crash for every name that is not there."""
    made = Environment(
        loader=PackageLoader("app.api", "templates"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number,
        percent=percent,
        usd_per_h=usd_per_h,
        gib=gib,
        tone=tone,
        slo=slo_text,
        since=since_text,
        planner=planner_text,
        took=took_text,
    )
    return made


def number(quantity: float | None, digits: int = 0) -> str:
    """A number with thin thousands, or a dash."""
    return "–" if quantity is None else f"{quantity:,.{digits}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def percent(fraction: float | None) -> str:
    """A fraction as per cent, or a dash."""
    return "–" if fraction is None else f"{100 * fraction:.1f} %"


def usd_per_h(cost: float | None) -> str:
    """Dollars per hour, or a dash."""
    return "–" if cost is None else f"${number(cost, 2)}/h"


def gib(mebibytes: float | None) -> str:
    return number(None if mebibytes is None else mebibytes / 1024, 1)


def tone(fraction: float | None) -> str:
    """Class of an attainment."""
    if fraction is None:
        return "soft"
    return "good" if fraction >= ATTAINMENT_GOOD else "warn" if fraction >= ATTAINMENT_POOR else "bad"


def slo_text(slo: Mapping[str, Any]) -> str:
    kind = slo["kind"]
    if kind == "latency":
        scope = _SCOPES[SloScope(slo["scope"])]
        return f"p{slo['percentile']:g} ≤ {slo['latency_ms']:g} ms{scope}"
    if kind == "tokens":
        return f"first token ≤ {slo['first_token_ms']:g} ms, next ≤ {slo['inter_token_ms']:g} ms"
    if kind == "deadline":
        return f"done within {slo['deadline_s']:g} s"
    return f"≥ {slo['throughput_rps_min']:g}/s"


def planner_text(planner: str) -> str:
    return "each pool's planner" if planner == MERGED else planner


def took_text(elapsed_ms: float) -> str:
    return f"{elapsed_ms:.0f} ms" if elapsed_ms < 1000 else f"{elapsed_ms / 1000:.1f} s"


def since_text(seconds: float) -> str:
    """A duration in its largest sensible unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _where(item: TaskStatusLine, devices: Mapping[str, str]) -> str:
    if item.group is None:
        return f"number {item.queue_position} in line"
    beside = len(item.group.tasks) - 1
    place = f"{devices.get(item.group.device, item.group.device)}, {item.group.share_pct_sm} % SM"
    return place + (f", beside {beside} more" if beside else "")


def _moment(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%d %b %H:%M")


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A rendering and when it goes stale."""

    text: str
    until_ms: float


class Board:
    """Renders the live fragment, at most about once a second for each scope however many watch."""

    def __init__(self, services: Services, elapsed_ms: Callable[[], float], now_s: Callable[[], float]) -> None:
        self._services = services
        self._elapsed_ms = elapsed_ms
        self._now_s = now_s
        self._templates = environment()
        self._lock = threading.Lock()
        self._kept: dict[str | None, _Fresh] = {}

    def fragment(self, project: str | None) -> str:
        """The live part of the page for one project, or for the cluster. Raises TransientError when the database
        is away.
        """
        with self._lock:
            kept = self._kept.get(project)
            if kept is not None and kept.until_ms > self._elapsed_ms():
                return kept.text
            text = self._templates.get_template("live.html").render(self._view(project))
            self._kept[project] = _Fresh(text, self._elapsed_ms() + FRESH_MS)
            return text

    def page(self, project: str | None) -> str:
        """The whole page with the fragment already in it."""
        return self._templates.get_template("console.html").render(fragment=self.fragment(project), project=project)

    def sign_in(self, problem: str = "") -> str:
        """The page that asks for a token."""
        return self._templates.get_template("signin.html").render(problem=problem)

    def _view(self, project: str | None) -> Plain:
        fleet = plain(self._services.status.fleet(project))
        names = [service["id"] for service in fleet["services"]] + [job["id"] for job in fleet["jobs"]]
        paints = {name: _paint(index) for index, name in enumerate(names)}
        devices = [_tile(device, paints) for device in fleet["devices"]]
        hosts = [{"id": node, "up": True, "age_s": None} for node in sorted({device["node"] for device in devices})]
        nodes = fleet["nodes"] or hosts
        return {
            "fleet": fleet,
            "now": datetime.fromtimestamp(self._now_s(), UTC).strftime("%H:%M:%S UTC"),
            "promoted_age_s": self._now_s() - fleet["promoted_at_s"] if fleet["generation"] else None,
            "power_w": sum(device["power_w"] or 0.0 for device in fleet["devices"]),
            "nodes": [{**node, "tiles": [tile for tile in devices if tile["node"] == node["id"]]} for node in nodes],
            "services": [{**service, "paint": paints[service["id"]]} for service in fleet["services"]],
            "jobs": [{**job, "paint": paints[job["id"]], **_progress(job)} for job in fleet["jobs"]],
            "tasks": self._tasks(project, {tile["id"]: f"{tile['node']} #{tile['index']}" for tile in devices}),
            "cycles": self._cycles() if project is None else [],
        }

    def _tasks(self, project: str | None, devices: Mapping[str, str]) -> list[Plain]:
        """Tasks that are not done, those that are late first."""
        found: list[TaskStatusLine] = []
        for state in (TaskState.LATE, TaskState.RUNNING, TaskState.WAITING):
            listing = TaskListing(limit=TASKS_SHOWN - len(found), project=project, state=state)
            found.extend(self._services.tasks.page(listing).items if listing.limit else ())
        return [
            {
                "id": item.id,
                "state": item.state.value,
                "tone": "bad" if item.state is TaskState.LATE else "soft",
                "done": min(1.0, item.inputs_done / item.inputs_total),
                "where": _where(item, devices),
                "deadline": _moment(item.deadline_at),
                "finish": _moment(item.finish_at_predicted),
            }
            for item in found
        ]

    def _cycles(self) -> list[Plain]:
        page = self._services.history.cycles(PageOrder(limit=CYCLES_SHOWN), None, None)
        return [
            {
                "at": cycle.started_at.astimezone(UTC).strftime("%H:%M:%S"),
                "lane": _LANES[cycle.lane],
                "planner": cycle.planner and planner_text(cycle.planner),
                "elapsed_ms": cycle.elapsed_ms,
                "outcome": _outcome(cycle),
            }
            for cycle in page.items
        ]


def _paint(index: int) -> str:
    """Classes that tell this workload from as many others as there are colours and textures together."""
    return f"c{index % COLOURS} t{index // COLOURS % TEXTURES}"


def _progress(job: Plain) -> Plain:
    """How far work is, for people; what is finished may have done a little more than it was asked for."""
    return {"done": min(1.0, job["done"] / job["total"]), "unit": _UNITS[WorkloadKind(job["kind"])], "did": job["done"]}


def _tile(device: Plain, paints: Mapping[str, str]) -> Plain:
    """A device with its bar: one segment per replica, as wide as its share."""
    segments, left = [], 0
    for replica in device["replicas"]:
        segments.append(
            {
                "x": left,
                "width": replica["share_pct_sm"],
                "paint": paints.get(replica["workload"], _paint(0)),
                "ready": replica["state"] == "ready",
                "title": f"{replica['replica']}: {replica['share_pct_sm']} % of the SMs, batch {replica['batch']}, "
                f"{replica['state']}",
            }
        )
        left += replica["share_pct_sm"]
    return {**device, "segments": segments}


def _outcome(cycle: CycleSummary) -> str:
    if cycle.generation is not None:
        return f"promoted as generation {cycle.generation}"
    if cycle.decision is None:
        return "under way" if cycle.state is CycleState.RUNNING else "ended early"
    reasons = [hold_sentence(reason).removesuffix(".") for reason in cycle.decision.reasons]
    return "; ".join(reasons) or "proposed only"


COOKIE = "headroom_session"
SESSION_S = 12 * 3600
REFRESH_S = 1.0
COME_AGAIN_MS = (200, 2000)
_ASSETS = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # Without a referrer browsers send `Origin: null`, and signing in is refused.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

_FOREIGN_FORM = "this form came from another site"

router = APIRouter(include_in_schema=False)


@router.get("/", response_class=HTMLResponse)
async def console(request: Request) -> Response:
    """The page, or the sign-in when there is no session."""
    board = board_of(request)
    try:
        actor = await _viewer(request)
        return _page(await run_in_threadpool(board.page, actor.project))
    except UnauthenticatedError:
        return _page(board.sign_in())
    except (ForbiddenError, RateLimitedError) as error:
        return _page(board.sign_in(error.message), 403)
    except TransientError as error:
        return _page(board.sign_in(error.message), 503)


@router.post("/session")
async def begin_session(request: Request, token: Annotated[str, Form(max_length=512)]) -> Response:
    """Sign in: the token must be one that may look; it becomes an HTTP-only cookie of this site alone."""
    if not _same_origin(request):
        return _page(board_of(request).sign_in(_FOREIGN_FORM), 403)
    try:
        await _viewer(request, token.strip())
    except (UnauthenticatedError, ForbiddenError, RateLimitedError) as error:
        return _page(board_of(request).sign_in(error.message), 401)
    except TransientError as error:
        return _page(board_of(request).sign_in(error.message), 503)
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie(
        COOKIE,
        token.strip(),
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return answer


@router.post("/session/end")
def end_session(request: Request) -> Response:
    """Sign out."""
    if not _same_origin(request):
        return _page(board_of(request).sign_in(_FOREIGN_FORM), 403)
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/console/stream")
async def stream(request: Request) -> Response:
    """Server-sent events: a new `fragment` whenever the picture changed, `away` while there is none to be had, `end`
    when the session is over.
    """
    actor = await _viewer(request)
    headers, opened = {**_HEADERS, "x-accel-buffering": "no"}, OpenStream(actor)
    content = _fragments(request, opened)
    return HeldStream(request.app.state.streams, opened, content, media_type="text/event-stream", headers=headers)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Style and script of the page."""
    if name not in _ASSETS:
        raise NotFoundError(f"there is no {name}")
    content = resources.files("app.api").joinpath("static", name).read_bytes()
    return Response(content, media_type=_ASSETS[name], headers={**_HEADERS, "cache-control": "no-cache"})


def board_of(request: Request) -> Board:
    """The application's board, made at first use."""
    state = request.app.state
    if not hasattr(state, "board"):
        clock = context_of(request).clock
        state.board = Board(services_of(request), clock.elapsed_ms, clock.now_s)
    board: Board = state.board
    return board


async def _fragments(request: Request, opened: OpenStream) -> AsyncIterator[str]:
    board, shown = board_of(request), ""
    fragment: str | None
    while not (opened.over or request.app.state.streams.closing.is_set()):
        try:
            fragment = await run_in_threadpool(board.fragment, opened.actor.project)
        except TransientError:
            fragment = None
        except HeadroomError:
            break
        if fragment is None:
            yield "event: away\ndata: no fresh numbers\n\n"
        elif fragment != shown:
            shown = fragment
            yield "event: fragment\n" + "".join(f"data: {line}\n" for line in fragment.splitlines()) + "\n"
        else:
            yield ": still here\n\n"
        await asyncio.sleep(REFRESH_S)
    if request.app.state.streams.closing.is_set():
        # The process ends: whoever reads comes again by itself, not all at once, and finds another.
        yield f"retry: {random.randint(*COME_AGAIN_MS)}\n\n"
    else:
        yield "event: end\ndata: over\n\n"


async def _viewer(request: Request, secret: str | None = None) -> Actor:
    held = secret if secret is not None else request.cookies.get(COOKIE, "")
    actor = await identify(request, HTTPAuthorizationCredentials(scheme="Bearer", credentials=held) if held else None)
    if actor.role not in (Role.ADMIN, Role.OPERATOR, Role.VIEWER):
        raise ForbiddenError(f"a token with role {actor.role.value} may not use the console")
    return actor


def _same_origin(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _page(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status_code=status, headers=_HEADERS)
