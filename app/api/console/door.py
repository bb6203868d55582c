"""The door: signing in with a token or a link, what a signed-in browser holds, and what every page stands on (who
looks, the layout, answers to errors, styles and scripts).

The cookie holds a secret of its own, never the token. Forms are taken from this site alone.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import CLUSTER_READ, CLUSTER_WRITE, COST_READ, PLACE, SHARED_READ, HeldPlace, Rule, identify
from app.api.console.words import environment
from app.api.deps import Services, services_of
from app.api.problems import request_id_of
from app.errors import ForbiddenError, RateLimitedError, UnauthenticatedError, status_of
from app.kinds import Kind
from app.services.declared.oidc import ATTEMPT_S, OidcSignIns
from app.services.declared.sign_ins import SIGN_IN_S, SignedIn, require_person
from app.services.declared.tokens import Actor
from app.store.documents import Stored
from app.store.pages import whole
from solvers.errors import FieldError, HeadroomError, NotFoundError

COOKIE, ATTEMPT = "headroom_session", "headroom_attempt"
THEME = "headroom_theme"
THEMES = ("system", "light", "dark")
YEAR_S = 365 * 86_400
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # Without a referrer browsers send `Origin: null`, and signing in is refused.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
GZIP_BYTES_MIN = 1400
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class NavEntry:
    """An entry of the navigation, for whom the rule lets in."""

    path: str
    name: str
    rule: Rule = SHARED_READ
    also: tuple[str, ...] = ("-",)
    """What other addresses begin with that belong here."""


PLACES = (
    NavEntry("/", "Overview"),
    NavEntry("/services", "Services"),
    NavEntry("/plans", "Plans"),
    NavEntry("/fleet", "Fleet", also=("/nodes/", "/gpus/")),
    NavEntry("/what-if", "What if", CLUSTER_WRITE),
    NavEntry("/costs", "Cost", COST_READ),
    NavEntry("/work", "Tasks and jobs"),
    NavEntry("/models", "Models"),
    NavEntry("/policies", "Policies"),
    NavEntry("/audit", "Audit", CLUSTER_READ),
    NavEntry("/settings", "Settings"),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody who is signed in, and the request for a page."""

    request: Request
    actor: Actor

    @property
    def services(self) -> Services:
        return services_of(self.request)

    def may(self, rule: Rule) -> bool:
        return rule.admits(self.actor)

    def every(self, kind: Kind, project: str | None = None) -> Iterator[Stored]:
        """All documents of a kind, however many."""
        return whole(lambda order: self.services.documents.page(kind, order, project))

    def page(self, template: str, status: int = 200, **facts: Any) -> Response:
        """A page in the layout, for this person."""
        path = self.request.url.path
        facts |= {
            "actor": self.actor,
            "places": [place for place in PLACES if self.may(place.rule)],
            "here": path,
            "may_write": self.may(CLUSTER_WRITE),
            "may_see_all": self.may(CLUSTER_READ),
            "who": self._who,
            "own_name": self.services.tokens.name_of(self.actor.name),
        }
        return html(self.request, template, status, **facts)

    def _who(self, actor: str | None) -> str:
        """Somebody's name, for whom names are no secret."""
        return self.services.tokens.name_of(actor) if actor and self.may(CLUSTER_READ) else actor or "\N{EN DASH}"


def html(request: Request, template: str, status: int = 200, **facts: Any) -> Response:
    """A page, as small as the browser takes it."""
    facts |= {"theme": theme_of(request), "themes": THEMES, "asset": asset}
    facts["address"], facts["by_provider"] = _address(request), services_of(request).oidc is not None
    body = environment().get_template(template).render(**facts).encode()
    headers = {**HEADERS, "vary": "accept-encoding, cookie"}
    if len(body) >= GZIP_BYTES_MIN and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = gzip.compress(body, 5), "gzip"
    return HTMLResponse(body, status_code=status, headers=headers)


def theme_of(request: Request) -> str:
    """The colours that were chosen."""
    theme = request.cookies.get(THEME, "")
    return theme if theme in THEMES else THEMES[0]


def _address(request: Request) -> str:
    """The page that was asked for, or that a form was on, behind the server's name; for forms that lead back to it."""
    came = request.url if request.method == "GET" else URL(request.headers.get("referer", "/"))
    own = came.netloc in ("", request.headers.get("host")) and not came.path.startswith("/session")
    return came.path + (f"?{came.query}" if came.query else "") if own else "/"


# --- Errors of a page are pages


class PageRoute(APIRoute):
    """A route of the console: whoever is not signed in gets the form, every error a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (HeadroomError, RequestValidationError) as error:
                return await run_in_threadpool(_told, request, error)

        return handled


def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, UnauthenticatedError):
        return sign_in_page(request, status=200 if request.method == "GET" else 401, ended=COOKIE in request.cookies)
    if isinstance(error, RequestValidationError):
        faults = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
        nowhere = any(item["loc"][0] == "path" for item in error.errors())
        error = NotFoundError(f"There is no page {request.url.path}.") if nowhere else FieldError("", faults)
    assert isinstance(error, HeadroomError)
    entry = status_of(error)
    message = "The server failed; its log says more." if entry.status == 500 else error.message
    visit = getattr(request.state, "visit", None)
    page = partial(html, request) if visit is None else visit.page
    answer: Response = page("error.html", entry.status, title=entry.title, message=message)
    return answer


def not_here(otherwise: ASGIApp) -> ASGIApp:
    """What answers where nothing is: a page for people with a browser, who never meant the API."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive) if scope["type"] == "http" else None
        if (
            request is None
            or request.url.path.startswith("/v1/")
            or "text/html" not in request.headers.get("accept", "")
        ):
            await otherwise(scope, receive, send)
            return
        with contextlib.suppress(HeadroomError):
            await by_cookie()(request)
        error = NotFoundError(f"There is no page {request.url.path}.")
        await _told(request, error)(scope, receive, send)

    return answered


# --- Who looks


def by_cookie(rule: Rule = SHARED_READ) -> Callable[[Request], Coroutine[Any, Any, Visit]]:
    """A dependency: who looks, if the rule lets them; what changes anything has to come from a page of this site."""

    async def look(request: Request) -> Visit:
        if request.method != "GET" and not same_origin(request):
            raise ForbiddenError("this form came from another site")
        held = request.cookies.get(COOKIE, "")
        credentials = HTTPAuthorizationCredentials(scheme="Bearer", credentials=held) if held else None
        actor = await identify(request, credentials, by_cookie=True)
        require_person(actor)
        visit = request.state.visit = Visit(request, actor)
        if not rule.admits(actor):
            raise ForbiddenError(
                "your token may not do this" if request.method != "GET" else "your token may not see this"
            )
        return visit

    return look


Looking = Annotated[Visit, Depends(by_cookie())]


def same_origin(request: Request) -> bool:
    """Whether a form was sent from a page of this site, or not by a page at all."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    return site in ("none", "same-origin") and (
        origin is None or urlsplit(origin).netloc == request.headers.get("host")
    )


# --- In and out


router = APIRouter(include_in_schema=False, route_class=PageRoute)


def sign_in_page(
    request: Request, problem: str = "", *, status: int = 200, ended: bool = False, back: str = ""
) -> Response:
    """The page that asks for a token, and leads to where one wanted to go."""
    done = "" if request.method == "GET" else ", and nothing was changed"
    note = f"You are signed out{done}: sign in again." if ended and not problem else ""
    facts = {"problem": problem, "note": note, "code": "", "back": back or _address(request), "signed_in": False}
    return html(request, "signin.html", status, **facts)


@router.post("/session")
async def begin_session(
    request: Request,
    token: Annotated[str, Form(max_length=512)],
    back: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """Sign in: the token must be one that may look. What the browser gets is good for this site alone."""
    if not same_origin(request):
        return sign_in_page(request, "this form came from another site", status=403)
    try:
        actor = await identify(request, HTTPAuthorizationCredentials(scheme="Bearer", credentials=token.strip()))
        signed_in = await run_in_threadpool(
            services_of(request).sign_ins.begin, actor, _browser(request), request_id_of(request.scope)
        )
    except HeadroomError as error:
        refused = status_of(error).status
        return sign_in_page(request, error.message, status=401 if refused in (401, 403, 429) else refused, back=back)
    return _let_in(request, signed_in, back)


@router.get("/session/link", response_class=HTMLResponse)
def show_link(request: Request, code: Annotated[str, Query(max_length=512)] = "") -> Response:
    """Only a click, or the page's script, uses the link up: whoever looks at links in passing does not."""
    return html(request, "signin.html", problem="", note="", code=code, back="/", signed_in=False)


@router.post("/session/link")
async def use_link(request: Request, code: Annotated[str, Form(max_length=512)]) -> Response:
    """Sign in with a link of `headroom open`."""
    if not same_origin(request):
        return sign_in_page(request, "this form came from another site", status=403)
    host = _host(request)
    authenticator = request.app.state.authenticator
    try:
        authenticator.throttle_stranger(host, failed=False)
        signed_in = await run_in_threadpool(
            services_of(request).sign_ins.begin_by_link, code, _browser(request), request_id_of(request.scope)
        )
    except HeadroomError as error:
        if isinstance(error, UnauthenticatedError):
            authenticator.throttle_stranger(host)
        return sign_in_page(request, error.message, status=status_of(error).status)
    return _let_in(request, signed_in, "/")


WITHOUT_TOKEN = "without a token"


async def _in_turn(request: Request) -> None:
    """All who come from nowhere have one token's part of what is worked on: the provider answers as it likes."""
    place: HeldPlace | None = request.scope.get("state", {}).get(PLACE)
    try:
        if place is not None:
            await place.take(WITHOUT_TOKEN)
    except RateLimitedError as error:
        raise RateLimitedError("many are signing in at the moment; try again", error.retry_after_s) from None


@router.get("/session/oidc", dependencies=[Depends(_in_turn)])
def ask_provider(request: Request, back: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """Send a browser to the identity provider."""
    provider = _provider(request)
    # Whoever begins and never comes back has failed.
    request.app.state.authenticator.throttle_stranger(_host(request))
    begun = provider.begin(local(back))
    answer = RedirectResponse(begun.address, status_code=303, headers=HEADERS)
    # The provider leads back from another site: a strict cookie would stay at home.
    answer.set_cookie(
        ATTEMPT,
        begun.binder,
        max_age=int(ATTEMPT_S),
        httponly=True,
        samesite="lax",
        secure=provider.over_tls,
        path="/session/oidc",
    )
    return answer


@router.get("/session/oidc/back", dependencies=[Depends(_in_turn)])
def come_back(
    request: Request,
    state: Annotated[str, Query(max_length=512)] = "",
    code: Annotated[str, Query(max_length=4096)] = "",
    error: Annotated[str, Query(max_length=512)] = "",
) -> Response:
    """Sign in whom the identity provider names. The page leads on by itself: from this site, with its cookie."""
    provider = _provider(request)
    try:
        attempt = provider.take(state, request.cookies.get(ATTEMPT, ""))
        if error or not code:
            raise UnauthenticatedError("the identity provider did not sign you in")
        signed_in = provider.finish(attempt, code, _browser(request), request_id_of(request.scope))
    except HeadroomError as problem:
        request.app.state.authenticator.throttle_stranger(_host(request))
        return sign_in_page(request, problem.message, status=status_of(problem).status)
    answer = html(request, "signin.html", problem="", note="", code="", back=attempt.back, signed_in=True)
    answer.delete_cookie(ATTEMPT, path="/session/oidc")
    return _hold(answer, signed_in, over_tls=provider.over_tls)


def _provider(request: Request) -> OidcSignIns:
    provider = services_of(request).oidc
    if provider is None:
        raise NotFoundError("people sign in with tokens here: no identity provider is configured")
    request.app.state.authenticator.throttle_stranger(_host(request), failed=False)
    return provider


def _host(request: Request) -> str:
    return request.client.host if request.client else "-"


@router.post("/session/end")
async def end_session(request: Request) -> Response:
    """Sign out; also when that is over already."""
    if not same_origin(request):
        return sign_in_page(request, "this form came from another site", status=403)
    try:
        visit = await by_cookie()(request)
        await run_in_threadpool(end_sign_in, visit, visit.actor.sign_in or "")
    except (UnauthenticatedError, ForbiddenError, NotFoundError):
        pass
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def end_sign_in(visit: Visit, sign_in: str) -> None:
    """End one of those with this person's token. Raises NotFoundError."""
    visit.services.sign_ins.end(sign_in, visit.actor, request_id_of(visit.request.scope))
    visit.request.app.state.authenticator.forget()


def _let_in(request: Request, signed_in: SignedIn, back: str) -> Response:
    answer = RedirectResponse(local(back), status_code=303)
    # A proxy that speaks TLS for this server says so nowhere that can be believed; the browser does.
    over_tls = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    return _hold(answer, signed_in, over_tls=over_tls)


def _hold(answer: Response, signed_in: SignedIn, *, over_tls: bool) -> Response:
    answer.set_cookie(
        COOKIE, signed_in.secret, max_age=int(SIGN_IN_S), httponly=True, samesite="strict", secure=over_tls, path="/"
    )
    return answer


def _browser(request: Request) -> str:
    return "".join(filter(str.isprintable, request.headers.get("user-agent", "")))


def local(address: str) -> str:
    """An address of this site, or the first page."""
    parts = urlsplit(address)
    known = address.startswith("/") and not (parts.scheme or parts.netloc or address.startswith(("//", "/\\")))
    return quote(address, safe="/?&=%:,.~+-_") if known else "/"


@router.post("/theme")
def choose_theme(
    request: Request, theme: Annotated[str, Form(max_length=16)], back: Annotated[str, Form(max_length=2000)] = "/"
) -> Response:
    """Light, dark, or as the system has it; kept by the browser."""
    if not same_origin(request) or theme not in THEMES:
        raise ForbiddenError("this form came from another site")
    answer = RedirectResponse(local(back), status_code=303)
    answer.set_cookie(THEME, theme, max_age=YEAR_S, httponly=True, samesite="strict", path="/")
    return answer


# --- Styles and scripts


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    packed: bytes
    digest: str


@cache
def _assets() -> dict[str, _Asset]:
    folder = resources.files("app.api.console").joinpath("static")
    found = {}
    for at in (folder, folder.joinpath("vendor")):
        for file in at.iterdir():
            if file.name.rpartition(".")[2] in _TYPES:
                content = file.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                found[file.name] = _Asset(content, gzip.compress(content, 9), digest)
    return found


def asset(name: str) -> str:
    """The address of a style or script, another one for every content."""
    return f"/static/{name}?{_assets()[name].digest}"


@router.get("/favicon.ico")
def no_icon() -> Response:
    """Pages say that they have none; what is only text cannot."""
    return Response(status_code=204, headers={"cache-control": f"max-age={YEAR_S}"})


@router.get("/static/{name}")
def static(request: Request, name: str) -> Response:
    """Styles and scripts; under an address with their digest they never change."""
    found = _assets().get(name)
    if found is None:
        raise NotFoundError(f"there is no {name}")
    lasting = request.url.query == found.digest
    headers = {**HEADERS, "cache-control": f"max-age={YEAR_S}, immutable" if lasting else "no-cache"}
    content, headers["vary"] = found.content, "accept-encoding"
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = found.packed, "gzip"
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
