"""The HTTP client: connection, retries, and one exception type that carries the problem. Answers are plain data."""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx

Document = dict[str, Any]

ATTEMPTS_MAX = 4
SIMULATION_S_MAX = 900.0
STREAM_SILENT_S = 60.0
"""A stream that does not even beat for this long is dead."""
_RETRY_STATUSES = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """Base of all that goes wrong here: a sentence, and a stable code."""

    code = "client"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class WrongUseError(ClientError, ValueError):
    """What was asked for makes no sense; nothing was sent."""

    code = "input-invalid"


class ApiError(ClientError):
    """The API answered with a problem. `code` is the problem's stable code, `pointers` name the offending fields."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
        super().__init__(detail)
        self.status = status
        self.code = str(problem.get("code") or f"http-{status}")
        self.request_id = str(problem.get("request_id") or "")
        self.pointers = tuple(
            (str(item.get("pointer", "")), str(item.get("detail", "")))
            for item in problem.get("errors") or ()
            if isinstance(item, Mapping)
        )


class UnreachableError(ClientError):
    """No answer: nothing listens, the name does not resolve, or the time ran out."""

    code = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """A successful answer: status, parsed body (None when empty), the version tag, and how far what is believed has
    come with what is stored (`learned`, `learning`, `failed`), if any.
    """

    status: int
    body: Any
    etag: str | None
    belief: str | None = None


class Client:
    """A connection to one control plane with one token, for one thread; close it or use it as a context manager."""

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> None:
        if not server.startswith(("http://", "https://")):
            raise WrongUseError(f"the server address {server!r} must start with http:// or https://")
        self.server = server.rstrip("/")
        self._attempts_max = attempts_max
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # Where nothing is encrypted nobody's certificate is believed: to read whom the system trusts takes long.
        verify = self.server.startswith("https://") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.Client(
            base_url=self.server, headers=headers, timeout=timeout_s, transport=transport, verify=verify
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # -- declarative documents ----------------------------------------------------------------------------------------

    def get(self, kind: str, *key: str) -> ApiAnswer:
        """One document. Raises ApiError with status 404 when there is none."""
        return self.call("GET", _path(kind, key))

    def put(
        self, kind: str, document: Mapping[str, Any], *, if_match: str | None = None, only_create: bool = False
    ) -> ApiAnswer:
        """Create or replace a document; status 201 or 200. `if_match` is the version tag that must still be current."""
        headers = {"If-Match": if_match} if if_match else {}
        if only_create:
            headers["If-None-Match"] = "*"
        return self.call("PUT", _path(kind, key_of(kind, document)), json=document, headers=headers)

    def patch(
        self, kind: str, key: Sequence[str], wish: Mapping[str, Any], *, if_match: str | None = None
    ) -> ApiAnswer:
        """Change what a merge patch (RFC 7396) names of a document."""
        headers = {"Content-Type": "application/merge-patch+json"} | ({"If-Match": if_match} if if_match else {})
        return self.call("PATCH", _path(kind, tuple(key)), content=json.dumps(wish), headers=headers)

    def drain(self, node: str, comment: str | None = None) -> Document:
        """Take a node out of use; how far it is."""
        return self._document("POST", f"/v1/nodes/{quote(node, safe='')}/drain", json=_given({"comment": comment}))

    def drained(self, node: str) -> Document:
        """How far a node is from being empty."""
        return self._document("GET", f"/v1/nodes/{quote(node, safe='')}/drain")

    def uncordon(self, node: str, comment: str | None = None) -> Document:
        """Put a node back into use."""
        return self._document("POST", f"/v1/nodes/{quote(node, safe='')}/uncordon", json=_given({"comment": comment}))

    def delete(self, kind: str, *key: str) -> None:
        self.call("DELETE", _path(kind, key))

    def check(self, documents: Sequence[Mapping[str, Any]]) -> list[Document]:
        """What putting these documents together (`kind` and `document` each) would do; nothing is written."""
        found: list[Document] = self._document(
            "POST", "/v1/checks", json={"documents": list(documents)}, timeout_s=120.0
        )["items"]
        return found

    def items(self, route: str, **query: str | int | Sequence[str] | None) -> Iterator[Document]:
        """All items of a list route (`services`, `nodes`, …), page by page."""
        wanted = _given(query)
        while True:
            page = self.call("GET", f"/v1/{route}", params=wanted).body
            yield from page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return
            wanted["cursor"] = cursor

    def import_profiles(
        self, *, csv: str | None = None, points: list[Document] | None = None, skip_bad: bool = False
    ) -> Any:
        """Import measurements, from CSV text of any form or as a list of points."""
        sent: dict[str, Any] = {"json": points or []}
        if csv is not None:
            sent = {"content": csv.encode(), "headers": {"Content-Type": "text/csv"}}
        if skip_bad:
            sent["params"] = {"skip_bad": "true"}
        return self.call("POST", "/v1/profiles", timeout_s=120.0, **sent).body

    def next_points(self, model: str, gpu_type: str, budget: int = 16) -> ApiAnswer:
        """The measurements of a model on a GPU type that would tell most, as `items`."""
        path = f"/v1/profiles/{quote(model, safe='')}/{quote(gpu_type, safe='')}/next-points"
        return self.call("GET", path, params={"budget": budget}, timeout_s=120.0)

    def create_profile_run(self, wanted: Mapping[str, Any]) -> Document:
        """Order a run that measures a service on a device."""
        return self._document("POST", "/v1/profile-runs", json=_given(wanted))

    def profile_run(self, run: int) -> Document:
        return self._document("GET", f"/v1/profile-runs/{run}")

    def delete_profile_run(self, run: int) -> None:
        self.call("DELETE", f"/v1/profile-runs/{run}")

    def submit_task(self, task: Mapping[str, Any]) -> Document:
        """Submit an offline task; its document, with the name it was given."""
        return self._document("POST", "/v1/tasks", json=_given(task))

    def task_status(self, project: str, name: str) -> Document:
        return self._document("GET", f"/v1/tasks/{quote(project, safe='')}/{quote(name, safe='')}/status")

    def predict(self, queries: Sequence[Mapping[str, Any]]) -> list[Document]:
        """What is believed of configurations; one answer for each question."""
        asked = [dict(query) for query in queries]
        found: list[Document] = self.call("POST", "/v1/predictions", json=asked, timeout_s=120.0).body
        return found

    # -- state --------------------------------------------------------------------------------------------------------

    def health(self) -> bool:
        """Whether the API process answers at all."""
        return self.call("GET", "/v1/health").status == 200

    def ready(self) -> bool:
        """Whether the API can serve (its database answers and is migrated)."""
        try:
            return self.call("GET", "/v1/ready", attempts_max=1).status == 200
        except (ApiError, UnreachableError):
            return False

    def fleet(self) -> Document:
        """Summary of the fleet, its services, the current plan and its cost."""
        return self._document("GET", "/v1/fleet")

    def routes(self, etag: str | None = None, service: str = "") -> ApiAnswer:
        """Ready replicas with endpoints and weights, of all services or of one (`project/name`); status 304 when
        nothing changed since `etag`.
        """
        return self.call("GET", _routes_path(service), headers={"If-None-Match": etag} if etag else {})

    def watch_routes(self, service: str = "") -> Iterator[Document]:
        """The same now and after every change, for about an hour at most. Raises UnreachableError on silence, too."""
        return self._lines(_routes_path(service), {"watch": "true"})

    def logs(
        self, project: str, name: str, *, replica: str | None = None, tail: int = 100, follow: bool = False
    ) -> Iterator[Document]:
        """What the workers of a service, job or task wrote last, and with `follow` what they write: `node`, `replica`
        and `line`, or `problem` where there is none to tell. Raises UnreachableError on silence, too.
        """
        asked = _given({"replica": replica, "tail": tail, "follow": "true" if follow else None})
        return self._lines(f"/v1/logs/{quote(project, safe='')}/{quote(name, safe='')}", asked)

    def _lines(self, path: str, asked: Document) -> Iterator[Document]:
        patience = httpx.Timeout(10.0, read=STREAM_SILENT_S)
        try:
            with self._http.stream("GET", path, params=asked, timeout=patience) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise ApiError(answer.status_code, _problem(answer))
                yield from (json.loads(line) for line in answer.iter_lines() if line.startswith("{"))
        except httpx.TransportError as error:
            raise UnreachableError(_no_answer(self.server, error)) from error

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan(self, request: Mapping[str, Any] | None = None) -> Document:
        """Ask for a plan now; nothing changes until it is applied."""
        return self._document("POST", "/v1/plans", json=dict(request or {}), timeout_s=120.0)

    def stored_plan(self, plan_id: str) -> Document:
        return self._document("GET", f"/v1/plans/{quote(plan_id, safe=':')}")

    def diff_plan(self, plan_id: str) -> ApiAnswer:
        """What a plan would change against what stands now, with the tag of that."""
        return self.call("GET", f"/v1/plans/{quote(plan_id, safe=':')}/diff", timeout_s=120.0)

    def apply_plan(self, plan_id: str, *, comment: str | None = None, if_match: str | None = None) -> Document:
        """Approve a plan: it becomes the target, if what `if_match` tags still stands."""
        path, headers = f"/v1/plans/{quote(plan_id, safe=':')}/apply", {"If-Match": if_match} if if_match else {}
        return self._document("POST", path, json=_given({"comment": comment}), headers=headers, timeout_s=120.0)

    def reject_plan(self, plan_id: str, comment: str = "") -> Document:
        """Say no to a plan that waits."""
        return self._document("POST", f"/v1/plans/{quote(plan_id, safe=':')}/reject", json={"comment": comment})

    def roll_back(self, wish: Mapping[str, Any] | None = None) -> Document:
        """Make what stood at a `generation` the target again; without one, what stood before."""
        return self._document("POST", "/v1/rollback", json=_given(wish or {}), timeout_s=120.0)

    def resume_planning(self) -> Document:
        """End what a rollback holds; what that was, as `held`."""
        return self._document("POST", "/v1/planning/resume", json={})

    def explain(self, plan_id: str, **query: str | None) -> Document:
        return self._document("GET", f"/v1/plans/{quote(plan_id, safe=':')}/explain", params=_given(query))

    def cycle(self, cycle_id: str) -> Document:
        return self._document("GET", f"/v1/cycles/{quote(cycle_id, safe='')}")

    def cycle_states(self, cycle_id: str) -> list[Document]:
        """What the planners of a cycle were handed of what they had kept."""
        found: list[Document] = self._document("GET", f"/v1/cycles/{quote(cycle_id, safe='')}/states")["items"]
        return found

    def target(self) -> Document:
        """What the fleet must hold now."""
        return self._document("GET", "/v1/targets/current")

    def costs(self, **query: str | None) -> Document:
        return self._document("GET", "/v1/costs", params=_given(query))

    def focus(self, **query: str | None) -> str:
        """The ledger in the columns of FOCUS, as CSV."""
        return str(self.call("GET", "/v1/costs/focus", params=_given(query), timeout_s=120.0).body)

    def budget_forecasts(self) -> list[Document]:
        """Budgets of the running month beside what it has cost and will."""
        found: list[Document] = self._document("GET", "/v1/budget-forecasts")["items"]
        return found

    # -- what if ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Document:
        """The picture of the fleet that a plan would be made from now."""
        return self._document("GET", "/v1/snapshot", timeout_s=120.0)

    def simulate(self, question: Mapping[str, Any]) -> Document:
        """What a plan would be if: `changes`, `advise`, and how to plan. Changes nothing."""
        return self._document("POST", "/v1/simulations", json=dict(question), timeout_s=SIMULATION_S_MAX)

    # -- access -------------------------------------------------------------------------------------------------------

    def create_token(self, request: Mapping[str, Any]) -> Document:
        """A new token; its secret is in the answer and nowhere else."""
        return self._document("POST", "/v1/tokens", json=_given(request))

    def revoke_token(self, token_id: str) -> None:
        self.call("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    def sign_in_link(self) -> str:
        """An address that signs a browser in as this client, once and within a minute."""
        return f"{self.server}{self._document('POST', '/v1/sign-in-links')['path']}"

    def revoke_node(self, node: str) -> None:
        """Turn a node out: its tokens and keys end."""
        self.call("DELETE", f"/v1/nodes/{quote(node, safe='')}/identity")

    # -- transport ----------------------------------------------------------------------------------------------------

    def _document(self, method: str, path: str, **arguments: Any) -> Document:
        body = self.call(method, path, **arguments).body
        if not isinstance(body, dict):
            raise ApiError(502, {"detail": f"{method} {path} did not answer with an object", "code": "answer-invalid"})
        return body

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        attempts_max: int | None = None,
        **arguments: Any,
    ) -> ApiAnswer:
        """One request with bounded retries; every POST carries an Idempotency-Key, so that a repeat happens once."""
        sent = dict(headers or {})
        if method == "POST":
            sent.setdefault("Idempotency-Key", str(uuid.uuid4()))
        if timeout_s is not None:
            arguments["timeout"] = timeout_s
        last = attempts_max or self._attempts_max
        for attempt in range(1, last + 1):
            try:
                response = self._http.request(method, path, headers=sent, **arguments)
            except httpx.TransportError as error:
                if attempt == last or not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
                    raise UnreachableError(_no_answer(self.server, error)) from error
                time.sleep(0.1 * attempt)
                continue
            if response.status_code in _RETRY_STATUSES and attempt < last:
                time.sleep(_pause_s(response, attempt))
                continue
            return _answer(response)
        raise UnreachableError(f"{self.server} gave no answer")


def _given(wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found for name, found in wanted.items() if found is not None}


@dataclass(frozen=True, slots=True)
class KindPlace:
    """Where documents of a kind are, and what names one."""

    plural: str
    key: tuple[str, ...] = ("name",)


_OF_PROJECT = ("project", "name")
KINDS: Mapping[str, KindPlace] = {
    "gpu-type": KindPlace("gpu-types"),
    "model": KindPlace("models"),
    "policy": KindPlace("policies"),
    "project": KindPlace("projects"),
    "power-cap": KindPlace("power-caps", ("scope", "subject")),
    "node": KindPlace("nodes", ("id",)),
    "device": KindPlace("devices", ("id",)),
    "service": KindPlace("services", _OF_PROJECT),
    "job": KindPlace("jobs", _OF_PROJECT),
    "task": KindPlace("tasks", _OF_PROJECT),
    "webhook": KindPlace("webhooks"),
    "budget": KindPlace("budgets"),
}
"""Documents by kind, as the server has them; a test holds both together."""


def _place(kind: str) -> KindPlace:
    wanted = kind.strip().lower().replace("_", "-")
    for name, place in KINDS.items():
        if wanted in (name, place.plural):
            return place
    near = get_close_matches(wanted, KINDS, n=3)
    raise WrongUseError(f"unknown kind {kind!r}; {f'did you mean {near[0]}?' if near else f'known are {list(KINDS)}'}")


def key_of(kind: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    """The key of a document of a kind. Raises WrongUseError when the kind is unknown or a key field is missing."""
    key = []
    for field in _place(kind).key:
        text = document.get(field)
        if not isinstance(text, str) or not text:
            quoted = "" if text in (None, "") else f"; text that reads as another value stands in quotes: '{text}'"
            raise WrongUseError(f"a document of kind {kind} needs the text field {field!r}{quoted}")
        key.append(text)
    return tuple(key)


def _path(kind: str, key: tuple[str, ...]) -> str:
    return "/".join(("/v1", _place(kind).plural, *(quote(part, safe="") for part in key)))


def _routes_path(service: str) -> str:
    return "/".join(("/v1/routes", *(quote(part, safe="") for part in service.split("/") if part)))


def _answer(response: httpx.Response) -> ApiAnswer:
    if response.status_code >= 400:
        raise ApiError(response.status_code, _problem(response))
    body: Any = None
    if response.content:
        is_json = "json" in response.headers.get("content-type", "")
        body = response.json() if is_json else response.text
    headers = response.headers
    return ApiAnswer(
        status=response.status_code, body=body, etag=headers.get("etag"), belief=headers.get("headroom-belief")
    )


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        return {"detail": f"{response.request.method} {response.request.url.path} answered {response.status_code}"}
    return problem if isinstance(problem, Mapping) else {}


def _pause_s(response: httpx.Response, attempt: int) -> float:
    try:
        asked_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        asked_s = 0.25 * attempt
    return min(max(asked_s, 0.05), 5.0)


def _no_answer(server: str, error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"{server} did not answer in time"
    reason = str(error).strip() or type(error).__name__
    return f"cannot reach {server}: {reason}"
