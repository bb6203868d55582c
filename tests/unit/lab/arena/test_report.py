"""The report: one file that needs nothing else, the same for the same runs, with everything in it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.arena.report import page_of, styles_of
from lab.arena.running import RunRecord
from lab.arena.stats import comparisons
from solvers.domain.codec import digest
from tests.unit.lab.arena.fake import folder_of, scenario, tasks

VOID = {"meta", "br"}
CONTENDERS = ("hetsev", "k8s_hpa", "headroom", "melange")


class Nesting(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, ...]:
    folder = tmp_path_factory.mktemp("runs")
    paths = [scenario(folder, "one"), scenario(folder, "two", fails="k8s_hpa")]
    return folder_of(folder / "out", tasks(paths, CONTENDERS, seeds=3)).records()


@pytest.fixture(scope="module")
def page(records: tuple[RunRecord, ...]) -> str:
    return page_of(records)


def test_it_is_one_sound_document(page: str) -> None:
    parser = Nesting()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert page.startswith("<!doctype html>")
    # Two scenarios; bars for each; five charts for each contender that ran.
    assert parser.seen.count("section") == 3
    assert parser.seen.count("svg") == 2 + 5 * (4 + 3)


def test_every_seed_is_a_dot_and_few_of_them_a_warning(records: tuple[RunRecord, ...], page: str) -> None:
    assert page.count('class="dot"') == 3 * (4 + 3)
    assert "3 seeds tell large differences only" in page
    more = tuple(replace(record, seed=record.seed + 3 * number) for number in range(4) for record in records)
    assert "tell large differences only" not in page_of(more)


def test_it_says_what_ran_by_digests(records: tuple[RunRecord, ...], page: str) -> None:
    for record in records:
        for summed in (record.scenario_digest, digest(record.contender)):
            assert summed.removeprefix("sha256:")[:12] in page
        assert record.software in page


def test_it_needs_nothing_but_itself(page: str) -> None:
    assert "<script" not in page
    assert "http" not in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert not re.search(r"url\(|@import", page)
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page


def test_it_is_the_same_for_the_same_runs(records: tuple[RunRecord, ...], page: str) -> None:
    assert page_of(records) == page


def test_everybody_is_on_it(page: str) -> None:
    text = re.sub(r"<[^>]+>", " ", page.partition("<body>")[2])
    for name in (*CONTENDERS, "one", "two", "cost_usd", "violation_pct", "echo", "At a glance", "Failed runs"):
        assert name in text
    assert text.count("k8s_hpa cannot run here") == 3
    assert "guard not kept" in text
    assert re.search(r"headroom\s+against\s+hetsev", text)


def test_what_people_wrote_is_escaped(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one", fails="hetsev")], ["hetsev", "k8s_hpa"], seeds=1)
    kept = folder_of(tmp_path / "out", wanted)
    made = page_of(kept.records()).replace("hetsev cannot run here", "")
    assert "<b>cost_usd</b>" in made
    (record, other) = kept.records()
    hostile = type(record)(**{**{name: getattr(record, name) for name in record.__slots__}, "error": "<img src=x>"})
    assert "<img" not in page_of((hostile, other))


def test_ours_has_the_first_colour(records: tuple[RunRecord, ...]) -> None:
    styles = styles_of(comparisons(records))
    assert list(styles) == ["headroom", "hetsev", "k8s_hpa", "melange"]
    assert styles["headroom"] == "k0"
    assert len(set(styles.values())) == 4
