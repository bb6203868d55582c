"""The laboratory's commands are run as the product's are."""

from __future__ import annotations

from tests.unit.app.cli.conftest import api, headroom

__all__ = ["api", "headroom"]
