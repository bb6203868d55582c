"""Reading bodies: strictly, once, and with a pointer to whatever is wrong.

The JSON dialect of the edge: UTF-8, no NaN or infinities, no repeated keys, whole numbers within 64 bits, bounded
depth, no coercion between types, no unknown fields. What agents send is read in `messages`.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import islice
from types import GenericAlias
from typing import Any, TypeVar, cast, get_args, get_type_hints

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, from_json

from app.errors import Fault, FieldsError, MalformedError, MediaTypeError
from solvers.domain.value import LINES_PATTERN, NAME_PATTERN, NAME_WORDS, SHOWN_PATTERN, SHOWN_WORDS, limits_broken
from solvers.errors import FieldError, did_you_mean

T = TypeVar("T")

JSON, CSV = "application/json", "text/csv"
LABEL_PATTERN = NAME_PATTERN[:-1] + r"(=[^\x00-\x1f\x7f]{1,128})?$"
PLAN_PATTERN = r"^(sha256:)?[0-9a-f]{4,64}$"
_PATTERNS = {
    NAME_PATTERN: NAME_WORDS,
    SHOWN_PATTERN: SHOWN_WORDS,
    LINES_PATTERN: SHOWN_WORDS,
    LABEL_PATTERN: "must be KEY or KEY=VALUE, such as team=retail",
    PLAN_PATTERN: "must be four or more of the digits (0-9, a-f) that a plan's id begins with",
}
_SHOULD = re.compile(r"^\w+ should ")
_INTEGER_MAX = 2**63 - 1
FAULTS_MAX, RECORDS_MAX = 50, 30
"""So many are told; in so many records of a body limits are looked for that are broken beside what was told."""
KEYS_MAX, ERRORS_MAX, RECORD_ERRORS = 4096, 30_000, 40
"""Of one object. A validator tells all that is wrong at once, of two bytes as much as a whole record lacks: where that
may be more, it ends with the first wrong one of every list.
"""
LONG_BYTES, PART_BYTES_LEAST, VALUE_BYTES_LEAST = 64 * 1024, 16, 8
"""Of longer bodies the objects and lists, and the values, are counted first; on average none is shorter."""


class RequestBody(BaseModel):
    """A body that is no value of the core; closed: an unknown field is refused."""

    model_config = ConfigDict(extra="forbid")


async def read_body(request: Request) -> bytes:
    """The whole body, already limited in size by the middleware."""
    return await request.body()


def json_of(kind: type[T]) -> Callable[..., T]:
    def read(request: Request, body: bytes = Depends(read_body)) -> T:
        require_media_type(request, JSON)
        return parse(kind, body)

    return read


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


@cache
def _brief(kind: Hashable) -> SchemaValidator:
    """The same, which ends with the first wrong item of every list."""
    return SchemaValidator(ending_soon(copy.deepcopy(adapter_of(kind).core_schema)))


def ending_soon(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        for part in schema:
            ending_soon(part)
    elif isinstance(schema, dict):
        if schema.get("type") in _LISTS:
            schema["fail_fast"] = True
        for key, part in schema.items():
            if key not in ("metadata", "serialization", "config", "default"):
                ending_soon(part)
    return schema


_LISTS = ("list", "tuple", "set", "frozenset")


def parse(kind: type[T], body: bytes) -> T:
    """Decode a JSON body into `kind`. Raises MalformedError or FieldsError."""
    if len(body) > LONG_BYTES:
        sparse(body)
    refuse_odd_json(body)
    return validate(kind, body)


def validate(kind: type[T], body: bytes) -> T:
    """Like `parse` for types whose own configuration already refuses NaN and infinities; one pass over the bytes."""
    if b"\\u0000" in body:
        raise MalformedError("the body contains the character U+0000")
    named = cast("Hashable", kind)
    many = RECORD_ERRORS * body.count(b"{") + body.count(b",") > ERRORS_MAX
    validator = _brief(named) if many else adapter_of(named)
    try:
        found: T = validator.validate_json(body, strict=True)
    except ValidationError as error:
        told = fields_error(error.errors(include_url=False, include_input=False), kind).faults
        raise FieldsError((*told, *islice(_others(told, kind, body), FAULTS_MAX - len(told)))) from None
    except RecursionError:
        raise MalformedError("the body is nested too deeply") from None
    except OverflowError:
        raise MalformedError("a number is too large") from None
    return found


def sparse(body: bytes) -> Any:
    """What a long body says, where it is filled as sane ones are; None where it is no JSON. A thousand times its length
    is made of one that is nothing but braces. Raises MalformedError.
    """
    try:
        plain = from_json(body)
    except ValueError:
        return None
    waiting, parts, values = [plain], 1, 1
    while waiting:
        part = waiting.pop()
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        values += len(inner)
        if isinstance(part, dict) and len(part) > KEYS_MAX:
            raise MalformedError(f"an object has more than {KEYS_MAX} keys")
        if values * VALUE_BYTES_LEAST <= len(body):
            inside = [each for each in inner if isinstance(each, dict | list)]
            waiting += inside
            parts += len(inside)
        if values * VALUE_BYTES_LEAST > len(body) or parts * PART_BYTES_LEAST > len(body):
            raise MalformedError("the body has more objects, lists or values than its length has room for")
    return plain


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
        told = f"the body is not JSON: {str(error)[:200]}" if body.strip() else "the body is empty, JSON is expected"
        raise MalformedError(told) from None
    if checks.found:
        raise FieldsError(tuple(islice(_odd_faults(plain), FAULTS_MAX)))


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


def fields_error(errors: Iterable[Mapping[str, Any]], kind: object = None) -> FieldsError:
    """What the validator found wrong; with the `kind` that was read, a wrong field is told the nearest right one."""
    return FieldsError(tuple(_fault(error, kind) for error in list(errors)[:FAULTS_MAX]))


def _others(told: tuple[Fault, ...], kind: object, body: bytes) -> Iterator[Fault]:
    """Limits that are broken beside what the validator told, who judges a value's own when all of its parts are well,
    and stops at the first of them.
    """
    seen = {fault.pointer for fault in told}
    for pointer, error in _broken(kind, plain_of(body), "", iter(range(RECORDS_MAX))):
        if pointer not in seen:
            seen.add(pointer)
            yield Fault(pointer=pointer, code="value-invalid", detail=error.message)


def plain_of(body: bytes) -> Any:
    """What a refused body says, as far as it can be read: None where it is no JSON, or a number has no end."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _broken(kind: object, said: object, at: str, turns: Iterator[int]) -> Iterator[tuple[str, FieldError]]:
    """Where `said` is a `kind`, or several, as long as there are turns."""
    holder = _holder(kind)
    if holder is None or not is_dataclass(holder) or not isinstance(said, list | dict):
        return
    if isinstance(said, list):
        for number, part in enumerate(said):
            if next(turns, None) is None:
                return
            yield from _broken(kind, part, f"{at}/{number}", turns)
        return
    if next(turns, None) is None:
        return
    hints = _hints(holder)
    # Whoever says a field that is not there may mean any that is left out.
    left = () if said.keys() - hints.keys() else (item for item in fields(holder) if item.name not in said)
    known = {item.name: item.default for item in left if item.default is not MISSING}
    for name in hints.keys() & said.keys():
        known.update((name, read) for read in _readable(hints[name], said[name]))
    yield from ((at + _tail(error.field), error) for error in limits_broken(holder, known))
    for name, part in said.items():
        yield from _broken(hints.get(name), part, f"{at}/{name}", turns)


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _readable(kind: Hashable, part: object) -> Iterator[object]:
    """What a part says, if it is well by itself."""
    try:
        yield adapter_of(kind).validate_json(json.dumps(part), strict=True)
    except (ValueError, RecursionError, OverflowError):
        return


def _holder(kind: object) -> type | None:
    """The record that a type is, lists, or may be beside nothing; bounded or not."""
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel)):
        return kind
    return next((found for part in get_args(kind) if (found := _holder(part)) is not None), None)


def _fault(error: Mapping[str, Any], kind: object) -> Fault:
    location: Sequence[int | str] = error["loc"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return Fault(pointer=pointer_of(location) + _tail(cause.field), code="value-invalid", detail=cause.message)
    code = _CODES.get(error["type"], error["type"].replace("_", "-"))
    detail = told(error)
    if code == "unknown-field" and location:
        detail = f"there is no field {str(location[-1])[:60]}" + did_you_mean(
            str(location[-1]), _fields_at(kind, location[:-1])
        )
    return Fault(pointer=pointer_of(location), code=code, detail=detail)


def told(error: Mapping[str, Any]) -> str:
    """What the validator says, in words of ours where its own speak of Python."""
    if error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return "this field is missing"
    if error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"] in _PATTERNS:
        return _PATTERNS[error["ctx"]["pattern"]]
    if error["type"] == "string_type":
        return "must be text; what YAML reads as another value stands in quotes"
    return _SHOULD.sub("must ", str(error["msg"]).removeprefix("Value error, "))


def _fields_at(kind: object, location: Sequence[int | str]) -> tuple[str, ...]:
    """Names of the fields that what stands there may have; none where that is not known."""
    holder = _holder(kind)
    if isinstance(kind, GenericAlias) or holder is None:
        inner = [part for part in get_args(kind) if part is not type(None)]
        if not inner:
            return ()
        return _fields_at(inner[0], location[1:] if isinstance(kind, GenericAlias) else location)
    hints = _hints(holder)
    if not location:
        return tuple(hints)
    return _fields_at(hints.get(str(location[0])), location[1:])


_CODES: Mapping[str, str] = {
    "unexpected_keyword_argument": "unknown-field",
    "extra_forbidden": "unknown-field",
    "missing": "missing",
    "missing_argument": "missing",
    "missing_keyword_only_argument": "missing",
    "finite_number": "number-not-finite",
    "json_invalid": "request-malformed",
}


def _tail(field: str) -> str:
    if not field:
        return ""
    return field if field.startswith("/") else f"/{field}"


def pointer_of(location: Sequence[int | str]) -> str:
    """RFC 6901 pointer of a path of keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


def require_key(pointer: str, in_body: str, in_path: str) -> None:
    if in_body != in_path:
        detail = f"the path says {in_path!r}, the body {in_body!r}"
        raise FieldsError.of(pointer, detail, "key-mismatch")
