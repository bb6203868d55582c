"""Statements, named ones from the `*.sql` files of this folder, and what comes back: rows as records, writes counted.

A file is made of blocks that begin with `-- name: <name>` and a comment. A statement is complete as it stands there;
what varies are its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sqlalchemy import (
    ColumnElement,
    Delete,
    Executable,
    Insert,
    Table,
    TextClause,
    Update,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row, make_url
from sqlalchemy.orm import Session

from solvers.domain.codec import from_plain

T = TypeVar("T")
FOLDER = Path(__file__).parent
DAY_S = 86_400
_HEADER = re.compile(r"^-- name: (\w+)\n(?:-- .+\n)+", re.MULTILINE)


def named(name: str) -> TextClause:
    """The statement of this name, ready to be executed with its parameters."""
    return statements()[name]


@cache
def driven(statement: TextClause) -> bytes:
    """A named statement as the driver takes it, for connections without a session."""
    dialect = make_url("postgresql+psycopg://").get_dialect()()
    return str(statement.compile(dialect=dialect)).encode()


@cache
def statements() -> Mapping[str, TextClause]:
    return load(FOLDER)


def load(folder: Path) -> Mapping[str, TextClause]:
    """The statements of a folder by name. Raises ValueError for a file that is not made of named, commented blocks, and
    for a name that is given twice.
    """
    found: dict[str, TextClause] = {}
    for path in sorted(folder.glob("*.sql")):
        before, *blocks = _HEADER.split(path.read_text(encoding="utf-8"))
        names, bodies = blocks[::2], blocks[1::2]
        twice = len({*names, *found}) != len(names) + len(found)
        if before or not names or twice or any("-- name:" in body for body in bodies):
            raise ValueError(f"{path.name}: blocks begin with `-- name: <name>`, once for each, and a comment")
        found |= {name: text(body.strip()) for name, body in zip(names, bodies, strict=True)}
    return found


def records(session: Session, kind: type[T], statement: Executable, **parameters: object) -> tuple[T, ...]:
    result = session.execute(statement, parameters)
    names = tuple(result.keys())
    # All at once: a row at a time is three calls each, down to the driver.
    return tuple(_made(kind, dict(zip(names, row, strict=True))) for row in result.all())


def one(session: Session, kind: type[T], statement: Executable, **parameters: object) -> T | None:
    """The record of the only row, or None."""
    row = session.execute(statement, parameters).one_or_none()
    return None if row is None else from_row(kind, row)


def from_row(kind: type[T], row: Row[Any]) -> T:
    """A row as a record whose fields are its columns, each in the form that the field declares."""
    return _made(kind, dict(row._mapping))


def _made(kind: type[T], values: dict[str, Any]) -> T:
    for name, made in _formed(cast("Hashable", kind)).items():
        if values.get(name) is not None:
            values[name] = made(values[name])
    return kind(**values)


@cache
def _formed(kind: Any) -> Mapping[str, Callable[[Any], object]]:
    hints = get_type_hints(kind)
    found = {field.name: _former(hints[field.name]) for field in fields(kind)}
    return {name: former for name, former in found.items() if former is not None}


def _former(hint: Any) -> Callable[[Any], object] | None:
    if get_origin(hint) in (Union, UnionType):
        given = [part for part in get_args(hint) if part is not type(None)]
        hint = given[0] if len(given) == 1 else None
    if get_origin(hint) is tuple:
        return tuple
    if isinstance(hint, type) and issubclass(hint, Enum | bytes):
        return hint
    return partial(from_plain, cast("type", hint)) if is_dataclass(hint) else None


def changed(session: Session, write: Insert | Update | Delete) -> int:
    """Carry out a write; how many rows it made, changed or deleted."""
    return len(session.execute(write.returning(literal_column("1"))).all())


def put_over(
    table: Table, rows: Mapping[str, object] | Sequence[Mapping[str, object]], key: Iterable[str], **more: object
) -> Insert:
    """Insert rows; what is there under their key takes their values, and `more`."""
    statement = insert(table).values(rows)
    given = rows if isinstance(rows, Mapping) else rows[0]
    replaced = {name: statement.excluded[name] for name in given if name not in key}
    return statement.on_conflict_do_update(index_elements=list(key), set_={**replaced, **more})


def interval(seconds: float) -> ColumnElement[Any]:
    """A span of time for the database's clock."""
    return func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def database_now(session: Session) -> datetime:
    """The database's time, which stamps the rows: of the transaction's beginning."""
    found: datetime = session.execute(select(func.now())).scalar_one()
    return found


def ago(seconds: float) -> ColumnElement[Any]:
    """The moment so long before now, by the database's clock."""
    return func.now() - interval(seconds)
