"""Waiting for a usable database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.bootstrap import await_schema, holder_name
from solvers.errors import StateError, TransientError


def test_a_current_schema_is_not_waited_for() -> None:
    await_schema(lambda: "0014", "0014", wait_s=0.0)


def test_a_newer_schema_is_fine() -> None:
    await_schema(lambda: "0015", "0014", wait_s=0.0)


def test_database_and_migration_are_waited_for() -> None:
    answers: Iterator[str | None] = iter([None, "0013", "0014"])
    asked = []

    def current() -> str | None:
        asked.append(1)
        if len(asked) == 1:
            raise TransientError("connection refused")
        return next(answers)

    await_schema(current, "0014", wait_s=30.0)
    assert len(asked) == 4


def test_giving_up_names_what_is_missing() -> None:
    def unreachable() -> str | None:
        raise TransientError("connection refused")

    with pytest.raises(StateError, match=r"after 0 s: the database does not answer: connection refused"):
        await_schema(unreachable, "0014", wait_s=0.0)
    with pytest.raises(StateError, match=r"schema is at base, but this software needs 0014; run: headroom migrate up"):
        await_schema(lambda: None, "0014", wait_s=0.0)


def test_holder_names_are_never_equal() -> None:
    assert holder_name() != holder_name()
