"""A served cluster for the API's tests: the real application over a real database, with tokens of every kind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy.orm import Session
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from agents.wire import DeviceInventory, Join, encode
from app import kinds
from app.api.app import create_app
from app.api.console.door import COOKIE
from app.api.deps import ApiContext
from app.bootstrap import open_authority
from app.clock import SystemClock
from app.errors import ForbiddenError, PreconditionError
from app.kinds import Kind
from app.services.beliefs.beliefs import Beliefs
from app.services.declared.documents import put_audited
from app.services.declared.fleet import ensure_defaults
from app.services.declared.tokens import Deed, TokenRequest, Tokens
from app.services.planning.deciding import BARE, Remark, RolledBack
from app.services.planning.reviewing import tag_of
from app.settings import Settings
from app.store import plans, targets
from app.store.documents import Precondition
from app.store.engine import Database, normalise_url
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from app.store.tokens import Purpose, Role
from solvers.cycle.record import Lane
from solvers.domain.codec import to_plain
from solvers.domain.ids import PolicyName, ProjectName
from solvers.domain.policy import Policy
from solvers.domain.workload import Project
from solvers.errors import StateError
from solvers.planners import registry
from tests import builders
from tests.asgi import client_of
from tests.integration.postgres import TEMPLATE, Server
from tests.integration.store import plans as stored

CLUSTER = stored.CLUSTER
Headroom = Callable[..., tuple[int, str, str]]
"""A command of the command line: exit status, standard output and standard error."""
SETTLED = "headroom_settled"
OWN, FOREIGN = "demo", "other"
NODE = "a"
DEVICE = "GPU-a-0"


class StoredPlanning:
    """Planning without planners: proposes one stored plan, and really promotes it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.proposed = 0

    def propose(self, lane: Lane, actor: str) -> str:
        """Store a plan of the lane."""
        self.proposed += 1
        with self._database.transaction() as session:
            standing = targets.generation(session, CLUSTER)
            plan = stored.plan(parent=standing, seed=self.proposed)
            new = NewPlan(plan=plan, lane=lane, state=PlanState.PROPOSED, created_by=actor)
            return plans.put(session, new).id

    def apply(self, plan_id: str, actor: str, terms: Remark = BARE) -> int:
        """Promote a stored plan."""
        with self._database.transaction() as session:
            self._check(session, terms)
            summary = plans.get(session, plan_id)
            if summary.state is PlanState.SHADOW:
                raise StateError("the plan was made only to be looked at")
            wish = Promotion(
                cluster=CLUSTER,
                plan_id=plan_id,
                parent_generation=summary.parent_generation,
                promoted_by=actor,
                comment=terms.comment,
                node_documents={},
            )
            return targets.promote(session, wish)

    def rollback(self, wanted: int | None, hold_s: float, actor: str, terms: Remark = BARE) -> RolledBack:
        """Promote the plan of an earlier generation."""
        with self._database.transaction() as session:
            self._check(session, terms)
            now = targets.generation(session, CLUSTER)
            line = targets.line(session, now - 1 if wanted is None else wanted)
            wish = Promotion(
                cluster=CLUSTER,
                plan_id=line.plan_id,
                parent_generation=now,
                promoted_by=actor,
                node_documents={},
                again=True,
                hold_s=hold_s,
            )
            made, held = targets.promote(session, wish), targets.held_back(session, CLUSTER)
            return RolledBack(plan_id=line.plan_id, generation=made, restored=line.generation, held=held, worse=())

    def _check(self, session: Session, terms: Remark) -> None:
        if terms.standing is not None and terms.standing != tag_of(targets.current(session, CLUSTER)):
            raise PreconditionError("something else stands by now")


@dataclass(frozen=True, slots=True)
class World:
    """The application and everybody's tokens by the names used in tests."""

    app: FastAPI
    client: TestClient
    database: Database
    secrets: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict)

    def waits(self) -> bool:
        """Whether somebody waits for what another transaction holds by name."""
        with self.database.raw() as connection:
            mine = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            query = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {mine}"
            return bool(connection.execute(query).fetchone() != (0,))

    def call(
        self,
        method: str,
        path: str,
        who: str | None = "admin",
        *,
        plain: object = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One request; `plain` is sent as JSON, `body` as it is."""
        sent = dict(headers or {})
        if who is not None:
            sent["Authorization"] = f"Bearer {self.secrets[who]}"
        content = json.dumps(plain).encode() if plain is not None else body
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        answer: httpx.Response = self.client.request(method, path, content=content, headers=sent)
        return answer

    def cookie(self, who: str) -> dict[str, str]:
        """What a browser sends that is signed in as somebody; of those who may not be, their token."""
        secret = self.secrets[who]
        actor = self.app.state.services.tokens.actors_of([secret])[0]
        with contextlib.suppress(ForbiddenError):
            secret = self.app.state.services.sign_ins.begin(actor, "a browser", None).secret if actor else secret
        return {"Cookie": f"{COOKIE}={secret}"}

    def put(self, kind: Kind, value: object) -> None:
        """Store a document past the API."""
        with self.database.transaction() as session:
            put_audited(session, kind, value, Precondition(), Deed(actor="test"))

    def joined(self, node: str = NODE, boot_id: str = "boot-1", types: tuple[str, ...] = ("t4",)) -> dict[str, Any]:
        """Join a node over HTTP, with its own token if it has one, and remember its token under its name."""
        who = node if node in self.secrets else "join"
        answer = self.call("POST", "/v1/agent/join", who, plain=encode(join_message(node, boot_id, types)))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        self.secrets[node] = found["token"]
        return found


def join_message(node: str = NODE, boot_id: str = "boot-1", types: tuple[str, ...] = ("t4",)) -> Join:
    """What an agent of a node with these GPUs says first."""
    return Join(
        node=node,
        boot_id=boot_id,
        agent_version="0.1.0",
        protocol_version=1,
        rack="rack-1",
        failure_domain="zone-1",
        region="default",
        endpoint="http://127.0.0.1:9000",
        devices=tuple(inventory(node, index, gpu_type) for index, gpu_type in enumerate(types)),
    )


def inventory(node: str, index: int, gpu_type: str) -> DeviceInventory:
    """A GPU as an agent finds it."""
    shape = builders.gpu_type(gpu_type)
    return DeviceInventory(
        uuid=f"GPU-{node}-{index}",
        gpu_type=gpu_type,
        product=shape.product,
        index=index,
        memory_mib=shape.memory_mib,
        sm_count=shape.sm_count,
        clocks_mhz_sm=shape.clocks_mhz_sm,
        power_limit_w_min=shape.power_limit_w_min,
        power_limit_w_max=shape.power_limit_w_max,
        driver_version="550.54",
        capabilities={"set_clock": "", "mig": "not supported"},
    )


WHO: Mapping[str, TokenRequest] = {
    "admin": TokenRequest(name="admin", role=Role.ADMIN),
    "operator": TokenRequest(name="operator", role=Role.OPERATOR),
    "viewer": TokenRequest(name="viewer", role=Role.VIEWER),
    "reporter": TokenRequest(name="reporter", role=Role.REPORTER),
    "own operator": TokenRequest(name="own operator", role=Role.OPERATOR, project=OWN),
    "own viewer": TokenRequest(name="own viewer", role=Role.VIEWER, project=OWN),
    "own reporter": TokenRequest(name="own reporter", role=Role.REPORTER, project=OWN),
    "foreign operator": TokenRequest(name="foreign operator", role=Role.OPERATOR, project=FOREIGN),
    "foreign viewer": TokenRequest(name="foreign viewer", role=Role.VIEWER, project=FOREIGN),
    "join": TokenRequest(name="join", role=Role.AGENT, purpose=Purpose.JOIN),
    "node": TokenRequest(name="node", role=Role.AGENT, purpose=Purpose.NODE, subject=NODE),
    "foreign node": TokenRequest(name="foreign node", role=Role.AGENT, purpose=Purpose.NODE, subject="b"),
    "gateway": TokenRequest(name="gateway", role=Role.AGENT, purpose=Purpose.GATEWAY, subject="edge"),
}


class InTurn:
    """Requests go to one application and the other by turns, as behind a proxy; each has a memory of its own."""

    def __init__(self, *apps: FastAPI) -> None:
        self._apps = itertools.cycle(apps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await next(self._apps)(scope, receive, send)


REPLICAS = "HEADROOM_TEST_REPLICAS"
"""Set to anything: every request of these tests goes to another process's application than the one before."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Tokens by whose they are."""

    secrets: Mapping[str, str]
    ids: Mapping[str, str]


_settled: dict[str, Issued] = {}
"""What a database has from the beginning, by its URL: where it was cloned from one that was settled."""


def settled_clone(server: Server, name: str) -> str:
    """The URL of a new database with a catalogue, two projects and everybody's tokens, cloned like any other."""
    template, url = normalise_url(server.url(SETTLED)), normalise_url(server.url(name))
    if template not in _settled:
        database = Database(server.create(SETTLED, TEMPLATE))
        _settled[template] = _settle(database)
        database.dispose()
    _settled[url] = _settled[template]
    return server.create(name, SETTLED)


def build_world(database: Database, **settings: Any) -> World:
    """The application with a catalogue, two projects, and tokens of everybody."""
    chosen = Settings(**{"cluster": CLUSTER, "rate_limit_per_s": 0.0, **settings})
    context = ApiContext(
        settings=chosen,
        database=database,
        clock=SystemClock(),
        planning=StoredPlanning(database),
        beliefs=Beliefs(database),
        propose=registry.propose,
        authority=open_authority(chosen),
    )
    app = create_app(context)
    asked: ASGIApp = InTurn(app, create_app(context)) if os.environ.get(REPLICAS) else app
    issued = _settled.get(database.url) or _settle(database)
    return World(
        app=app,
        client=client_of(asked),
        database=database,
        secrets={**issued.secrets},
        ids={**issued.ids},
    )


def _settle(database: Database) -> Issued:
    with database.transaction() as session:
        ensure_defaults(session)
        deed = Deed(actor="test")
        for name in (OWN, FOREIGN):
            put_audited(session, kinds.PROJECT, Project(name=ProjectName(name)), Precondition(), deed)
        for name in ("t4", "v100"):
            put_audited(session, kinds.GPU_TYPE, builders.gpu_type(name), Precondition(), deed)
        put_audited(session, kinds.MODEL, builders.model(), Precondition(), deed)
    tokens = Tokens(database)
    issued = {name: tokens.issue(request, Deed(actor="test")) for name, request in WHO.items()}
    return Issued(
        secrets={name: each.secret for name, each in issued.items()},
        ids={name: each.id for name, each in issued.items()},
    )


def spec(value: object) -> dict[str, Any]:
    """A domain value as plain JSON data."""
    plain = to_plain(value)
    assert isinstance(plain, dict)
    return plain


def spare_policy() -> Policy:
    """A policy that nothing uses."""
    return Policy(name=PolicyName("spare"))
