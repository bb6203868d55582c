"""The rewrite flag of golden tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def golden_rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether the expected files are to be written anew; the difference is then for a person to review."""
    return bool(request.config.getoption("--golden-rewrite"))
