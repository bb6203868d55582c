"""What passes between an agent and the privileged helper: one JSON object a line, small, versioned, strictly read.

Nothing in a message names a file, a command or a process. Values are only checked for what no device could accept; a
device's own bounds are the setters'.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from agents.devices.parts import ComputeMode
from agents.errors import AgentError

VERSION = 1
LINE_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 8192
DEVICE_CHARACTERS_MAX = 96
NUMBER_MAX = 2**53
CLOCK_MHZ_MAX = 100_000
POWER_W_MAX = 100_000.0
MESSAGE_CHARACTERS_MAX = 500

Value = int | float | str | bool | None


class ProtocolError(AgentError):
    code = "protocol"


class SlowLineError(ProtocolError):
    """A line, or the answer that was due, did not come in time."""


class Verb(StrEnum):
    """All that can be asked. The names are those of `agents.devices.parts.Setters`."""

    LOCK_CLOCK = "lock_clock"
    LIMIT_POWER = "limit_power"
    SET_COMPUTE_MODE = "set_compute_mode"
    SET_PERSISTENCE = "set_persistence"
    REFUSALS = "refusals"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperRequest:
    """One thing to do. `number` comes back with the answer."""

    number: int
    verb: Verb
    device: str = ""
    value: Value = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperAnswer:
    """How it went. `code` is empty when it was done, else that of an `agents.errors` class. `number` is None when the
    request could not be read.
    """

    number: int | None
    code: str = ""
    message: str = ""
    refusals: Mapping[str, str] | None = None


def encode_request(request: HelperRequest) -> bytes:
    plain: dict[str, object] = {"v": VERSION, "id": request.number, "verb": request.verb.value}
    if request.verb is not Verb.REFUSALS:
        plain |= {"device": request.device, "value": request.value}
    return _line(plain)


def encode_answer(answer: HelperAnswer) -> bytes:
    plain: dict[str, object] = {"v": VERSION, "id": answer.number, "ok": not answer.code}
    if answer.code:
        plain |= {"code": answer.code, "message": answer.message[:MESSAGE_CHARACTERS_MAX]}
    if answer.refusals is not None:
        texts = {verb: reason[:MESSAGE_CHARACTERS_MAX] for verb, reason in answer.refusals.items()}
        plain["refusals"] = texts
    return _line(plain)


def decode_request(line: bytes) -> HelperRequest:
    """Strictly read a request. Raises ProtocolError."""
    plain = _object(line)
    verb = _verb(plain.get("verb"))
    expected = {"v", "id", "verb"} | (set() if verb is Verb.REFUSALS else {"device", "value"})
    if set(plain) != expected:
        raise ProtocolError(f"a request for {verb} has the fields {', '.join(sorted(expected))}")
    number = plain["id"]
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
        raise ProtocolError("id: expected a whole number")
    if verb is Verb.REFUSALS:
        return HelperRequest(number=number, verb=verb)
    device = plain["device"]
    if not isinstance(device, str) or not device.isascii() or not 0 < len(device) <= DEVICE_CHARACTERS_MAX:
        raise ProtocolError("device: expected a UUID")
    return HelperRequest(number=number, verb=verb, device=device, value=check_value(verb, plain["value"]))


def decode_answer(line: bytes) -> HelperAnswer:
    """Strictly read an answer. Raises ProtocolError."""
    plain = _object(line)
    number, code, message = plain.get("id"), plain.get("code", ""), plain.get("message", "")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise ProtocolError("id: expected a whole number")
    if not isinstance(code, str) or not isinstance(message, str) or plain.get("ok") is not (not code):
        raise ProtocolError("expected ok, or a code and a message")
    refusals = plain.get("refusals")
    if refusals is not None and not isinstance(refusals, dict):
        raise ProtocolError("refusals: expected an object")
    texts = None if refusals is None else {str(verb): str(reason) for verb, reason in refusals.items()}
    return HelperAnswer(number=number, code=code, message=message, refusals=texts)


class Lines:
    """Lines from a connection. It may be silent for as long as it likes, but a line once begun must end soon."""

    def __init__(
        self,
        connection: socket.socket,
        now_s: Callable[[], float],
        line_timeout_s: float,
        bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self._connection = connection
        self._now_s = now_s
        self._line_timeout_s = line_timeout_s
        self._bytes_max = bytes_max
        self._held = b""

    def next(self, wait_s: float | None = None) -> bytes | None:
        """The next line without its end; None when the other side is gone. Raises ProtocolError for a line that is too
        long or takes too long, OSError for what a connection can suffer. `wait_s`: how long it may be silent first.
        """
        first_s = self._line_timeout_s if self._held else wait_s
        deadline_s = None if first_s is None else self._now_s() + first_s
        while b"\n" not in self._held:
            if len(self._held) > self._bytes_max:
                raise ProtocolError(f"a line has at most {self._bytes_max} bytes")
            left_s = None if deadline_s is None else deadline_s - self._now_s()
            if left_s is not None and left_s <= 0.0:
                raise SlowLineError("a line did not end in time")
            self._connection.settimeout(left_s)
            try:
                found = self._connection.recv(4096)
            except TimeoutError:
                continue
            if not found:
                return None
            if deadline_s is None:
                deadline_s = self._now_s() + self._line_timeout_s
            self._held += found
        line, _, self._held = self._held.partition(b"\n")
        if len(line) > self._bytes_max:
            raise ProtocolError(f"a line has at most {self._bytes_max} bytes")
        return line


def _line(plain: Mapping[str, object]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _object(line: bytes) -> dict[str, object]:
    try:
        plain = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ProtocolError("expected a JSON object on a line of its own") from None
    if not isinstance(plain, dict):
        raise ProtocolError("expected a JSON object on a line of its own")
    if plain.get("v") is True or plain.get("v") != VERSION:
        raise ProtocolError(f"this is version {VERSION} of the protocol")
    return plain


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _verb(plain: object) -> Verb:
    try:
        return Verb(plain) if isinstance(plain, str) else Verb("")
    except ValueError:
        raise ProtocolError(f"verb: expected one of {', '.join(Verb)}") from None


def check_value(verb: Verb, plain: object) -> Value:
    """A value as a verb takes it. Raises ProtocolError."""
    whole = isinstance(plain, int) and not isinstance(plain, bool)
    match verb:
        case Verb.LOCK_CLOCK:
            if plain is None:
                return None
            if isinstance(plain, int) and whole and 0 < plain <= CLOCK_MHZ_MAX:
                return plain
            raise ProtocolError("value: expected a clock in MHz, or null for the driver's default")
        case Verb.LIMIT_POWER:
            if plain is None:
                return None
            if isinstance(plain, int | float) and (whole or isinstance(plain, float)) and 0.0 < plain <= POWER_W_MAX:
                return float(plain)
            raise ProtocolError("value: expected a power in W, or null for the driver's default")
        case Verb.SET_COMPUTE_MODE if isinstance(plain, str) and plain in set(ComputeMode):
            return plain
        case Verb.SET_COMPUTE_MODE:
            raise ProtocolError(f"value: expected one of {', '.join(ComputeMode)}")
        case Verb.SET_PERSISTENCE if isinstance(plain, bool):
            return plain
        case _:
            raise ProtocolError("value: expected true or false")
