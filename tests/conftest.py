"""What every test shares: reproducible property tests without a wall-clock deadline, for machines that are busy, and
temporary files in memory where there is room.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import Durations
from tests.scratch import clear_after_us, make_own, put_into_memory
from tests.workers import Workers, folders_of

# Before anything imports numpy: its library would start a thread a core in every process here, to wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What is loaded and collected stays: looking through it for garbage, again and again, is a third of collecting tests.
gc.disable()

settings.register_profile(
    "house", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Flags of our own."""
    parser.addoption("--golden-rewrite", action="store_true", help="write golden files anew; review the difference")
    parser.addoption("--workers", type=int, default=0, help="run files in this many processes (tests/workers.py)")
    parser.addoption("--again", type=int, default=0, help="run so many that failed once more, alone (tests/workers.py)")
    parser.addoption("--durations-kept", type=Path, help="file in which a run keeps what its files cost")
    parser.addoption("--examples", type=Path, help="file that the API's examples are written to")
    parser.addoption("--pictures", type=Path, help="folder that the console's pictures are written to")
    parser.addoption(
        "--pictures-of", type=Path, help="home of the `headroom up` to take them of, not of the tests' own"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Count what tests cost, and put temporary files into memory."""
    # Whatever workers count reaches the process that started them, which alone may add it to what is kept.
    works = hasattr(config, "workerinput")
    config.pluginmanager.register(Durations(None if works else config.getoption("--durations-kept")))
    if config.getoption("--workers"):
        config.pluginmanager.register(Workers(config, config.getoption("--workers"), config.getoption("--again")))
    put_into_memory()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave nothing behind, not even when we are killed."""
    if not hasattr(session.config, "workerinput"):
        kept = folders_of(session.config).getbasetemp
        clear_after_us(make_own(), kept())


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but only among what tests make, and as seldom as the servers do."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
