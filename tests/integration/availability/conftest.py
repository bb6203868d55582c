"""The fault tests' server and houses, for what is about staying available."""

from __future__ import annotations

from tests.integration.faults.conftest import house, postgres

__all__ = ["house", "postgres"]
