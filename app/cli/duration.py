"""Durations as people write them: `90s`, `15m`, `12h`, `30d`."""

from __future__ import annotations

import re

from solvers.errors import InputError

_DURATION = re.compile(r"^(\d+)([smhd])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(text: str) -> int:
    """Seconds of a duration. Raises InputError."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a duration; write a whole number and s, m, h or d, such as 24h")
    return int(match[1]) * _SECONDS[match[2]]
