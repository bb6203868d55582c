"""Errors, answers, and where documents of a kind are. Answers are plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

import httpx

from headroom_client.way import through

Document = dict[str, Any]
ObjectHook = Callable[[Document], Any] | None


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
    """A successful answer: status, parsed body (None when empty), the version tag, how far what is believed has come
    with what is stored (`learned`, `learning`, `failed`), if any, what the server's clock said, and what was stored
    although it can hardly be meant, as faults.
    """

    status: int
    body: Any
    etag: str | None
    belief: str | None = None
    date: str | None = None
    warnings: tuple[Mapping[str, Any], ...] = ()


def given(wanted: Mapping[str, Any]) -> dict[str, Any]:
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


def path_of(kind: str, key: tuple[str, ...]) -> str:
    return "/".join(("/v1", _place(kind).plural, *(quote(part, safe="") for part in key)))


def routes_path(service: str) -> str:
    return "/".join(("/v1/routes", *(quote(part, safe="") for part in service.split("/") if part)))


def answer_to_repeat(response: httpx.Response, object_hook: ObjectHook = None) -> ApiAnswer:
    """The answer after an attempt whose own was lost. Raises UnreachableError where that attempt, or somebody else,
    changed what was asked for; a POST's key has told the server that both are one.
    """
    asked = response.request
    if asked.method == "DELETE" and response.status_code == httpx.codes.NOT_FOUND:
        return ApiAnswer(status=httpx.codes.NO_CONTENT, body=None, etag=None)
    if asked.method != "POST" and response.status_code == httpx.codes.PRECONDITION_FAILED:
        what = f"{asked.method} {asked.url.path}"
        raise UnreachableError(f"the answer to {what} was lost: it may have done it, or somebody else; look again")
    return answer_of(response, object_hook)


def answer_of(response: httpx.Response, object_hook: ObjectHook = None) -> ApiAnswer:
    if not (response.is_success or response.status_code == httpx.codes.NOT_MODIFIED):
        raise ApiError(response.status_code, problem_of(response))
    body: Any = None
    if response.content:
        is_json = "json" in response.headers.get("content-type", "")
        body = response.json(object_hook=object_hook) if is_json else response.text
    headers = response.headers
    return ApiAnswer(
        status=response.status_code,
        body=body,
        etag=headers.get("etag"),
        belief=headers.get("headroom-belief"),
        date=headers.get("date"),
        warnings=tuple(json.loads(headers.get("headroom-warnings", "[]"))),
    )


def problem_of(response: httpx.Response) -> Mapping[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        asked, there = response.request, response.headers.get("location")
        told = f"{asked.method} {asked.url.path} answered {response.status_code}{through(asked.url)}"
        return {"detail": f"{told}, which leads to {there}" if there else told}
    return problem if isinstance(problem, Mapping) else {}


def pause_s(response: httpx.Response, attempt: int) -> float:
    try:
        asked_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        asked_s = 0.25 * attempt
    return min(max(asked_s, 0.05), 5.0)


def no_answer(server: str, error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"{server} did not answer in time{through(httpx.URL(server))}"
    reason = str(error).strip() or type(error).__name__
    return f"cannot reach {server}{through(httpx.URL(server))}: {reason}"
