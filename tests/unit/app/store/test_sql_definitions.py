"""Functions and views of the schema: each in a file of its revision, none edited once it was released."""

from __future__ import annotations

import ast
import hashlib
import re
from itertools import dropwhile
from pathlib import Path

from sqlalchemy import text

from app.store import migrate

FOLDER = migrate.scripts_path() / "sql"
REVISIONS = migrate.scripts_path() / "versions"
DIGESTS = Path(__file__).with_name("sql_definitions.sha256")
DEFINES = re.compile(r"CREATE\s+(OR\s+REPLACE\s+)?(FUNCTION|VIEW|TRIGGER)", re.IGNORECASE)


def test_what_was_released_is_never_edited() -> None:
    """A database that was migrated before must hold the same; a change is a new file of a new revision. The comment
    that opens a file makes nothing and may be mended.
    """
    found = [f"{hashlib.sha256(_defining(path)).hexdigest()} {path.name}" for path in sorted(FOLDER.iterdir())]
    released = DIGESTS.read_text(encoding="utf-8").splitlines()
    assert found == released, "only lines of new files may be added"


def _defining(path: Path) -> bytes:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(dropwhile(lambda line: line.startswith("--"), lines)).encode()


def test_every_definition_is_executed_by_the_revision_it_is_named_after() -> None:
    for path in FOLDER.iterdir():
        (revision,) = REVISIONS.glob(f"{path.name[:4]}_*.py")
        assert f'"{path.stem}"' in revision.read_text(encoding="utf-8"), path.name


def test_definitions_say_what_they_are_and_can_be_executed_twice() -> None:
    for path in FOLDER.iterdir():
        content = path.read_text(encoding="utf-8")
        assert content.startswith("-- "), path.name
        assert {found[1] for found in DEFINES.finditer(content)} <= {"OR REPLACE "}, path.name
        assert text(content).compile().params == {}, f"{path.name} has what would be read as a parameter"


def test_revisions_hold_no_definition_in_a_string() -> None:
    for path in REVISIONS.glob("*.py"):
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not any(DEFINES.search(item) for item in strings), path.name
