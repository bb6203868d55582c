"""Readers of what others write answer or refuse, whatever they are given (`python -m tests.fuzz`: far more inputs)."""

from __future__ import annotations

import random
import subprocess
import sys

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


OF_A_TABLE = (
    "from app.services.profiles.profiles import read_csv\n"
    "cell = 130_000 * b'9' + b'x'\n"
    "print(read_csv(b'model,gpu_type,batch,share_pct_sm,latency_ms\\nm,t4,1,50,' + cell)({'t4': 1590}).faults)"
)
OF_A_DOCUMENT = (
    "from app.marked import read_marked\n"
    "print(len(read_marked('name: ' + 500_000 * '9' + 'x', '-')[0].plain['name']), 'is not a number')"
)


@pytest.mark.parametrize("code", [OF_A_TABLE, OF_A_DOCUMENT])
def test_a_long_row_of_digits_is_read_at_once(code: str) -> None:
    """Read in two ways, its places would be tried squared: for hours."""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=100)
    assert "is not a number" in done.stdout, done.stderr
