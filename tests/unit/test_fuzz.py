"""Readers of what others write answer or refuse, whatever they are given (`python -m tests.fuzz`: far more inputs)."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.__main__ import CORPUS, defect_of
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target

INPUTS = 250


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_well_is_read(target: Target) -> None:
    for seed in target.seeds:
        target.read(seed)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_breaks_a_reader(target: Target) -> None:
    stream = random.Random(f"here {target.name}")
    kept = [file.read_bytes() for file in sorted((CORPUS / target.name).glob("*.bin"))]
    for data in (*kept, *(mutated(target.seeds, stream) for _ in range(INPUTS))):
        assert defect_of(target, data) == "", data[:200]


def test_a_reader_that_breaks_is_told() -> None:
    target = Target(name="one", read=lambda data: data[3], seeds=(b"0123",))
    stream = random.Random(0)
    assert any(defect_of(target, mutated(target.seeds, stream)) for _ in range(INPUTS))
