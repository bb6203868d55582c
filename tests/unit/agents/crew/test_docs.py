"""The page on workers says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

from agents.crew.adapters import ADAPTERS, BATCH_PATH, DRAIN_PATH
from agents.crew.launching import INHERITED, PLACEHOLDERS
from solvers.domain.codec import from_plain
from solvers.domain.worker import WorkerCommand

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "workers.md").read_text(encoding="utf-8")


def test_the_example_is_a_worker() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert from_plain(WorkerCommand, json.loads(example)).drain_s == 60


def test_every_name_is_told() -> None:
    assert all(f"`{{{name}}}`" in PAGE for name in PLACEHOLDERS)
    assert all(f"`{name}`" in PAGE for name in INHERITED)
    assert {*re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)} >= set(ADAPTERS)
    for adapter in ADAPTERS.values():
        assert adapter.ready_path in PAGE
        assert adapter.metrics_path in PAGE
    assert BATCH_PATH in PAGE
    assert DRAIN_PATH in PAGE
