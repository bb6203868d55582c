"""That nobody plans is said to people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from app.services.explaining.standing import UNLED_S, unled_words
from app.store.targets import Lease


def test_that_nobody_plans_is_said_once_no_other_took_over() -> None:
    moment = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    lease = Lease(name="planner", holder="x", token=1, acquired_at=moment, expires_at=moment, left_s=8.0, held=True)
    assert unled_words(lease) is None
    ended = replace(lease, held=False, left_s=1.0 - UNLED_S)
    assert unled_words(ended) is None
    since = "no planner leads since 2026-05-01 12:00:00 UTC: nothing is planned until one runs (headroom planner)"
    assert unled_words(replace(ended, left_s=-1.0 - UNLED_S)) == since
    assert str(unled_words(None)).startswith("no planner has led yet")
