"""Reading bodies: strictly, once, and with a pointer to whatever is wrong.

Owns the JSON dialect of the edge: UTF-8, no NaN or infinities, no repeated keys, whole numbers within 64 bits,
bounded depth, no coercion between types, no unknown fields. It refuses to know what a body means.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from app.errors import Fault, FieldsError, MalformedError, MediaTypeError
from solvers.errors import FieldError

T = TypeVar("T")

_INTEGER_MAX = 2**63 - 1
_FAULTS_MAX = 50


async def read_body(request: Request) -> bytes:
    """The whole body, already limited in size by the middleware."""
    return await request.body()


def require_media_type(request: Request, *allowed: str) -> str:
    """The body's media type without parameters. Raises MediaTypeError; a missing header counts as the first allowed
    type.
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not stated:
        return allowed[0]
    if stated in allowed:
        return stated
    raise MediaTypeError(f"send {' or '.join(allowed)}, not {stated[:80]}")


@cache
def adapter_of(kind: Hashable) -> TypeAdapter[Any]:
    """The validator of a type, built once."""
    return TypeAdapter(cast("type[Any]", kind))


def parse(kind: type[T], body: bytes) -> T:
    """Decode a JSON body into `kind`. Raises MalformedError or FieldsError."""
    refuse_odd_json(body)
    return validate(kind, body)


def validate(kind: type[T], body: bytes) -> T:
    """Like `parse` for types whose own configuration already refuses NaN and infinities; one pass over the bytes."""
    if b"\\u0000" in body:
        raise MalformedError("the body contains the character U+0000")
    try:
        found: T = adapter_of(cast("Hashable", kind)).validate_json(body, strict=True)
    except ValidationError as error:
        raise fields_error(error.errors(include_url=False, include_input=False)) from None
    except RecursionError:
        raise MalformedError("the body is nested too deeply") from None
    except OverflowError:
        raise MalformedError("a number is too large") from None
    return found


def refuse_odd_json(body: bytes) -> None:
    """Read the text once more with the checks that the validator does not make."""
    checks = _OddChecks()
    try:
        plain = json.loads(
            body,
            parse_constant=checks.constant,
            parse_float=checks.real,
            parse_int=checks.whole,
            object_pairs_hook=checks.distinct,
        )
    except RecursionError:
        raise MalformedError("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise MalformedError("the body is not UTF-8") from None
    except ValueError as error:
        raise MalformedError(f"the body is not JSON: {str(error)[:200]}") from None
    if checks.found:
        raise FieldsError(tuple(islice(_odd_faults(plain), _FAULTS_MAX)))


@dataclass(frozen=True, slots=True)
class _Odd:
    """Stands in a decoded body for what JSON has, or we take, no value for."""

    code: str
    detail: str


class _OddChecks:
    """Hooks of the decoder. A hook cannot know where it is, so each leaves an `_Odd` in place for the walk after."""

    def __init__(self) -> None:
        self.found = False

    def constant(self, text: str) -> _Odd:
        return self._odd("number-not-finite", f"{text} is not a JSON number")

    def real(self, text: str) -> float | _Odd:
        number = float(text)
        if math.isfinite(number):
            return number
        return self._odd("number-not-finite", f"{text[:40]} is too large a number")

    def whole(self, text: str) -> int | _Odd:
        if len(text) > 20 or abs(int(text)) > _INTEGER_MAX:
            return self._odd("number-out-of-range", f"{text[:40]} does not fit in 64 bits")
        return int(text)

    def distinct(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        plain = dict(pairs)
        if len(plain) != len(pairs):
            for key, count in Counter(key for key, _ in pairs).items():
                if count > 1:
                    plain[key] = self._odd("key-repeated", f"the key {key[:60]!r} stands twice in one object")
        return plain

    def _odd(self, code: str, detail: str) -> _Odd:
        self.found = True
        return _Odd(code, detail)


@dataclass(frozen=True, slots=True)
class _Step:
    """The way to a place of a body: the last key, and the way before it."""

    before: _Step | None
    key: int | str


"""Where a part stands: its parent's trail and its key there. Pointers are only spelled out for faults."""


def _odd_faults(plain: object) -> Iterator[Fault]:
    """Where something odd stands, in the order of the text; without recursion, for a body may be deep."""
    waiting: list[tuple[_Step | None, object]] = [(None, plain)]
    while waiting:
        trail, part = waiting.pop()
        if isinstance(part, _Odd):
            yield Fault(pointer=pointer_of(_location(trail)), code=part.code, detail=part.detail)
        elif isinstance(part, dict | list):
            inner = part.items() if isinstance(part, dict) else enumerate(part)
            waiting.extend(reversed([(_Step(trail, key), each) for key, each in inner]))


def _location(trail: _Step | None) -> list[int | str]:
    found: list[int | str] = []
    while trail is not None:
        found.append(trail.key)
        trail = trail.before
    return found[::-1]


def fields_error(errors: Iterable[Mapping[str, Any]], prefix: str = "") -> FieldsError:
    """Turn a validator's findings into faults with JSON pointers."""
    faults = tuple(_fault(error, prefix) for error in list(errors)[:_FAULTS_MAX])
    return FieldsError(faults)


def _fault(error: Mapping[str, Any], prefix: str) -> Fault:
    location: Sequence[int | str] = error["loc"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return Fault(
            pointer=prefix + pointer_of(location) + _tail(cause.field), code="value-invalid", detail=cause.message
        )
    code = _CODES.get(error["type"], error["type"].replace("_", "-"))
    return Fault(pointer=prefix + pointer_of(location), code=code, detail=_DETAILS.get(code, error["msg"]))


_CODES: Mapping[str, str] = {
    "unexpected_keyword_argument": "unknown-field",
    "extra_forbidden": "unknown-field",
    "missing": "missing",
    "missing_argument": "missing",
    "finite_number": "number-not-finite",
    "json_invalid": "request-malformed",
}
_DETAILS: Mapping[str, str] = {"unknown-field": "there is no such field", "missing": "this field is missing"}
"""Where the validator speaks of Python's arguments."""


def _tail(field: str) -> str:
    if not field:
        return ""
    return field if field.startswith("/") else f"/{field}"


def pointer_of(location: Sequence[int | str]) -> str:
    """RFC 6901 pointer of a path of keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


def require_key(pointer: str, in_body: str, in_path: str) -> None:
    """The key in the body must repeat the one in the path."""
    if in_body != in_path:
        detail = f"the path says {in_path!r}, the body {in_body!r}"
        raise FieldsError((Fault(pointer=pointer, code="key-mismatch", detail=detail),))
