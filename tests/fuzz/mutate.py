"""Changes to what is well: bytes, numbers, words and whole parts, as a stream of a seed says."""

from __future__ import annotations

import random
from collections.abc import Callable

LENGTH_MAX = 1 << 16
WORDS = (
    b"null", b"true", b"-1", b"0", b"1e400", b"-0.0", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"1e-400", b"0x10",
    b'""', b"{}", b"[]", b"[" * 2000, b'{"a":' * 1500, b"\x00", b"\\u0000", b"\\ud800", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\r\n", b"\n\n", b",", b'"', b"'", b"&a [*a]", b"*a", b"<<: *name", b"!!python/object:os.system",
    b"%", b"../", b"\xe2\x80\xae", b"9223372036854775808", b"2147483648", b"1" + b"0" * 30, b";", b"\t", b"---\n",
    b"Content-Length: 99999999999999999999\r\n", b"ffffffffffffffff\r\n", b"#", b"{", b"}", b"\\", b"=",
)  # fmt: skip


def _flip(data: bytearray, stream: random.Random) -> None:
    for _ in range(stream.randint(1, 4)):
        data[stream.randrange(len(data))] = stream.randrange(256)


def _cut(data: bytearray, stream: random.Random) -> None:
    begin = stream.randrange(len(data))
    del data[begin : begin + stream.randint(1, 40)]


def _repeat(data: bytearray, stream: random.Random) -> None:
    begin = stream.randrange(len(data))
    part = bytes(data[begin : begin + stream.randint(1, 40)])
    data[begin:begin] = part * stream.choice((1, 2, 50, 500))


def _word(data: bytearray, stream: random.Random) -> None:
    begin = stream.randrange(len(data) + 1)
    data[begin : begin + stream.choice((0, 0, 1, 4))] = stream.choice(WORDS)


def _number(data: bytearray, stream: random.Random) -> None:
    """Another number or word in place of one."""
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        begin = stream.choice(digits)
        end = begin
        while end < len(data) and data[end] in b"0123456789.eE+-":
            end += 1
        data[begin:end] = stream.choice(WORDS)


def _text(data: bytearray, stream: random.Random) -> None:
    """Something else in place of a quoted text."""
    quotes = [place for place, byte in enumerate(data) if byte == 34]
    if len(quotes) > 1:
        begin = stream.randrange(len(quotes) - 1)
        data[quotes[begin] : quotes[begin + 1] + 1] = stream.choice(WORDS)


def _crowd(data: bytearray, stream: random.Random) -> None:
    """As many of one short thing as there is room for, as a list or as it is, in place of a part or of everything."""
    begin = stream.choice((0, stream.randrange(len(data))))
    end = stream.choice((len(data), begin + stream.randint(1, 40)))
    thing = stream.choice((*CROWDS, bytes(data[begin : begin + stream.randint(1, 20)])))
    before, between, after = stream.choice(((b"[", b",", b"]"), (b"", b"", b""), (b"", b"\n", b"\n")))
    count = (LENGTH_MAX - len(data)) // (len(thing) + len(between))
    if count > 0:
        data[begin:end] = before + between.join([thing] * count) + after


CROWDS = (
    b"{}",
    b"[]",
    b"1",
    b'""',
    b",",
    b"\n",
    b'{"a":1}',
    b'"a":1,',
    b"a: 1\n",
    b"- ",
    b"a{} 1\n",
    b"# HELP a\n",
    b" ",
    b"\t",
)


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _cut,
    _repeat,
    _word,
    _number,
    _number,
    _text,
    _crowd,
)


def mutated(seeds: tuple[bytes, ...], stream: random.Random) -> bytes:
    data = bytearray(stream.choice(seeds))
    if stream.random() < 0.1:
        other = stream.choice(seeds)
        data[stream.randrange(len(data) + 1) :] = other[stream.randrange(len(other)) :]
    for _ in range(stream.choice((1, 1, 2, 3, 6))):
        if data:
            stream.choice(CHANGES)(data, stream)
    return bytes(data[:LENGTH_MAX])
