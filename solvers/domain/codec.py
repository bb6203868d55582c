"""Canonical JSON of domain values: encode, decode, digest.

One form per value: keys sorted, no white space, enums as their values, tuples as lists, every field present (but for
late ones that have their default), whole numbers without a fraction, other floats as the shortest text that reads back
the same, NaN refused. Decoding is strict: unknown keys and wrong types raise `FieldError` with a JSON pointer. Fields
missing from older documents take their defaults; those that a class has RETIRED are read over.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import TypeVar, cast

from solvers.domain.ids import Digest
from solvers.domain.value import LATE
from solvers.errors import FieldError

T = TypeVar("T")
_AS_IS = frozenset({type(None), bool, int, str})
_NUMBERS: Mapping[object, frozenset[type]] = {int: frozenset({int}), float: frozenset({int, float})}
"""What plain data of a number's type may be; a flag is no number."""
AT_ONCE = 500
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def to_plain(item: object) -> Plain:
    # Exact types first: a snapshot has hundreds of thousands of numbers and its digest is taken in every cycle.
    kind: type = type(item)
    if kind in _AS_IS:
        return cast("Plain", item)
    if isinstance(item, float):
        # 5 and 5.0 (and -0.0 and 0) are the same number, so they share one text.
        return int(item) if item.is_integer() and abs(item) < 2**53 else float(item)
    if isinstance(item, tuple | list):
        return _list_of(item)
    names = _field_names(kind)
    if names is not None:
        parts = ((name, getattr(item, name)) for name in names)
        plain = {name: part if type(part) in _AS_IS else to_plain(part) for name, part in parts}
        for name, default in _late_fields(kind):
            told = getattr(item, name)
            if told != default:
                plain[name] = to_plain(told)
        return plain
    if isinstance(item, Enum):
        return cast("Plain", item.value)
    raise FieldError("", f"{kind.__name__} has no canonical form")


def _list_of(items: Sequence[object]) -> list[Plain]:
    """Long lists are of numbers: whole tables of what was measured."""
    kinds = set(map(type, items))
    if kinds <= _AS_IS:
        return cast("list[Plain]", list(items))
    if kinds == {float}:
        numbers = cast("Sequence[float]", items)
        return [int(number) if number.is_integer() and abs(number) < 2**53 else number for number in numbers]
    return [to_plain(part) for part in items]


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """None for what is no value."""
    if not is_dataclass(kind):
        return None
    return tuple(field.name for field in fields(kind) if LATE not in field.metadata)


@cache
def _late_fields(kind: type) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in fields(kind) if LATE in field.metadata)


def canonical_json(item: object) -> str:
    return "".join(_pieces(item))


def _pieces(item: object) -> Iterator[str]:
    """Long lists some at a time: as plain data they take many times the room that they take as text."""
    kind: type = type(item)
    if isinstance(item, tuple | list) and len(item) > AT_ONCE:
        yield "["
        for at in range(0, len(item), AT_ONCE):
            yield ("," if at else "") + _text(_list_of(item[at : at + AT_ONCE]))[1:-1]
        yield "]"
    elif (names := _field_names(kind)) is not None:
        late = (name for name, default in _late_fields(kind) if getattr(item, name) != default)
        yield "{"
        for number, name in enumerate(sorted((*names, *late))):
            yield f'{"," if number else ""}"{name}":'
            yield from _pieces(getattr(item, name))
        yield "}"
    else:
        yield _text(to_plain(item))


def _text(plain: Plain) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(item: object) -> Digest:
    return Digest("sha256:" + hashlib.sha256(canonical_json(item).encode()).hexdigest())


class LatestDigest:
    """The digest of the one picture that a cycle's steps ask about again and again. Values are immutable, so the very
    same object has the same digest.
    """

    def __init__(self) -> None:
        self._latest: tuple[object, Digest] | None = None
        self._elsewhere: tuple[object, Callable[[object], Digest]] | None = None

    def __call__(self, item: object) -> Digest:
        """As `digest`; found once while the same object is asked about."""
        latest, elsewhere = self._latest, self._elsewhere
        if latest is not None and latest[0] is item:
            return latest[1]
        found: Callable[[object], Digest] = digest
        if elsewhere is not None and elsewhere[0] is item:
            found, self._elsewhere = elsewhere[1], None
        self._latest = item, found(item)
        return self._latest[1]

    def found_elsewhere(self, item: object, wait: Callable[[object], Digest]) -> None:
        """Another process is finding it out; `wait` for it is called once, when the digest is asked for."""
        self._elsewhere = item, wait


picture_digest = LatestDigest()


def bytes_digest(data: bytes) -> Digest:
    """`sha256:` of bytes that have no canonical JSON, such as a planner's state."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def from_json(cls: type[T], text: str | bytes) -> T:
    return from_plain(cls, json.loads(text))


def from_plain(cls: type[T], plain: Plain) -> T:
    return cast("T", _decoder(cast("type", cls))(plain, ""))


def _fail(pointer: str, wanted: str, got: object) -> FieldError:
    return FieldError(pointer or "/", f"{pointer or '/'}: expected {wanted}, got {type(got).__name__}")


_Decoder = Callable[[Plain, str], object]


@cache
def _decoder(kind: object) -> _Decoder:
    """What reads plain data of a type; the second thing that it takes is where that stands."""
    if isinstance(kind, typing.NewType):
        return _decoder(kind.__supertype__)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return partial(_decode_union, typing.get_args(kind))
    if origin is tuple:
        return partial(_decode_tuple, typing.get_args(kind)[0])
    if isinstance(kind, type) and is_dataclass(kind):
        return partial(_decode_value, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_decode_enum, kind)
    return partial(_decode_single, kind)


def _decode_tuple(item_kind: object, plain: Plain, pointer: str) -> object:
    if not isinstance(plain, list):
        raise _fail(pointer, "a list", plain)
    numbers = _NUMBERS.get(item_kind)
    if numbers is not None and numbers.issuperset(map(type, plain)):
        return tuple(map(cast("type[float]", item_kind), plain))
    decode = _decoder(item_kind)
    return tuple([decode(item, f"{pointer}/{index}") for index, item in enumerate(plain)])


def _decode_union(kinds: tuple[object, ...], plain: Plain, pointer: str) -> object:
    if plain is None and type(None) in kinds:
        return None
    failure: FieldError | None = None
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _decoder(kind)(plain, pointer)
        except FieldError as error:
            failure = error
    raise failure or _fail(pointer, "a value", plain)


def _decode_enum(kind: type[Enum], plain: Plain, pointer: str) -> object:
    try:
        return kind(plain)
    except ValueError:
        raise FieldError(pointer, f"{pointer}: {plain!r} is not one of {[item.value for item in kind]}") from None


def _decode_single(kind: object, plain: Plain, pointer: str) -> object:
    if kind is float and isinstance(plain, int | float) and not isinstance(plain, bool):
        return float(plain)
    wanted = cast("type", kind)
    if kind in (bool, int, str) and isinstance(plain, wanted) and (kind is bool or not isinstance(plain, bool)):
        return plain
    raise _fail(pointer, getattr(kind, "__name__", repr(kind)), plain)


@dataclass(frozen=True, slots=True)
class _Form:
    """How the fields of a class are read."""

    decoders: Mapping[str, _Decoder]
    as_they_are: Mapping[str, frozenset[type]]
    """What plain data of a field may be to be taken as it is."""
    needed: tuple[str, ...]
    retired: frozenset[str]


@cache
def _form(kind: type) -> _Form:
    hints = typing.get_type_hints(kind)
    named = fields(kind)
    return _Form(
        decoders={field.name: _decoder(hints[field.name]) for field in named},
        as_they_are={field.name: _as_it_is(hints[field.name]) for field in named},
        needed=tuple(each.name for each in named if each.default is MISSING and each.default_factory is MISSING),
        retired=frozenset(getattr(kind, "RETIRED", ())),
    )


def _as_it_is(kind: object) -> frozenset[type]:
    if isinstance(kind, typing.NewType):
        return _as_it_is(kind.__supertype__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return frozenset().union(*map(_as_it_is, typing.get_args(kind)))
    return frozenset({kind}) if isinstance(kind, type) and kind in {*_AS_IS, float} else frozenset()


def _decode_value(kind: type, plain: Plain, pointer: str) -> object:
    if not isinstance(plain, dict):
        raise _fail(pointer, "an object", plain)
    form, arguments = _form(kind), dict[str, object]()
    for name, item in plain.items():
        decode = form.decoders.get(name)
        if decode is not None:
            arguments[name] = item if type(item) in form.as_they_are[name] else decode(item, f"{pointer}/{name}")
        elif name not in form.retired:
            raise FieldError(f"{pointer}/{name}", f"{pointer}/{name}: unknown field")
    for name in form.needed:
        if name not in arguments:
            raise FieldError(f"{pointer}/{name}", f"{pointer}/{name}: missing")
    try:
        return kind(**arguments)
    except FieldError as error:
        raise FieldError(f"{pointer}/{error.field}", error.message) from error
