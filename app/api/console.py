"""The console: one server-rendered page, a sign-in that turns a token into a session cookie, and the stream that
keeps the page live.

Owns cookies and content-security headers. It loads nothing from elsewhere and changes nothing on GET. Streams hold
no thread and no database connection while they wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool

from app.api.auth import identify
from app.api.board import Board
from app.api.deps import context_of, services_of
from app.errors import ForbiddenError, RateLimitedError, UnauthenticatedError
from app.services.declared.actors import Actor
from app.store.tokens import Role
from solvers.errors import HeadroomError, NotFoundError, TransientError

COOKIE = "headroom_session"
SESSION_S = 12 * 3600
REFRESH_S = 1.0
STREAM_S_MAX = 3600.0
_ASSETS = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

router = APIRouter(include_in_schema=False)


@router.get("/", response_class=HTMLResponse)
async def console(request: Request) -> Response:
    """The page, or the sign-in when there is no session."""
    board = board_of(request)
    try:
        actor = await _viewer(request)
    except UnauthenticatedError:
        return _page(board.sign_in())
    except (ForbiddenError, RateLimitedError) as error:
        return _page(board.sign_in(error.message), 403)
    return _page(await run_in_threadpool(board.page, actor.project))


@router.post("/session")
async def begin_session(request: Request, token: Annotated[str, Form(max_length=512)]) -> Response:
    """Sign in: the token must be one that may look; it becomes an HTTP-only cookie of this site alone."""
    if not _same_origin(request):
        return _page(board_of(request).sign_in("this form came from another site"), 403)
    try:
        await _viewer(request, token.strip())
    except (UnauthenticatedError, ForbiddenError, RateLimitedError) as error:
        return _page(board_of(request).sign_in(error.message), 401)
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
def end_session() -> Response:
    """Sign out."""
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


@router.get("/console/stream")
async def stream(request: Request) -> Response:
    """Server-sent events: a new `fragment` whenever the picture changed, `end` when the session is over."""
    actor = await _viewer(request)
    headers = {**_HEADERS, "x-accel-buffering": "no"}
    return StreamingResponse(_fragments(request, actor), media_type="text/event-stream", headers=headers)


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


async def _fragments(request: Request, actor: Actor) -> AsyncIterator[str]:
    board, shown = board_of(request), ""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + STREAM_S_MAX
    while loop.time() < ends_at and not request.app.state.listener.closing.is_set():
        try:
            actor = await _viewer(request)
            fragment = await run_in_threadpool(board.fragment, actor.project)
        except (UnauthenticatedError, ForbiddenError):
            break
        except (TransientError, RateLimitedError):
            fragment = shown
        except HeadroomError:
            break
        if fragment != shown:
            shown = fragment
            yield "event: fragment\n" + "".join(f"data: {line}\n" for line in fragment.splitlines()) + "\n"
        else:
            yield ": still here\n\n"
        await asyncio.sleep(REFRESH_S)
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
