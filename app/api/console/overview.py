"""The first page: the fleet in numbers, what it holds, what was decided last; and the stream that keeps it live."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from app.api.console.door import HEADERS, Looking, PageRoute
from app.api.console.words import environment, moment_text, outcome_text, planner_text
from app.api.deps import Services, context_of, services_of
from app.api.streams import HeldStream, OpenStream
from app.records import plain
from app.services.declared.tasks import TaskStatusLine
from app.store.pages import PageOrder
from app.store.tasks import TaskListing, TaskState
from solvers.cycle.record import Lane
from solvers.domain.workload import WorkloadKind
from solvers.errors import HeadroomError, TransientError

COLOURS = 12
TEXTURES = 3
CYCLES_SHOWN = 8
TASKS_SHOWN = 20
FRESH_MS = 900.0
REFRESH_S = 1.0
COME_AGAIN_MS = (200, 2000)
_LANES = {Lane.ACT: "", Lane.APPROVE: "for services on approve, ", Lane.SHADOW: "for services on shadow, "}
_UNITS = {WorkloadKind.JOB: "iterations", WorkloadKind.TASK: "inputs"}
Plain = dict[str, Any]


def _where(item: TaskStatusLine, devices: Mapping[str, str]) -> str:
    if item.group is None:
        return f"number {item.queue_position} in line"
    beside = len(item.group.tasks) - 1
    place = f"{devices.get(item.group.device, item.group.device)}, {item.group.share_pct_sm} % SM"
    return place + (f", beside {beside} more" if beside else "")


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
            text = environment().get_template("live.html").render(self._view(project))
            self._kept[project] = _Fresh(text, self._elapsed_ms() + FRESH_MS)
            return text

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
                "deadline": moment_text(item.deadline_at),
                "finish": moment_text(item.finish_at_predicted),
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
                "outcome": outcome_text(cycle),
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


router = APIRouter(include_in_schema=False, route_class=PageRoute)
sources = APIRouter(include_in_schema=False)
"""What scripts read; errors are problems there, as they are in the API."""


@router.get("/", response_class=HTMLResponse)
def overview(request: Request, visit: Looking) -> Response:
    """The fleet at a glance."""
    return visit.page("overview.html", fragment=board_of(request).fragment(visit.actor.project))


@sources.get("/console/stream")
async def stream(request: Request, visit: Looking) -> Response:
    """Server-sent events: a new `fragment` whenever the picture changed, `away` while there is none to be had, `end`
    when the session is over.
    """
    headers, opened = {**HEADERS, "x-accel-buffering": "no"}, OpenStream(visit.actor)
    content = _fragments(request, opened)
    return HeldStream(request.app.state.streams, opened, content, media_type="text/event-stream", headers=headers)


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
