"""Named statements: every `*.sql` file of this folder in blocks that begin with `-- name: <name>` and a comment.

A statement is complete as it stands there; what varies are its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sqlalchemy import TextClause, text

FOLDER = Path(__file__).parent
_HEADER = re.compile(r"^-- name: (\w+)\n(?:-- .+\n)+", re.MULTILINE)


def named(name: str) -> TextClause:
    """The statement of this name, ready to be executed with its parameters."""
    return statements()[name]


@cache
def statements() -> Mapping[str, TextClause]:
    """All statements by name."""
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
