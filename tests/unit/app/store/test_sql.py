"""Named statements: loaded from files, each used, and each that is used is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app.store import sql

APP = Path(__file__).resolve().parents[4] / "app"


def _asked_for() -> set[str]:
    found = set()
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "named":
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{path.name}:{node.lineno}: the name is not written out"
                found.add(name.value)
    return found


def test_every_statement_is_used_and_every_use_exists() -> None:
    assert _asked_for() == set(sql.statements())


def test_no_statement_is_pasted_together_in_code() -> None:
    """A `text` with a whole statement belongs into a file; a fragment beside an expression may stay."""
    for path in (APP / "store").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "text":
                shown = ast.unparse(node).upper()
                assert not any(verb in shown for verb in ("SELECT ", "INSERT ", "UPDATE ", "DELETE ")), path.name


@pytest.mark.parametrize(
    "content",
    [
        "SELECT 1\n",
        "-- name: a\nSELECT 1\n",
        "-- name: a\n-- Why.\nSELECT 1\n-- name: b\nSELECT 2\n",
        "-- name: a\n-- Why.\nSELECT 1\n-- name: a\n-- Why.\nSELECT 2\n",
    ],
    ids=["nameless", "uncommented", "second uncommented", "twice"],
)
def test_a_file_that_does_not_say_what_it_holds_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "noun.sql").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"noun\.sql"):
        sql.load(tmp_path)


def test_blocks_become_statements_with_their_parameters(tmp_path: Path) -> None:
    (tmp_path / "noun.sql").write_text(
        "-- name: one\n-- What it\n-- answers.\nSELECT CAST(:a AS text)\n\n-- name: two\n-- Another.\nSELECT 2\n",
        encoding="utf-8",
    )
    found = sql.load(tmp_path)
    assert {name: item.text for name, item in found.items()} == {"one": "SELECT CAST(:a AS text)", "two": "SELECT 2"}
    assert set(found["one"].compile().params) == {"a"}
