"""Every named statement is understood by both versions of PostgreSQL, before anybody needs it."""

from __future__ import annotations

import re

import psycopg
import pytest

from app.store.sql import driven, statements

pytestmark = pytest.mark.integration

PARAMETER = re.compile(r"%\((\w+)\)s")


def test_every_statement_is_understood(migrated_url: str) -> None:
    refused = {}
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        for name, statement in statements().items():
            sql = driven(statement).decode()
            places = {each: f"${number}" for number, each in enumerate(dict.fromkeys(PARAMETER.findall(sql)), 1)}
            plain = PARAMETER.sub(lambda found, places=places: places[found[1]], sql).replace("%%", "%")
            try:
                connection.execute(f"PREPARE {name} AS {plain}".encode())
            except psycopg.errors.IndeterminateDatatype:
                continue  # only the value tells what it is
            except psycopg.Error as error:
                refused[name] = str(error).splitlines()[0]
    assert refused == {}
