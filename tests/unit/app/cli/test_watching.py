"""Commands that look again and again, and words and numbers that lead nowhere: each is told in a line."""

from __future__ import annotations

import pytest

from app.cli.output import Exit
from tests.unit.app.cli.conftest import Api, Headroom, page

HUGE = "9" * 400


@pytest.mark.parametrize(
    "words",
    [
        ("report", "cost", "--from", "0001-01-01T00:00+05:00"),
        ("report", "cost", "--to", "9999-12-31T23:59-05:00"),
        ("report", "cost", "--last", f"{HUGE}d"),
        ("report", "cost", "--last", f"{HUGE * 20}d"),
        ("report", "focus", "--from", "0001-01-01T00:00+05:00"),
        ("drain", "n", "--wait", "--timeout", f"{HUGE}d"),
        ("drain", "n", "--timeout", f"{HUGE * 20}d"),
        ("token", "create", "ops", "--role", "viewer", "--ttl", f"{HUGE}d"),
        ("rollback", "3", "--cooldown", f"{HUGE}m"),
        ("task", "submit", "m", "--inputs", "5", "--deadline", f"{HUGE}h"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "inf"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "nan"),
        ("task", "submit", "m", "--inputs", "5", "--min-rate", "1", "--lambda", "nan"),
        ("task", "list", "-n", HUGE),
        ("profile", "p/s", "--node", "n", "--budget", f"{HUGE}m"),
        ("top", "-n", "1", "--interval", "inf"),
        ("top", "-n", "1", "--interval", "1e300"),
        ("top", "-n", "1", "--interval", "nan"),
        ("get", "services", "--watch", "--looks", "1", "--interval", "inf"),
        ("get", "services", "--watch", "--looks", "1", "--interval", "nan"),
        ("get", "services", "-n", HUGE),
        ("get", "events", "-n", HUGE),
        ("plans", "-n", HUGE),
        ("webhook", "deliveries", "w", "-n", HUGE),
        ("doctor", "--limit-s", "nan"),
        ("plan", "--deadline-s", "nan"),
        ("traffic", "-f", "none.yaml", "--day-s", "inf"),
        ("traffic", "-f", "none.yaml", "--anchor-s", "inf"),
    ],
)
def test_numbers_and_moments_beyond_sense_are_refused_in_one_line(
    api: Api, headroom: Headroom, words: tuple[str, ...]
) -> None:
    api.answers |= {f"GET /v1/{route}": page() for route in ("services", "events", "plans", "tasks/status")}
    api.answers |= {"GET /v1/webhooks/w/deliveries": page(), "GET /v1/fleet": {}}
    said = headroom(*words)
    assert (said.status, len(said.err.splitlines()), len(said.err) < 300) == (Exit.USAGE, 1, True), said.err
    assert not api.asked
    assert "none.yaml" not in said.err
