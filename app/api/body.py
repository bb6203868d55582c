"""Reading bodies: strictly, once, and with a pointer to whatever is wrong.

Owns the JSON dialect of the edge: UTF-8, no NaN or infinities, no repeated keys, whole numbers within 64 bits,
bounded depth, no coercion between types, no unknown fields. It refuses to know what a body means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from app.errors import FieldFault, FieldsError, MalformedError, MediaTypeError
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
    try:
        json.loads(
            body,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_distinct,
        )
    except FieldsError:
        raise
    except RecursionError:
        raise MalformedError("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise MalformedError("the body is not UTF-8") from None
    except ValueError as error:
        raise MalformedError(f"the body is not JSON: {str(error)[:200]}") from None


def _single(pointer: str, code: str, detail: str) -> FieldsError:
    return FieldsError((FieldFault(pointer=pointer, code=code, detail=detail),))


def _refuse_constant(text: str) -> float:
    raise _single("", "number-not-finite", f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _single("", "number-not-finite", f"{text[:40]} is too large a number")
    return number


def _bounded(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > _INTEGER_MAX:
        raise _single("", "number-out-of-range", f"{text[:40]} does not fit in 64 bits")
    return int(text)


def _distinct(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _single("", "key-repeated", f"the key {key[:60]!r} stands twice in one object")
            seen.add(key)


def fields_error(errors: Iterable[Mapping[str, Any]], prefix: str = "") -> FieldsError:
    """Turn a validator's findings into faults with JSON pointers."""
    faults = tuple(_fault(error, prefix) for error in list(errors)[:_FAULTS_MAX])
    return FieldsError(faults)


def _fault(error: Mapping[str, Any], prefix: str) -> FieldFault:
    location: Sequence[int | str] = error["loc"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return FieldFault(
            pointer=prefix + pointer_of(location) + _tail(cause.field), code="value-invalid", detail=cause.message
        )
    code = _CODES.get(error["type"], error["type"].replace("_", "-"))
    return FieldFault(pointer=prefix + pointer_of(location), code=code, detail=error["msg"])


_CODES: Mapping[str, str] = {
    "unexpected_keyword_argument": "unknown-field",
    "extra_forbidden": "unknown-field",
    "missing": "missing",
    "missing_argument": "missing",
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
    """The key in the body must repeat the one in the path."""
    if in_body != in_path:
        raise _single(pointer, "key-mismatch", f"the path says {in_path!r}, the body {in_body!r}")
