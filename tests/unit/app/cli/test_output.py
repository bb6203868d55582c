"""How answers are printed: numbers that fit, tables that are whole in a pipe, and forms that programs can read back."""

from __future__ import annotations

import json

import pytest
import yaml

from app.cli.output import Format, number, rows, show, usd, word


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (0.12345, "0.1235"), (1.5, "1.5"), (123.456, "123.5"), (12345.6, "12,346"), (-2.0, "-2")],
)
def test_numbers_have_the_digits_they_need(amount: float, text: str) -> None:
    assert number(amount) == text


def test_cells_say_nothing_as_a_dash() -> None:
    assert [word(None), word(""), word(True), word(3), word(2.50)] == ["-", "-", "yes", "3", "2.5"]


def test_dollars_show_cents_that_matter() -> None:
    assert [usd(None), usd(12.345), usd(0.00123, per_hour=True)] == ["-", "$12.35", "$0.0012/h"]


def test_json_and_yaml_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"name": "größe", "items": [1, 2.5, None]}
    show(answer, Format.JSON, [])
    assert json.loads(capsys.readouterr().out) == answer
    show(answer, Format.YAML, [])
    assert yaml.safe_load(capsys.readouterr().out) == answer


def test_a_table_in_a_pipe_is_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 150
    show({}, Format.TABLE, rows(["name", ">count"], [(long, 7), ("[red]b[/red]", None)], title="things"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "things"
    assert lines[1].split() == ["name", "count"]
    assert lines[2].split() == [long, "7"]
    assert lines[3].split() == ["[red]b[/red]", "-"]
    assert "\x1b" not in "".join(lines)
