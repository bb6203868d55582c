"""The list of seeded faults: each has its one place still, is Python, and names who should notice it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutants.__main__ import MISSED, NOTICED, table
from benchmarks.mutants.listing import Seeded, seeded
from lab.claims.catalogue import claims

ROOT = Path(__file__).resolve().parents[3]
MUTANTS = seeded()


def test_there_are_enough_for_every_system_and_each_is_told_apart() -> None:
    counts = Counter(each.system for each in MUTANTS)
    assert set(counts) == {"hetsev", "inss", "morak", "mudi", "oltunes", "ours"}
    assert min(counts.values()) >= 20
    assert len(MUTANTS) >= 120
    assert max(Counter((each.file, each.what) for each in MUTANTS).values()) == 1
    assert max(Counter((each.file, each.old, each.new) for each in MUTANTS).values()) == 1


def test_each_has_its_one_place_and_is_python() -> None:
    sources = {each.file: (ROOT / each.file).read_text(encoding="utf-8") for each in MUTANTS}
    for each in MUTANTS:
        ast.parse(each.applied(sources[each.file]))


def test_who_should_notice_is_there() -> None:
    quick = {claim.id for claim in claims() if claim.quick}
    for name in {name for each in MUTANTS for name in each.catch}:
        assert name in quick if name.startswith("AC-") else (ROOT / name.partition("::")[0]).exists(), name
    assert all(each.catch for each in MUTANTS)


def test_a_place_that_is_gone_or_there_twice_is_told() -> None:
    made = Seeded(system="x", what="y", file="z.py", old="a", new="b", catch=("t",))
    assert made.applied("a c") == "b c"
    for source in ("c", "a a"):
        with pytest.raises(ValueError, match=r"x, y: z\.py has"):
            made.applied(source)


def test_what_is_missed_is_named() -> None:
    told = table(MUTANTS[:2], [NOTICED, MISSED])
    assert "50.0 %" in told
    assert f"{MISSED}: {MUTANTS[1].system}: {MUTANTS[1].what}" in told
