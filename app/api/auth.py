"""Who is asking, and may they? Bearer tokens, roles, projects, how fast one caller may ask, the rules of the routes.

Identities are remembered for a short while, so that a revoked token stops working within seconds everywhere and at once
on the process that revoked it. A foreign project is never told from one that does not exist. Several API replicas each
keep their own buckets: the limit protects the process, which is what it is for.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from app.authority import Presented
from app.errors import CertificateError, ForbiddenError, JoinTokenExpiredError, RateLimitedError, UnauthenticatedError
from app.services.declared.identity import Identities
from app.services.declared.tokens import SIGN_IN_PREFIX, Actor
from app.store.grouped import GroupCommit
from app.store.tokens import Purpose, Role, secret_hash
from solvers.errors import NotFoundError, TransientError

BUCKETS_MAX = 20_000
BODY_BYTES_PER_S = 2 * 2**20
"""Of one token, besides the number of its requests: a long body costs as much as many."""


class RateLimiter:
    """Buckets that refill at `rate_per_s` and hold twice as much for bursts."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now_ms: float, spent: float = 1.0, body_bytes: int = 0) -> None:
        """Spend one request of `key`, or none, to see if it could, and more for a long body. Raises RateLimitedError
        with the time until the next is free. A rate of 0 limits nothing.
        """
        spent += self._rate_per_s * body_bytes / BODY_BYTES_PER_S
        if self._rate_per_s <= 0:
            return
        capacity = max(1.0, 2.0 * self._rate_per_s)
        with self._lock:
            level, at_ms = self._buckets.pop(key, (capacity, now_ms))
            level = min(capacity, level + max(0.0, now_ms - at_ms) / 1000.0 * self._rate_per_s)
            allowed = level >= 1.0
            self._buckets[key] = (level - spent if allowed else level, now_ms)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        if not allowed:
            raise RateLimitedError(
                f"more than {self._rate_per_s:g} requests per second", retry_after_s=(1.0 - level) / self._rate_per_s
            )


CACHE_TTL_MS = 3000.0
NOTED_MS = 3_600_000.0
CERTIFICATE = "certificate"
"""Under this name the state of a request's scope holds what its connection showed."""
PLACE = "place"
"""Under this name it holds the request's place among those that are worked on."""
CACHE_SIZE_MAX = 20_000
LATE_MS = 30_000.0
"""Who came within this time is asked about with all others."""
AGENT_RATE_FACTOR, NODE_RATE_FACTOR = 5.0, 0.25
"""Many may come with one token to join; what one node has to say fits into a few requests a second, and more of it
would leave less to others.
"""
_SECRET_LENGTH_MAX = 512
_RANKS = {Role.VIEWER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Who may use a route. `shared`: tokens of one project may, too (the route filters or checks projects itself)."""

    least: Role | None = None
    shared: bool = False
    reporter: bool = False
    agents: tuple[Purpose, ...] = ()

    def admits(self, actor: Actor) -> bool:
        if actor.role is Role.AGENT:
            return actor.purpose in self.agents
        if not self.shared and actor.project is not None:
            return False
        if actor.role is Role.REPORTER:
            return self.reporter
        return self.least is not None and _RANKS[actor.role] >= _RANKS[self.least]

    def __str__(self) -> str:
        """Whose tokens it admits."""
        roles = [role.value for role, rank in _RANKS.items() if self.least and rank >= _RANKS[self.least]]
        roles += [Role.REPORTER.value] if self.reporter else []
        found = [f"tokens of role {', '.join(roles)}{' (also of one project)' if self.shared else ''}"] if roles else []
        return "; ".join([*found, *(f"agent tokens of purpose {each.value}" for each in self.agents)])


@dataclass(slots=True)
class _Known:
    """What the database said of a secret, until when that holds, and when somebody came with it."""

    actor: Actor | None
    until_ms: float
    used_ms: float


class Authenticator:
    """Identities by the hash of their secret, remembered for a few seconds; unknown secrets are remembered, too. Of all
    who came of late the database is asked at once, before what it said has run out: each node reports less often.
    """

    def __init__(
        self,
        actors_of: Callable[[Sequence[str]], Sequence[Actor | None]],
        elapsed_ms: Callable[[], float],
        rate_limit_per_s: float,
        ended: Callable[[Sequence[Actor]], Sequence[Actor]] = lambda _: (),
        identities: Identities | None = None,
    ) -> None:
        self._actors_of = actors_of
        self._ended = ended
        self._identities = identities
        self._noted: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._elapsed_ms = elapsed_ms
        self._lock = threading.Lock()
        self._asked_ms = 0.0
        # A whole fleet may come at once: whoever waits holds no thread, and all are asked about together.
        self._looking_up = GroupCommit(self._look_up)
        self._refreshing = GroupCommit(self._refresh)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._people = RateLimiter(rate_limit_per_s)
        self._agents = RateLimiter(rate_limit_per_s * AGENT_RATE_FACTOR)
        self._nodes = RateLimiter(rate_limit_per_s * NODE_RATE_FACTOR)

    def remembered(self, secret: str) -> tuple[bool, Actor | None]:
        """Whether what is remembered of this secret still holds, and whose it is or was."""
        now_ms = self._elapsed_ms()
        with self._lock:
            entry = self._known.get(secret_hash(secret))
        if entry is None:
            return False, None
        entry.used_ms = now_ms
        return entry.until_ms >= now_ms, entry.actor

    async def recalled(self, secret: str) -> tuple[bool, Actor | None]:
        """The same, after the database was asked about all who came of late, where that is due."""
        known, actor = self.remembered(secret)
        if actor is not None and (self.is_due or not known):
            await self.refresh()
            known, actor = self.remembered(secret)
        return known, actor

    async def look_up(self, secret: str) -> Actor | None:
        """Ask the database and remember the answer. Raises TransientError when it cannot be asked."""
        return (await self._looking_up.submit(secret)).actor

    def _look_up(self, secrets: Sequence[str]) -> Sequence[_Known]:
        now_ms = self._elapsed_ms()
        found = [_Known(actor, now_ms + CACHE_TTL_MS, now_ms) for actor in self._actors_of(secrets)]
        with self._lock:
            for key, known in zip(map(secret_hash, secrets), found, strict=True):
                self._known[key] = known
                self._known.move_to_end(key)
            while len(self._known) > CACHE_SIZE_MAX:
                self._known.popitem(last=False)
        return found

    def doubt(self, actor: Actor, presented: Presented | None) -> str | None:
        """Why a node's token is not enough on a connection with this certificate; None: it is."""
        if self._identities is None:
            return None
        return self._identities.doubt(actor, presented, time.time())

    def note(self, actor: Actor, code: str) -> None:
        """Have the audit trail say so, unless this process has had so within the hour."""
        now_ms = self._elapsed_ms()
        with self._lock:
            told_ms = self._noted.get((actor.token_id, code))
            if told_ms is not None and now_ms - told_ms < NOTED_MS:
                return
            self._noted[actor.token_id, code] = now_ms
            if len(self._noted) > CACHE_SIZE_MAX:
                self._noted.popitem(last=False)
        if self._identities is not None:
            self._identities.note_refused(actor, code)

    @property
    def is_due(self) -> bool:
        """Whether the database should be asked again, and nobody does."""
        return self._elapsed_ms() >= self._asked_ms + CACHE_TTL_MS / 2 and not self._refreshing.is_busy

    async def refresh(self) -> None:
        """Ask the database, once for all, whether those who came of late may still come. Without it all runs out."""
        await self._refreshing.submit(self._elapsed_ms())

    def _refresh(self, came_ms: Sequence[float]) -> Sequence[bool]:
        with contextlib.suppress(TransientError):
            if not 0 < max(came_ms) <= self._asked_ms:
                self._asked_ms = self._elapsed_ms()
                self._ask_for_all(self._asked_ms)
        return [True] * len(came_ms)

    def _ask_for_all(self, now_ms: float) -> None:
        with self._lock:
            late = {key: known for key, known in self._known.items() if known.used_ms >= now_ms - LATE_MS}
        # What had expired is looked up again: it is good again where the database's clock was set back.
        held = {key: each.actor for key, each in late.items() if each.actor is not None and not each.actor.has_expired}
        ended = set(self._ended(tuple(held.values()))) if held else set()
        with self._lock:
            # Not of those that were looked up or forgotten meanwhile.
            for key in (key for key in held if self._known.get(key) is late[key]):
                self._known[key] = _Known(held[key], now_ms + CACHE_TTL_MS, late[key].used_ms)
                if held[key] in ended:
                    del self._known[key]

    def forget(self) -> None:
        """Believe nothing that is remembered; called when a token is revoked here."""
        with self._lock:
            self._asked_ms = 0.0
            for key, known in self._known.items():
                self._known[key] = _Known(known.actor, -math.inf, known.used_ms)

    def throttle(self, actor: Actor, body_bytes: int = 0) -> None:
        """Count one request. Raises RateLimitedError."""
        limiter = self._agents if actor.role is Role.AGENT else self._people
        limiter = self._nodes if actor.purpose is Purpose.NODE else limiter
        limiter.take(actor.token_id, self._elapsed_ms(), body_bytes=body_bytes)

    def throttle_stranger(self, host: str, failed: bool = True) -> None:
        """Count one failed attempt of a host, or look whether it may make one. Raises RateLimitedError."""
        self._people.take(f"host:{_household(host)}", self._elapsed_ms(), spent=float(failed))


def _household(host: str) -> str:
    """Whom an address belongs to: of IPv6 anybody has as many as they like, in the first half of one."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), 64), strict=False))


class HeldPlace(Protocol):
    """What one request has of the part of its token."""

    async def take(self, who: str) -> bool:
        """Wait for it; whether it had to. Raises RateLimitedError."""
        ...

    def leave(self) -> None: ...


bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="A Headroom token.")


async def identify(
    request: Request, credentials: HTTPAuthorizationCredentials | None, *, by_cookie: bool = False
) -> Actor:
    """The actor behind a request. What is in a browser's cookie is good for nothing else, and tokens are not good for
    cookies. Asynchronous only so that a remembered identity costs no hop to a thread.
    """
    authenticator: Authenticator = request.app.state.authenticator
    host = request.client.host if request.client else "-"
    secret = credentials.credentials if credentials is not None else ""
    if secret.startswith(f"{SIGN_IN_PREFIX}_") is not by_cookie:
        secret = ""
    if not secret or not secret.isascii() or len(secret) > _SECRET_LENGTH_MAX:
        authenticator.throttle_stranger(host)
        raise UnauthenticatedError("send a token: Authorization: Bearer <token>")
    actor = await _behind(authenticator, secret, host)
    length = request.headers.get("content-length", "")
    # Who does not say how long it is may send as much as a burst has.
    unsaid = 2 * BODY_BYTES_PER_S if "transfer-encoding" in request.headers else 0
    authenticator.throttle(actor, int(length[:20]) if length.isdigit() else unsaid)
    place: HeldPlace | None = request.scope.get("state", {}).get(PLACE)
    # By who it is: one secret can be written in many ways, and beside others.
    if place is not None and await place.take(actor.sign_in or actor.token_id):
        # It may have ended while it waited.
        actor = await _behind(authenticator, secret, host)
    return await _proved(request, authenticator, actor, secret)


async def _behind(authenticator: Authenticator, secret: str, host: str) -> Actor:
    """Who has this secret and may come in. Raises UnauthenticatedError, JoinTokenExpiredError, RateLimitedError."""
    known, actor = await authenticator.recalled(secret)
    if not known:
        if actor is None:
            authenticator.throttle_stranger(host, failed=False)
        actor = await authenticator.look_up(secret)
    if actor is None:
        authenticator.throttle_stranger(host)
        raise UnauthenticatedError("the token is unknown, expired or revoked")
    if actor.has_expired:
        authenticator.throttle_stranger(host)
        raise JoinTokenExpiredError("this join token has expired; ask for a new one")
    return actor


def certificate_of(request: Request) -> Presented | None:
    """What the peer showed when it connected."""
    found: Presented | None = request.scope.get("state", {}).get(CERTIFICATE)
    return found


async def _proved(request: Request, authenticator: Authenticator, actor: Actor, secret: str) -> Actor:
    """The same actor, if its connection has what its token needs. Raises CertificateError."""
    if actor.purpose is not Purpose.NODE:
        return actor
    presented = certificate_of(request)
    code = authenticator.doubt(actor, presented)
    if code == "certificate-foreign":
        # The key may be younger than what is remembered.
        found = await authenticator.look_up(secret)
        actor = found if found is not None else actor
        code = authenticator.doubt(actor, presented)
    if code is None:
        return actor
    await run_in_threadpool(authenticator.note, actor, code)
    raise CertificateError(code, f"the token is of node {actor.subject}, and {_DOUBTS[code]}")


_DOUBTS = {
    "certificate-required": "this connection shows no certificate",
    "certificate-foreign": "the certificate of this connection is not one of its own",
    "certificate-expired": "the certificate of this connection has expired",
}


RULES: dict[Any, Rule] = {}
"""The rule behind each dependency that `access` made; lets the description say what guards a route."""


def access(rule: Rule) -> Callable[..., Coroutine[Any, Any, Actor]]:
    """A dependency that lets in whom the rule admits and answers 401 or 403 to others."""

    async def guard(request: Request, credentials: HTTPAuthorizationCredentials | None = Depends(bearer)) -> Actor:
        actor = await identify(request, credentials)
        if not rule.admits(actor):
            whose = f" of project {actor.project}" if actor.project is not None else ""
            raise ForbiddenError(f"a token with role {actor.role.value}{whose} may not do this")
        request.state.actor = actor
        return actor

    RULES[guard] = rule
    return guard


def require_project(actor: Actor, project: str) -> None:
    """Raise NotFoundError when the actor's token is of another project: what it may not see does not exist."""
    if actor.project is not None and actor.project != project:
        raise NotFoundError(f"there is no project {project}")


def visible_project(actor: Actor, wanted: str | None) -> str | None:
    """The project a list is to be filtered by: the wanted one, or the token's own."""
    if wanted is not None:
        require_project(actor, wanted)
        return wanted
    return actor.project


# --- The rules by name: every router states one of them for each operation, and a test walks them all


CLUSTER_READ = Rule(least=Role.VIEWER)
SHARED_READ = Rule(least=Role.VIEWER, shared=True)
CLUSTER_WRITE = Rule(least=Role.OPERATOR)
PROJECT_WRITE = Rule(least=Role.OPERATOR, shared=True)
CLUSTER_ADMIN = Rule(least=Role.ADMIN)
COST_READ = Rule(least=Role.VIEWER, shared=True, reporter=True)
ROUTES_READ = Rule(least=Role.VIEWER, shared=True, agents=(Purpose.NODE, Purpose.GATEWAY))
LISTEN = Rule(least=Role.VIEWER, shared=True, agents=(Purpose.NODE, Purpose.GATEWAY))
JOIN = Rule(agents=(Purpose.JOIN, Purpose.NODE))
NODE_AGENT = Rule(agents=(Purpose.NODE,))
EDGE_WRITE = Rule(least=Role.OPERATOR, agents=(Purpose.GATEWAY,))

ClusterReader = Annotated[Actor, Depends(access(CLUSTER_READ))]
SharedReader = Annotated[Actor, Depends(access(SHARED_READ))]
ClusterWriter = Annotated[Actor, Depends(access(CLUSTER_WRITE))]
ClusterAdmin = Annotated[Actor, Depends(access(CLUSTER_ADMIN))]
CostReader = Annotated[Actor, Depends(access(COST_READ))]
RoutesReader = Annotated[Actor, Depends(access(ROUTES_READ))]
DoorbellListener = Annotated[Actor, Depends(access(LISTEN))]
Joiner = Annotated[Actor, Depends(access(JOIN))]
NodeAgent = Annotated[Actor, Depends(access(NODE_AGENT))]
EdgeReporter = Annotated[Actor, Depends(access(EDGE_WRITE))]
