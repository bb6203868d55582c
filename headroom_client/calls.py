"""Every call of the API, once: what is asked, what its answer becomes, and when it is asked again.

A call is written for those who await. How requests are made is the connection's: that of a `Client` never makes anybody
wait for an event loop, so that its calls are done when they are begun.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import update_wrapper
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import httpx

from headroom_client.connection import Awaiting, Blocking
from headroom_client.wire import (
    ApiAnswer,
    ApiError,
    Document,
    ObjectHook,
    UnreachableError,
    WrongUseError,
    answer_of,
    answer_to_repeat,
    given,
    key_of,
    no_answer,
    path_of,
    pause_s,
    routes_path,
)

ATTEMPTS_MAX = 4
SIMULATION_S_MAX = 900.0
_RETRY_STATUSES = frozenset({429, 502, 503, 504})
_LOST_STATUSES = frozenset({502, 504})
"""Somebody between says that no answer came: what was asked for may be done."""

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")


class Sync:
    """Has what its methods find."""


class Async:
    """Awaits it."""


class Method(Generic[P, S, A]):
    """A call as a method: of a `Sync` one that has its result, of an `Async` one to await or to follow."""

    def __init__(self, call: Callable[..., Any]) -> None:
        def asked(client: Any, *args: Any, **terms: Any) -> Any:
            return client._found(call(client, *args, **terms))

        self._asked = update_wrapper(asked, call)

    @overload
    def __get__(self, client: Sync, owner: type) -> Callable[P, S]: ...
    @overload
    def __get__(self, client: Async, owner: type) -> Callable[P, A]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._asked if client is None else MethodType(self._asked, client)


def verb(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, T, Coroutine[Any, Any, T]]:
    """What is asked and answered."""
    return Method(call)


def stream(call: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Method[P, Iterator[T], AsyncIterator[T]]:
    """What is followed."""
    return Method(call)


def _refuse_others(method: str, path: str) -> None:
    if not {"", ".", ".."}.isdisjoint(path.split("/")[1:]):
        raise WrongUseError(f"a name is empty, or dots: {method} {path} would ask for something else")
    if "%2F" in path:
        # Servers see a slash, which parts names.
        raise WrongUseError(f"a name has a slash in it: {method} {path} would ask for something else")


class Calls:
    """What can be asked of one control plane with one token."""

    def __init__(self, server: str, http: Blocking | Awaiting, attempts_max: int, object_hook: ObjectHook) -> None:
        self.server, self._http, self._attempts_max, self._object_hook = server, http, attempts_max, object_hook

    # -- declarative documents ----------------------------------------------------------------------------------------

    @verb
    async def get(self, kind: str, *key: str) -> ApiAnswer:
        """One document. Raises ApiError with status 404 when there is none."""
        return await self._sent("GET", path_of(kind, key))

    @verb
    async def put(
        self, kind: str, document: Mapping[str, Any], *, if_match: str | None = None, only_create: bool = False
    ) -> ApiAnswer:
        """Create or replace a document; status 201 or 200. `if_match` is the version tag that must still be current."""
        headers = {"If-Match": if_match} if if_match else {}
        if only_create:
            headers["If-None-Match"] = "*"
        return await self._sent("PUT", path_of(kind, key_of(kind, document)), json=document, headers=headers)

    @verb
    async def patch(
        self, kind: str, key: Sequence[str], wish: Mapping[str, Any], *, if_match: str | None = None
    ) -> ApiAnswer:
        """Change what a merge patch (RFC 7396) names of a document."""
        headers = {"Content-Type": "application/merge-patch+json"} | ({"If-Match": if_match} if if_match else {})
        return await self._sent("PATCH", path_of(kind, tuple(key)), content=json.dumps(wish), headers=headers)

    @verb
    async def drain(self, node: str, comment: str | None = None) -> Document:
        """Take a node out of use; how far it is."""
        return await self._document("POST", f"/v1/nodes/{quote(node, safe='')}/drain", json=given({"comment": comment}))

    @verb
    async def drained(self, node: str) -> Document:
        """How far a node is from being empty."""
        return await self._document("GET", f"/v1/nodes/{quote(node, safe='')}/drain")

    @verb
    async def uncordon(self, node: str, comment: str | None = None) -> Document:
        """Put a node back into use."""
        return await self._document(
            "POST", f"/v1/nodes/{quote(node, safe='')}/uncordon", json=given({"comment": comment})
        )

    @verb
    async def delete(self, kind: str, *key: str) -> None:
        await self._sent("DELETE", path_of(kind, key))

    @verb
    async def check(self, documents: Sequence[Mapping[str, Any]]) -> list[Document]:
        """What putting these documents together (`kind` and `document` each) would do; nothing is written."""
        return await self._items("POST", "/v1/checks", json={"documents": list(documents)}, timeout_s=120.0)

    @stream
    async def items(self, route: str, /, **query: str | int | Sequence[str] | None) -> AsyncIterator[Document]:
        """All items of a list route (`services`, `nodes`, …), page by page."""
        wanted = given(query)
        while True:
            page = await self._document("GET", f"/v1/{route}", params=wanted)
            for item in page["items"]:
                yield item
            cursor = page.get("next_cursor")
            if not cursor:
                return
            wanted["cursor"] = cursor

    @verb
    async def import_profiles(
        self, *, csv: str | None = None, points: list[Document] | None = None, skip_bad: bool = False
    ) -> Any:
        """Import measurements, from CSV text of any form or as a list of points."""
        sent: dict[str, Any] = {"json": points or []}
        if csv is not None:
            sent = {"content": csv.encode(), "headers": {"Content-Type": "text/csv"}}
        if skip_bad:
            sent["params"] = {"skip_bad": "true"}
        return (await self._sent("POST", "/v1/profiles", timeout_s=120.0, **sent)).body

    @verb
    async def next_points(self, model: str, gpu_type: str, budget: int = 16) -> ApiAnswer:
        """The measurements of a model on a GPU type that would tell most, as `items`."""
        path = f"/v1/profiles/{quote(model, safe='')}/{quote(gpu_type, safe='')}/next-points"
        return await self._sent("GET", path, params={"budget": budget}, timeout_s=120.0)

    @verb
    async def create_profile_run(self, wanted: Mapping[str, Any]) -> Document:
        """Order a run that measures a service on a device."""
        return await self._document("POST", "/v1/profile-runs", json=given(wanted))

    @verb
    async def profile_run(self, run: int) -> Document:
        return await self._document("GET", f"/v1/profile-runs/{run}")

    @verb
    async def delete_profile_run(self, run: int) -> None:
        await self._sent("DELETE", f"/v1/profile-runs/{run}")

    @verb
    async def submit_task(self, task: Mapping[str, Any]) -> ApiAnswer:
        """Submit an offline task; the answer's body is its document, with the name it was given."""
        return await self._sent("POST", "/v1/tasks", json=given(task))

    @verb
    async def task_status(self, project: str, name: str) -> Document:
        return await self._document("GET", f"/v1/tasks/{quote(project, safe='')}/{quote(name, safe='')}/status")

    @verb
    async def predict(self, queries: Sequence[Mapping[str, Any]]) -> list[Document]:
        """What is believed of configurations; one answer for each question."""
        asked = [dict(query) for query in queries]
        found: list[Document] = (await self._sent("POST", "/v1/predictions", json=asked, timeout_s=120.0)).body
        return found

    # -- state --------------------------------------------------------------------------------------------------------

    @verb
    async def health(self) -> bool:
        """Whether the API process answers at all."""
        return (await self._sent("GET", "/v1/health")).status == 200

    @verb
    async def ready(self) -> bool:
        """Whether the API can serve (its database answers and is migrated)."""
        try:
            return (await self._sent("GET", "/v1/ready", attempts_max=1)).status == 200
        except (ApiError, UnreachableError):
            return False

    @verb
    async def fleet(self) -> Document:
        """Summary of the fleet, its services, the current plan and its cost."""
        return await self._document("GET", "/v1/fleet")

    @verb
    async def routes(self, etag: str | None = None, service: str = "") -> ApiAnswer:
        """Ready replicas with endpoints and weights, of all services or of one (`project/name`); status 304 when
        nothing changed since `etag`.
        """
        return await self._sent("GET", routes_path(service), headers={"If-None-Match": etag} if etag else {})

    @stream
    def watch_routes(self, service: str = "") -> AsyncIterator[Document]:
        """The same now and after every change, for about an hour at most. Raises UnreachableError on silence, too."""
        return self._lines(routes_path(service), {"watch": "true"})

    @stream
    def logs(
        self, project: str, name: str, *, replica: str | None = None, tail: int = 100, follow: bool = False
    ) -> AsyncIterator[Document]:
        """What the workers of a service, job or task wrote last, and with `follow` what they write: `node`, `replica`
        and `line`, or `problem` where there is none to tell. Raises UnreachableError on silence, too.
        """
        asked = given({"replica": replica, "tail": tail, "follow": "true" if follow else None})
        return self._lines(f"/v1/logs/{quote(project, safe='')}/{quote(name, safe='')}", asked)

    # -- plans --------------------------------------------------------------------------------------------------------

    @verb
    async def plan(self, request: Mapping[str, Any] | None = None) -> Document:
        """Ask for a plan now; nothing changes until it is applied."""
        return await self._document("POST", "/v1/plans", json=dict(request or {}), timeout_s=120.0)

    @verb
    async def stored_plan(self, plan_id: str) -> Document:
        return await self._document("GET", f"/v1/plans/{quote(plan_id, safe=':')}")

    @verb
    async def diff_plan(self, plan_id: str) -> ApiAnswer:
        """What a plan would change against what stands now, with the tag of that."""
        return await self._sent("GET", f"/v1/plans/{quote(plan_id, safe=':')}/diff", timeout_s=120.0)

    @verb
    async def apply_plan(self, plan_id: str, *, comment: str | None = None, if_match: str | None = None) -> Document:
        """Approve a plan: it becomes the target, if what `if_match` tags still stands."""
        path, headers = f"/v1/plans/{quote(plan_id, safe=':')}/apply", {"If-Match": if_match} if if_match else {}
        return await self._document("POST", path, json=given({"comment": comment}), headers=headers, timeout_s=120.0)

    @verb
    async def reject_plan(self, plan_id: str, comment: str = "") -> Document:
        """Say no to a plan that waits."""
        return await self._document("POST", f"/v1/plans/{quote(plan_id, safe=':')}/reject", json={"comment": comment})

    @verb
    async def roll_back(self, wish: Mapping[str, Any] | None = None) -> Document:
        """Make what stood at a `generation` the target again; without one, what stood before."""
        return await self._document("POST", "/v1/rollback", json=given(wish or {}), timeout_s=120.0)

    @verb
    async def resume_planning(self) -> Document:
        """End what a rollback holds; what that was, as `held`."""
        return await self._document("POST", "/v1/planning/resume", json={})

    @verb
    async def explain(self, plan_id: str, /, **query: str | None) -> Document:
        return await self._document("GET", f"/v1/plans/{quote(plan_id, safe=':')}/explain", params=given(query))

    @verb
    async def cycle(self, cycle_id: str) -> Document:
        return await self._document("GET", f"/v1/cycles/{quote(cycle_id, safe='')}")

    @verb
    async def cycle_states(self, cycle_id: str) -> list[Document]:
        """What the planners of a cycle were handed of what they had kept."""
        return await self._items("GET", f"/v1/cycles/{quote(cycle_id, safe='')}/states")

    @verb
    async def target(self) -> Document:
        """What the fleet must hold now."""
        return await self._document("GET", "/v1/targets/current")

    @verb
    async def costs(self, /, **query: str | None) -> Document:
        return await self._document("GET", "/v1/costs", params=given(query))

    @verb
    async def focus(self, /, **query: str | None) -> str:
        """The ledger in the columns of FOCUS, as CSV."""
        return str((await self._sent("GET", "/v1/costs/focus", params=given(query), timeout_s=120.0)).body)

    @verb
    async def budget_forecasts(self) -> list[Document]:
        """Budgets of the running month beside what it has cost and will."""
        return await self._items("GET", "/v1/budget-forecasts")

    # -- what if ------------------------------------------------------------------------------------------------------

    @verb
    async def snapshot(self) -> Document:
        """The picture of the fleet that a plan would be made from now."""
        return await self._document("GET", "/v1/snapshot", timeout_s=120.0)

    @verb
    async def simulate(self, question: Mapping[str, Any]) -> Document:
        """What a plan would be if: `changes`, `advise`, and how to plan. Changes nothing."""
        return await self._document("POST", "/v1/simulations", json=dict(question), timeout_s=SIMULATION_S_MAX)

    # -- access -------------------------------------------------------------------------------------------------------

    @verb
    async def create_token(self, request: Mapping[str, Any]) -> Document:
        """A new token; its secret is in the answer and nowhere else."""
        return await self._document("POST", "/v1/tokens", json=given(request))

    @verb
    async def revoke_token(self, token_id: str) -> None:
        await self._sent("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    @verb
    async def sign_in_link(self) -> str:
        """An address that signs a browser in as this client, once and within a minute."""
        return f"{self.server}{(await self._document('POST', '/v1/sign-in-links', json={}))['path']}"

    @verb
    async def revoke_node(self, node: str) -> None:
        """Turn a node out: its tokens and keys end."""
        await self._sent("DELETE", f"/v1/nodes/{quote(node, safe='')}/identity")

    # -- transport ----------------------------------------------------------------------------------------------------

    @verb
    async def call(self, method: str, path: str, /, **terms: Any) -> ApiAnswer:
        """Any request, with bounded retries: `headers`, `timeout_s`, `attempts_max`, and what httpx takes; every POST
        carries an Idempotency-Key, so that a repeat happens once.
        """
        return await self._sent(method, path, **terms)

    async def _items(self, method: str, path: str, **terms: Any) -> list[Document]:
        found: list[Document] = (await self._document(method, path, **terms))["items"]
        return found

    async def _document(self, method: str, path: str, **terms: Any) -> Document:
        body = (await self._sent(method, path, **terms)).body
        if not isinstance(body, dict):
            raise ApiError(502, {"detail": f"{method} {path} did not answer with an object", "code": "answer-invalid"})
        return body

    async def _lines(self, path: str, asked: Document) -> AsyncIterator[Document]:
        _refuse_others("GET", path)
        try:
            async with aclosing(self._http.lines(path, asked)) as lines:
                async for line in lines:
                    if line.startswith("{"):
                        yield json.loads(line, object_hook=self._object_hook)
        except httpx.TransportError as error:
            raise UnreachableError(no_answer(self.server, error)) from error

    async def _sent(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        attempts_max: int | None = None,
        **terms: Any,
    ) -> ApiAnswer:
        _refuse_others(method, path)
        terms["headers"] = dict(headers or {})
        if method == "POST":
            terms["headers"].setdefault("Idempotency-Key", str(uuid.uuid4()))
        if timeout_s is not None:
            terms["timeout"] = timeout_s
        last, lost = attempts_max or self._attempts_max, False
        for attempt in range(1, last + 1):
            try:
                response = await self._http.request(method, path, terms)
            except httpx.TransportError as error:
                if attempt == last or not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
                    raise UnreachableError(no_answer(self.server, error)) from error
                lost = True
                await self._http.pause(0.1 * attempt)
                continue
            if response.status_code in _RETRY_STATUSES and attempt < last:
                lost = lost or response.status_code in _LOST_STATUSES
                await self._http.pause(pause_s(response, attempt))
                continue
            return (answer_to_repeat if lost else answer_of)(response, self._object_hook)
        raise UnreachableError(f"{self.server} gave no answer")
