"""The comparer of frozen behaviour: it tells what changed, came and went, and keeps what it did not look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.same.arena import Cut
from benchmarks.same.frozen import FAILED, Case, Line, Look, Taken, differences, line_of, read, write
from benchmarks.same.planned import without_seconds

STOOD: Line = {"sha256": "0011", "usd_per_h": 2.5}


def line(text: str, usd_per_h: float) -> Line:
    case = Case(key="fleet", take=lambda: Taken(text=text), cut="50 units of work")
    return line_of(case, Taken(text=text, numbers={"usd_per_h": usd_per_h}))


def test_what_did_not_change_is_silent() -> None:
    assert differences({"quick": {"fleet": STOOD}}, Look(quick={"fleet": dict(STOOD)}, dear=None)) == ()


def test_a_changed_number_is_told_with_both_values() -> None:
    (told,) = differences({"quick": {"fleet": STOOD}}, Look(quick={"fleet": STOOD | {"usd_per_h": 2.6}}, dear=None))
    assert told == "fleet: 0011 usd_per_h=2.5 -> 0011 usd_per_h=2.6"


def test_a_changed_text_is_told_although_the_numbers_stay() -> None:
    before, now = line("one", 1.0), line("two", 1.0)
    assert before["cut"] == "50 units of work"
    assert len(differences({"quick": {"fleet": before}}, Look(quick={"fleet": now}, dear=None))) == 1


def test_what_came_and_went_is_told_and_what_needs_data_is_not() -> None:
    kept = {"quick": {"gone": STOOD, "unseen": STOOD}, "dear": {"late": STOOD}}
    look = Look(quick={"new": STOOD}, dear=None, missing=("unseen",))
    assert differences(kept, look) == (
        "gone: 0011 usd_per_h=2.5 -> nothing",
        "new: nothing -> 0011 usd_per_h=2.5",
    )
    assert len(differences(kept, Look(quick=look.quick, dear={}, missing=look.missing))) == 3


def test_a_subject_that_failed_is_told_even_where_its_failure_was_kept() -> None:
    failed: Line = {FAILED: "EngineError: no solver"}
    assert differences({"quick": {"fleet": failed}}, Look(quick={"fleet": failed}, dear=None)) != ()


def test_writing_keeps_what_was_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "kind.json"
    write(path, Look(quick={"gone": STOOD, "unseen": STOOD}, dear={"late": STOOD}))
    write(path, Look(quick={"new": line("one", 1.0)}, dear=None, missing=("unseen",)))
    assert {part: sorted(lines) for part, lines in read(path).items()} == {"quick": ["new", "unseen"], "dear": ["late"]}
    assert sum('"sha256"' in row for row in path.read_text().splitlines()) == 3


def test_seconds_of_a_search_are_no_part_of_what_was_told() -> None:
    facts = [{"name": "dive_s", "value": 0.1}, {"name": "columns", "value": 7}]
    assert without_seconds({"facts": facts}) == {"facts": facts[1:]}


@pytest.mark.parametrize(
    ("text", "shortened"), [("span: 1h\nseeds: 1\n", "span: 20s\nseeds: 1\n"), ("a: 1", "a: 1\nspan: 20s\n")]
)
def test_a_scenario_is_shortened_whether_or_not_it_says_the_field(text: str, shortened: str) -> None:
    assert Cut(fields=("span: 20s",)).text(text) == shortened
