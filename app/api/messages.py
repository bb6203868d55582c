"""What agents send: the records of `agents.wire`, read by validators with the ranges, by field name, that a sane sender
keeps to. They are compiled into the schema, so that one pass in native code decodes a report, refuses NaN, negative
numbers, over-long text and integers that fit no column, and names the offending field.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, SchemaValidator, to_json

from agents.wire import NUMBER_MAX, EdgeReport, Join, LogPiece, NodeReceipt, Report
from app.api.body import LONG_BYTES, ending_soon, fields_error, sparse
from app.errors import FieldsError, MalformedError

T = TypeVar("T")

INT4_MAX = 2**31 - 1
CSR_LENGTH_MAX = 16_384
INT8_MAX = 2**63 - 1
REPORT_INTERVAL_S_MAX = 3600.0
REPORT_INTERVAL_S_MIN = 1e-6
"""No sender counts for less, and what it counted over it stays a finite rate."""
ITEMS_MAX = 4096
_TEXT = r"^[^\x00-\x1f\x7f]*$"
_ID = r"^[A-Za-z0-9][A-Za-z0-9._:@#/-]*$"
_UUID = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"

_NUMBERS: Mapping[str, Mapping[str, float]] = {
    "interval_s": {"ge": REPORT_INTERVAL_S_MIN, "le": REPORT_INTERVAL_S_MAX},
    "observed_at_s": {"ge": 0, "le": 32_503_680_000},
    "utilisation_pct": {"ge": 0, "le": 100},
    "temperature_c": {"ge": -100, "le": 300},
    "held_s": {"ge": 0, "le": REPORT_INTERVAL_S_MAX},
    "share_pct_sm": {"ge": 0, "le": 100},
    "power_limit_w": {"gt": 0, "le": 1e6},
}
_INTEGERS: Mapping[str, Mapping[str, int]] = {
    "sequence": {"ge": 0, "le": INT8_MAX},
    "generation_applied": {"ge": 0, "le": INT8_MAX},
    "generation": {"ge": 0, "le": INT8_MAX},
    "epoch": {"ge": 1, "le": INT8_MAX},
    "iterations_done": {"ge": 0, "le": INT8_MAX},
    "share_pct_sm": {"ge": 0, "le": 100},
    "index": {"ge": 0, "le": 4096},
    "protocol_version": {"ge": 0, "le": INT4_MAX},
    "memory_mib": {"ge": 1, "le": INT4_MAX},
}
_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "node": {"pattern": _NAME, "max_length": 63},
    "gateway": {"pattern": _NAME, "max_length": 63},
    "gpu_type": {"pattern": _NAME, "max_length": 63},
    "rack": {"pattern": _NAME, "max_length": 63},
    "failure_domain": {"pattern": _NAME, "max_length": 63},
    "region": {"min_length": 1, "max_length": 63, "pattern": _TEXT},
    "cluster_id": {"pattern": _ID, "max_length": 96},
    "boot_id": {"pattern": _ID, "max_length": 96},
    "uuid": {"pattern": _UUID, "max_length": 96},
    "parent_uuid": {"pattern": _UUID, "max_length": 96},
    "replica": {"pattern": _ID, "max_length": 200},
    "workload": {"pattern": r"^[a-z0-9._-]{1,63}/[a-z0-9._-]{1,63}$"},
    "service": {"pattern": r"^[a-z0-9._-]{1,63}/[a-z0-9._-]{1,63}$"},
    "project": {"pattern": _NAME, "max_length": 63},
    "model": {"pattern": _NAME, "max_length": 63},
    "kind": {"pattern": "^(service|job|task)$"},
    "state": {"pattern": "^(starting|ready|draining|failed)$"},
    "cause": {"pattern": "^(power|latency)$"},
    "donor": {"pattern": _ID, "max_length": 200},
    "outcome": {"pattern": "^(applied|partial|refused)$"},
    "mode": {"pattern": "^(mps|dedicated|time_sliced)$"},
    "lines": {"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$", "max_length": 4000},
    "csr": {"pattern": r"^[\n\r -~]+$", "max_length": CSR_LENGTH_MAX},
    "worker_host": {"pattern": r"^[0-9A-Za-z._:-]+$", "max_length": 255},
    "endpoint": {"pattern": r"^https?://[^\s/?#]+(/[^\s?#]*)?$", "max_length": 300},
}


def _bounds(name: str, kind: str) -> Mapping[str, Any]:
    if kind == "float":
        return _NUMBERS.get(name, {"ge": 0, "le": NUMBER_MAX})
    if kind == "int":
        return _INTEGERS.get(name, {"ge": 0, "le": INT4_MAX})
    return _TEXTS.get(name, {"max_length": 512, "pattern": _TEXT})


def _tighten(schema: Any, name: str) -> None:
    if isinstance(schema, list):
        for part in schema:
            _tighten(part, name)
        return
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if kind in ("float", "int", "str"):
        schema.update(_bounds(name, kind))
        if kind == "float":
            schema["allow_inf_nan"] = False
    elif kind == "tuple":
        schema["max_length"] = ITEMS_MAX
    inner = schema["name"] if kind == "dataclass-field" else name
    for key, part in schema.items():
        if key not in ("metadata", "serialization", "config", "default"):
            _tighten(part, inner)


class BoundedMessage(Generic[T]):
    def __init__(self, kind: Any) -> None:
        self.kind = kind
        schema = copy.deepcopy(TypeAdapter(kind).core_schema)
        _tighten(schema, "")
        self.schema: CoreSchema = ending_soon(schema)
        self._validator = SchemaValidator(self.schema)

    def decode(self, body: bytes) -> T:
        """The message. Raises MalformedError or FieldsError."""
        # Most have no backslash, which is found many times faster.
        if b"\\" in body and b"\\u0000" in body:
            raise MalformedError("the body contains the character U+0000")
        if len(body) > LONG_BYTES and (plain := sparse(body)) is not None:
            # Every key once: each that nobody knows would be told.
            body = to_json(plain, inf_nan_mode="constants")
        try:
            found: T = self._validator.validate_json(body, strict=True)
        except ValidationError as error:
            raise fields_error(error.errors(include_url=False, include_input=False)) from None
        return found

    def json_schema(self, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
        """The message's JSON Schema, ranges included."""
        return GenerateJsonSchema(by_alias=True, ref_template=ref_template).generate(self.schema, mode="validation")


JOIN: BoundedMessage[Join] = BoundedMessage(Join)
LOG_PIECE: BoundedMessage[LogPiece] = BoundedMessage(LogPiece)
RECEIPT: BoundedMessage[NodeReceipt] = BoundedMessage(NodeReceipt)
REPORT: BoundedMessage[Report] = BoundedMessage(Report)
REPORT_LIST: BoundedMessage[tuple[Report, ...]] = BoundedMessage(tuple[Report, ...])
EDGE_REPORT: BoundedMessage[EdgeReport] = BoundedMessage(EdgeReport)
EDGE_REPORT_LIST: BoundedMessage[tuple[EdgeReport, ...]] = BoundedMessage(tuple[EdgeReport, ...])
MESSAGES: Mapping[str, BoundedMessage[Any]] = {
    "Join": JOIN,
    "Report": REPORT,
    "NodeReceipt": RECEIPT,
    "LogPiece": LOG_PIECE,
    "EdgeReport": EDGE_REPORT,
}
"""What agents send, by the name of its schema."""


def decode_reports(body: bytes) -> tuple[Report, ...]:
    return _one_or_many(body, REPORT, REPORT_LIST)


def decode_edge_reports(body: bytes) -> tuple[EdgeReport, ...]:
    return _one_or_many(body, EDGE_REPORT, EDGE_REPORT_LIST)


def _one_or_many(body: bytes, one: BoundedMessage[T], many: BoundedMessage[tuple[T, ...]]) -> tuple[T, ...]:
    # Told apart by the first character, so that a fault's pointer never runs through a union.
    if body.lstrip()[:1] != b"[":
        return (one.decode(body),)
    return _each(body, one) or many.decode(body)


def _each(body: bytes, one: BoundedMessage[T]) -> tuple[T, ...]:
    """The messages of a long list where that is written as agents do, each read by itself: a short one is bounded by
    its length, where the whole would be read three times. Nothing where that would not do, or what is wrong is to be
    told.
    """
    text = body.strip()
    opening = _OPENING.match(text) if len(body) > LONG_BYTES else None
    if opening is None or not text.endswith(b"}]"):
        return ()
    first = opening.group(1)
    parts = [b"%b%b}" % (first, part) for part in text[1 + len(first) : -2].split(b"}," + first)]
    if len(parts) > ITEMS_MAX or max(map(len, parts)) > LONG_BYTES:
        return ()
    try:
        # What are whole values, one by one, are whole values between commas; wherever it was cut.
        return tuple(map(one.decode, parts))
    except (MalformedError, FieldsError):
        return ()


_OPENING = re.compile(rb'\[(\{"[a-z_]+":)')
