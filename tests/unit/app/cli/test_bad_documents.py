"""Documents that nothing can send: each fault is told with its file and line, and nothing is sent."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.unit.app.cli.conftest import Api, Headroom, page


@dataclass(frozen=True)
class Bad:
    name: str
    text: str
    said: str


@pytest.mark.parametrize(
    "bad",
    [
        Bad("a.yaml", "kind: project\nname: p\nweight: .nan\n", ":3: weight: nan is no number"),
        Bad("a.yaml", 'kind: project\nname: "\\ud800"\n', ":2: name: half a character"),
        Bad("a.yaml", "kind: project\nname: p\nlist:\n- {a: -.inf}\n", ":4: list[0].a: -inf is no number"),
        Bad("a.yaml", "kind: project\nname: p\nraw: !!binary aGk=\n", ":3: raw: JSON has no bytes"),
        Bad("a.json", '{"kind": "project",\n"name": "p",\n"weight": NaN}', ":3: weight: nan is no number"),
        Bad("a.json", '{"kind": "project",\n"weight": 1e999}', ":2: weight: inf is no number"),
        Bad("a.json", '{"kind": "project",\n"labels": {"a": "\\udcff"}}', ":2: labels.a: half a character"),
        Bad("a.yaml", 'kind: project\nname: "a\\0b"\n', ":2: name: the character U+0000 is in no text"),
        Bad(
            "a.yaml",
            f"kind: project\nquota: {{max_gpus: {2**63}}}\n",
            ":2: quota.max_gpus: a number that does",
        ),
        Bad("a.json", '{"kind": "project",\n"\\udcff": 1}', ":1: the key '\\udcff' is no text"),
    ],
)
@pytest.mark.parametrize("command", [("apply",), ("apply", "--dry-run"), ("diff",), ("simulate",)])
def test_what_json_cannot_say_is_told_with_its_line(
    api: Api, headroom: Headroom, tmp_path: Path, command: tuple[str, ...], bad: Bad
) -> None:
    file = tmp_path / bad.name
    file.write_text(bad.text)
    answer = headroom(*command, "-f", str(file))
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert f"{file}{bad.said}" in answer.err
    assert api.asked == []


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("{priority: 70, priority: 80}", "--patch:1: priority: already said on line 1"),
        ('{"priority": 70, "priority": 80}', "--patch:1: priority: already said on line 1"),
        ("{priority: .nan}", "--patch:1: priority: nan is no number"),
        ("{priority: [", "--patch:1: "),
        ("priority", "--patch takes an object"),
    ],
)
def test_a_patch_that_says_nothing_clear_is_one_line(api: Api, headroom: Headroom, wish: str, said: str) -> None:
    answer = headroom("patch", "project", "p", "-p", wish)
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert said in answer.err
    assert api.asked == []


def test_a_closed_standard_input_is_one_line(api: Api, headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    answer = headroom("apply", "-f", "-")
    assert (answer.status, answer.err) == (2, "headroom: standard input: closed\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: \xff"), "utf-8"))
    answer = headroom("apply", "-f", "-")
    assert (answer.status, answer.err) == (2, "headroom: standard input: not UTF-8 text\n")


@pytest.mark.parametrize("name", ["nope.csv", "nope.json"])
def test_measurements_that_are_not_there_are_wrong_input(api: Api, headroom: Headroom, name: str) -> None:
    answer = headroom("profiles", "import", name)
    assert (answer.status, answer.err) == (2, f"headroom: {name}: no such file\n")


@pytest.mark.parametrize("words", [("drain", ""), ("uncordon", ""), ("nodes", "revoke", ""), ("token", "revoke", "")])
def test_an_empty_name_is_sent_to_nobody(api: Api, headroom: Headroom, words: tuple[str, ...]) -> None:
    answer = headroom(*words)
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "a name is empty" in answer.err
    assert api.asked == []


@pytest.mark.parametrize("what", ["cost", "focus"])
def test_a_report_on_a_project_that_is_not_there_says_so(api: Api, headroom: Headroom, what: str) -> None:
    api.answers["GET /v1/projects"] = page({"name": "vision"})
    answer = headroom("report", what, "--project", "visoin")
    assert (answer.status, answer.out) == (3, "")
    assert "did you mean vision" in answer.err
    api.answers["GET /v1/costs"] = {"items": [], "usd": 0, "start": "a", "end": "b", "accounting": "share"}
    api.answers["GET /v1/costs/focus"] = httpx.Response(200, text="BilledCost\n")
    answer = headroom("report", what, "--project", "visoin")
    assert (answer.status, answer.err.count("nothing accounted yet in this span")) == (0, 1)
