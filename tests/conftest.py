"""What every test shares: reproducible property tests without a wall-clock deadline, for machines that are busy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "house", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Flags of our own."""
    parser.addoption("--golden-rewrite", action="store_true", help="write golden files anew; review the difference")
