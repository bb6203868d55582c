"""The helper's lines: what is read back is what was written, and nothing else is read at all."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.devices.parts import ComputeMode
from agents.helper.protocol import (
    LINE_BYTES_MAX,
    HelperAnswer,
    HelperRequest,
    Lines,
    ProtocolError,
    Value,
    Verb,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

VALUES: dict[Verb, st.SearchStrategy[Value]] = {
    Verb.LOCK_CLOCK: st.none() | st.integers(1, 100_000),
    Verb.LIMIT_POWER: st.none() | st.floats(0.001, 100_000.0),
    Verb.SET_COMPUTE_MODE: st.sampled_from([mode.value for mode in ComputeMode]),
    Verb.SET_PERSISTENCE: st.booleans(),
}
REQUESTS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda verb: st.builds(
        HelperRequest,
        number=st.integers(0, 2**53),
        verb=st.just(verb),
        device=st.text(st.characters(max_codepoint=127), min_size=1, max_size=96),
        value=VALUES[verb],
    )
)


@given(request=REQUESTS)
@settings(deadline=None)
def test_requests_come_back_as_they_were(request: HelperRequest) -> None:
    line = encode_request(request)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= LINE_BYTES_MAX
    assert decode_request(line[:-1]) == request


@given(
    number=st.none() | st.integers(0, 2**53),
    code=st.sampled_from(["", "busy", "out-of-range"]),
    message=st.text(max_size=400),
    refusals=st.none() | st.dictionaries(st.sampled_from(["set_clock", "set_power"]), st.text(max_size=100)),
)
@settings(deadline=None)
def test_answers_come_back_as_they_were(
    number: int | None, code: str, message: str, refusals: dict[str, str] | None
) -> None:
    answer = HelperAnswer(number=number, code=code, message=message if code else "", refusals=refusals)
    assert decode_answer(encode_answer(answer)[:-1]) == answer


@given(line=st.binary(max_size=LINE_BYTES_MAX))
@example(line=b"[" * LINE_BYTES_MAX)
@example(line=b'{"v":1,"id":1,"verb":' + b"[" * 900)
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_refused_and_nothing_worse(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(line)
    with pytest.raises(ProtocolError):
        decode_answer(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    verb=st.sampled_from(sorted(VALUES)) | JSON,
    fields=st.fixed_dictionaries({"id": JSON, "device": JSON, "value": JSON}, optional={"more": JSON}),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_read_is_in_range(verb: object, fields: dict[str, object]) -> None:
    try:
        line = json.dumps({"v": 1, "verb": verb} | fields).encode()
        found = decode_request(line)
    except ProtocolError:
        return
    assert set(fields) == {"id", "device", "value"}
    assert isinstance(found.device, str)
    assert 0 < len(found.device) <= 96
    assert 0 <= found.number <= 2**53
    match found.verb:
        case Verb.LOCK_CLOCK:
            assert found.value is None or (type(found.value) is int and 0 < found.value <= 100_000)
        case Verb.LIMIT_POWER:
            assert found.value is None or (type(found.value) is float and 0.0 < found.value <= 100_000.0)
        case Verb.SET_COMPUTE_MODE:
            assert found.value in set(ComputeMode)
        case _:
            assert type(found.value) is bool


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": None},
        {"id": -1},
        {"id": True},
        {"id": "1"},
        {"verb": "format_disk"},
        {"verb": "refusals"},
        {"verb": 7},
        {"device": ""},
        {"device": "G" * 97},
        {"device": ["GPU"]},
        {"device": "GPU-é"},
        {"value": 0},
        {"value": True},
        {"value": 900.0},
        {"value": "900"},
        {"value": 100_001},
        {"path": "/etc/passwd"},
    ],
)
def test_a_request_with_anything_else_in_it_is_refused(change: dict[str, object]) -> None:
    good = {"v": 1, "id": 1, "verb": "lock_clock", "device": "GPU-1", "value": 900}
    assert decode_request(json.dumps(good).encode()).value == 900
    with pytest.raises(ProtocolError):
        decode_request(json.dumps(good | change).encode())


@pytest.mark.parametrize(
    ("verb", "value"),
    [
        ("limit_power", "NaN"),
        ("limit_power", "Infinity"),
        ("limit_power", "1e999"),
        ("limit_power", "-5"),
        ("limit_power", "true"),
        ("set_compute_mode", '"exclusive_thread"'),
        ("set_compute_mode", "3"),
        ("set_compute_mode", "null"),
        ("set_persistence", "1"),
        ("set_persistence", "null"),
    ],
)
def test_values_that_no_device_takes_are_refused(verb: str, value: str) -> None:
    line = f'{{"v":1,"id":1,"verb":"{verb}","device":"GPU-1","value":{value}}}'
    with pytest.raises(ProtocolError):
        decode_request(line.encode())


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def lines_of(connection: socket.socket, timeout_s: float = 5.0) -> Lines:
    return Lines(connection, time.monotonic, timeout_s, 32)


def test_lines_are_cut_where_they_end(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    lines = lines_of(near)
    far.sendall(b"one\ntwo\n\nthr")
    assert [lines.next(), lines.next(), lines.next()] == [b"one", b"two", b""]
    far.sendall(b"ee\n")
    assert lines.next() == b"three"
    far.sendall(b"unfinished")
    far.close()
    assert lines.next() is None


def test_a_line_that_is_too_long_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(b"x" * 33 + b"\n")
    with pytest.raises(ProtocolError, match="32 bytes"):
        lines_of(near).next()


def test_a_line_without_end_is_refused_before_it_fills_the_memory(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(b"x" * 5000)
    with pytest.raises(ProtocolError, match="32 bytes"):
        lines_of(near).next()


def test_a_line_must_end_in_time_once_it_began(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.sendall(b"x")
    with pytest.raises(ProtocolError, match="in time"):
        lines_of(near, timeout_s=0.02).next()


def test_silence_is_only_limited_where_an_answer_is_due(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    with pytest.raises(ProtocolError, match="in time"):
        lines_of(near).next(wait_s=0.02)
