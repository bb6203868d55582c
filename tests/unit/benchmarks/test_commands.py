"""Whoever asks a command what it does is told, and nothing is run or written for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "Makefile")
ASKED = re.compile(r"python -m ((?:benchmarks|lab|tests)[\w.]*)")
TOLD = sorted({name for page in PAGES for name in ASKED.findall(page.read_text("utf-8"))})


@pytest.mark.parametrize("name", TOLD)
def test_every_command_that_is_told_exists_and_reads_its_arguments(name: str) -> None:
    place = ROOT.joinpath(*name.rstrip(".").split("."))
    source = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    text = source.read_text("utf-8")
    assert '__name__ == "__main__"' in text
    assert ".parse_args(" in text
