"""The package that Python programs import: it stands alone, whatever else is called `app`, and knows every kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headroom_client
from app import kinds
from headroom_client import Client, WrongUseError
from headroom_client.client import KINDS

ALONE = """
import importlib.abc, sys

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
import headroom_client
with headroom_client.Client("http://127.0.0.1:9", "t", attempts_max=1) as client:
    try:
        client.put("service", {{"project": "a", "name": "b"}})
    except headroom_client.UnreachableError as error:
        print(error.message)
print(sorted(name for name in {refused!r} if name in sys.modules))
"""
PRODUCT = ("app", "solvers", "agents", "lab")
SERVER = (
    "yaml",
    "typer",
    "rich",
    "pydantic",
    "fastapi",
    "starlette",
    "sqlalchemy",
    "psycopg",
    "numpy",
    "scipy",
    "ortools",
)


def test_it_needs_nothing_of_the_product_and_of_others_httpx_alone(tmp_path: Path) -> None:
    (tmp_path / "headroom_client").symlink_to(Path(headroom_client.__file__).parent)
    code = ALONE.format(refused=(*PRODUCT, *SERVER))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told, loaded = done.stdout.splitlines()
    assert told.startswith("cannot reach http://127.0.0.1:9")
    assert loaded == "[]"


def test_its_kinds_are_the_servers() -> None:
    assert {name: (place.plural, place.key) for name, place in KINDS.items()} == {
        kind.name: (kind.plural, kind.key) for kind in kinds.KINDS
    }


def test_wrong_use_is_told_before_anything_is_sent() -> None:
    with Client("http://127.0.0.1:9", "t") as client, pytest.raises(WrongUseError, match="did you mean service"):
        client.get("servise", "a", "b")
    with pytest.raises(ValueError, match="must start with http"):
        Client("127.0.0.1", "t")
