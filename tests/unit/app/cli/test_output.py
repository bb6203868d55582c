"""Exit codes and one-line errors for everything that is expected; and how numbers, tables and answers look."""

from __future__ import annotations

import io
import json
import sys

import pytest
import yaml
from rich.console import Console
from rich.text import Text

from app.cli.output import (
    CommandError,
    Exit,
    Format,
    SignedAmount,
    exit_code_of,
    fitted,
    number,
    rows,
    sentence_of,
    show,
    usd,
    word,
)
from headroom_client import ApiError, UnreachableError
from solvers.errors import (
    EngineError,
    FieldError,
    InputError,
    InvariantError,
    LeaseLostError,
    NotFoundError,
    SupersededError,
    TransientError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(401, {}), Exit.REFUSED),
        (ApiError(403, {}), Exit.REFUSED),
        (ApiError(404, {}), Exit.NOT_FOUND),
        (ApiError(409, {}), Exit.CONFLICT),
        (ApiError(412, {}), Exit.CONFLICT),
        (ApiError(413, {}), Exit.USAGE),
        (ApiError(422, {}), Exit.USAGE),
        (ApiError(429, {}), Exit.FAILED),
        (ApiError(500, {}), Exit.FAILED),
        (ApiError(503, {}), Exit.FAILED),
        (UnreachableError("x"), Exit.UNREACHABLE),
        (TransientError("x"), Exit.UNREACHABLE),
        (NotFoundError("x"), Exit.NOT_FOUND),
        (SupersededError("x"), Exit.CONFLICT),
        (LeaseLostError("x"), Exit.CONFLICT),
        (InputError("x"), Exit.USAGE),
        (FieldError("f", "x"), Exit.USAGE),
        (EngineError("x"), Exit.FAILED),
        (InvariantError("x"), Exit.FAILED),
        (CommandError("x", Exit.FOUND_WRONG), Exit.FOUND_WRONG),
        (ModuleNotFoundError("x", name="sqlalchemy.orm"), Exit.NEEDS_EXTRA),
        (ModuleNotFoundError("x", name="pyarrow.parquet"), Exit.NEEDS_EXTRA),
        (ModuleNotFoundError("x", name="app.nonsense"), Exit.FAILED),
        (ValueError("x"), Exit.FAILED),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    assert exit_code_of(error) is code


def test_a_problem_is_told_with_its_fields() -> None:
    faults = [{"pointer": "/rate", "detail": "must not be negative"}, {"pointer": "", "detail": "no more"}]
    error = ApiError(422, {"detail": "2 fields are invalid", "code": "field-invalid", "errors": faults})
    assert sentence_of(error) == "2 fields are invalid; /rate: must not be negative; no more (field-invalid)"


def test_a_fault_names_what_was_typed_and_says_it_once() -> None:
    told = {
        ("query:from", "`from` must lie before `to`"): "--from must lie before --to",
        ("query:from", "a span may cover 400 days at most"): "--from: a span may cover 400 days at most",
        ("query:label.0", "must be KEY or KEY=VALUE"): "--label: must be KEY or KEY=VALUE",
        ("query:gpu_type", "is none"): "--gpu-type: is none",
        ("path:plan_id", "a plan is named by its digits"): "a plan is named by its digits",
        ("/changes/rate_factor", "rate_factor must be positive"): "/changes/rate_factor must be positive",
        ("/policy", "/policy: expected an object"): "/policy: expected an object",
    }
    for (pointer, detail), sentence in told.items():
        problem = {"detail": detail, "code": "x", "errors": [{"pointer": pointer, "detail": detail}]}
        assert sentence_of(ApiError(422, problem)) == f"{sentence} (x)"


def test_a_server_fault_is_told_with_its_request() -> None:
    error = ApiError(500, {"detail": "broken", "code": "internal", "request_id": "r-1"})
    assert sentence_of(error) == "broken (internal, request r-1)"


def test_a_missing_extra_is_told_with_the_cure() -> None:
    sentence = sentence_of(ModuleNotFoundError("No module", name="fastapi"))
    assert sentence is not None
    assert "needs headroom-gpu[server]" in sentence


def test_files_are_named_and_bugs_are_not_explained_away() -> None:
    assert (
        sentence_of(FileNotFoundError(2, "No such file or directory", "x.yaml")) == "x.yaml: No such file or directory"
    )
    assert sentence_of(ValueError("x")) is None
    assert sentence_of(ModuleNotFoundError("x", name="app.nonsense")) is None


@pytest.mark.parametrize(("module", "extra"), [("numpy.linalg", "server"), ("pyarrow", "arena")])
@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, extra: str, is_checkout: bool) -> None:
    monkeypatch.setattr("app.cli.output._CHECKOUT", is_checkout)
    sentence = sentence_of(ModuleNotFoundError("x", name=module))
    assert sentence is not None
    how = "make venv" if is_checkout else f'pip install ".[{extra}]" in a checkout of Headroom'
    assert sentence.endswith(f"is missing): {how}")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        *((0, "0"), (0.12345, "0.1235"), (1.5, "1.5"), (123.456, "123.5"), (12345.6, "12,346"), (-2.0, "-2")),
        *((-1e-7, "0"), (1e300, "1.000e+300")),
    ],
)
def test_numbers_have_the_digits_they_need(amount: float, text: str) -> None:
    assert number(amount) == text


def test_cells_say_nothing_as_a_dash() -> None:
    assert [word(None), word(""), word(True), word(3), word(2.50)] == ["-", "-", "yes", "3", "2.5"]


def test_dollars_show_cents_that_matter() -> None:
    assert [usd(None), usd(12.345), usd(0.00123, per_hour=True)] == ["-", "$12.35", "$0.0012/h"]
    assert [usd(-12.345), usd(-0.00123, per_hour=True)] == ["-$12.35", "-$0.0012/h"]


def test_json_and_yaml_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"name": "größe", "items": [1, 2.5, None]}
    show(answer, Format.JSON, [])
    assert json.loads(capsys.readouterr().out) == answer
    show(answer, Format.YAML, [])
    assert yaml.safe_load(capsys.readouterr().out) == answer


def test_names_are_printed_alone_and_that_there_are_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "a"}, {"id": "b"}], Format.NAME, [])
    assert capsys.readouterr() == ("a\nb\n", "")
    show({"items": []}, Format.NAME, [])
    assert capsys.readouterr() == ("", "")
    for nameless in ({"usd": 1.5}, {"items": [{"usd": 1.5}]}, [{"usd": 1.5}]):
        show(nameless, Format.NAME, [])
        assert capsys.readouterr() == ("", "headroom: nothing in this answer has a name of its own\n")


def test_what_others_wrote_stands_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["greedy[seed=1]", "[/b] it ended", "KeyError: ':key:'"]
    show({}, Format.TABLE, told)
    assert capsys.readouterr().out.splitlines() == told


def test_differences_are_numbers_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    table = rows(
        ("what", ">difference"),
        [("a", SignedAmount(1234.5)), ("b", SignedAmount(-2)), ("c", SignedAmount(0.0)), ("d", "=1")],
    )
    show({}, Format.CSV, table)
    assert capsys.readouterr().out.splitlines()[1:] == ["a,1234.5", "b,-2", "c,0.0", "d,'=1"]
    show({}, Format.TABLE, table)
    told = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert told == [["a", "+1,234"], ["b", "-2"], ["c", "0"], ["d", "=1"]]


@pytest.mark.parametrize("form", list(Format))
def test_what_is_shown_is_there_at_once(monkeypatch: pytest.MonkeyPatch, form: Format) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    show([{"name": "a"}], form, rows(["name"], [("a",)]))
    assert b"a" in written.getvalue()


def test_a_long_table_is_made_of_lines_not_of_parts_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    init = Text.__init__
    monkeypatch.setattr(Text, "__init__", lambda text, *said, **more: made.append("") or init(text, *said, **more))
    with (screen := Console(file=io.StringIO(), width=80)).capture() as told:
        screen.print(rows(("node", ">GPUs"), [(f"node-{n}", n) for n in range(1000)], title="nodes"))
    assert told.get().splitlines()[1000:] == ["node-998   998", "node-999   999"]
    assert len(made) < 100


def test_heads_stand_on_their_columns_and_folded_cells_begin_together() -> None:
    table = rows(("GPU", ">rate in rps", "żółw 日本語"), [("h100", 1234567.5, "日本語 a"), ("a", None, "b\nc")])
    with (screen := Console(file=io.StringIO(), width=20)).capture() as told:
        screen.print(table)
    assert [line.rstrip() for line in told.get().splitlines()] == [
        "        rate  żółw",
        "GPU   in rps  日本語",
        "h100  1,234,  日本語",
        "         568  a",
        "a          -  b",
        "              c",
    ]


def test_a_table_in_a_pipe_is_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 150
    show({}, Format.TABLE, rows(["name", ">count"], [(long, 7), ("[red]b[/red]", None)], title="things"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "things"
    assert lines[1].split() == ["name", "count"]
    assert lines[2].split() == [long, "7"]
    assert lines[3].split() == ["[red]b[/red]", "-"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("wants", "needs", "room", "widths"),
    [
        ([10, 30], [5, 8], 100, [10, 30]),
        ([10, 30], [5, 8], 30, [10, 20]),
        ([40, 9, 9], [40, 9, 9], 30, [12, 9, 9]),
        ([12, 12], [12, 12], 23, [12, 11]),
        ([3, 3], [3, 3], 1, [1, 1]),
    ],
    ids=["as wide as wanted", "what folds best folds", "the longest word breaks", "of equal ones the last", "no room"],
)
def test_columns_share_what_room_there_is(wants: list[int], needs: list[int], room: int, widths: list[int]) -> None:
    assert fitted(wants, needs, room) == widths


def test_a_narrow_terminal_breaks_no_word_that_fits() -> None:
    table = rows(
        ("service", ">rate rps", "why"), [("language/transformer-mt", 44.36, "t4 has too little SM share left")]
    )
    with (screen := Console(file=io.StringIO(), width=50)).capture() as told:
        screen.print(table)
    lines = [line.rstrip() for line in told.get().splitlines()]
    assert max(map(len, lines)) <= 50
    assert lines[1].split() == ["language/transformer-mt", "44.36", "t4", "has", "too"]
