"""The shell's time, ids and secrets: the only place that reads the system clock or draws randomness for identifiers."""

from __future__ import annotations

import secrets
import time
import uuid
from datetime import UTC, datetime


class SystemClock:
    """Wall and monotonic time of this machine; implements the cycle's Clock port."""

    def now_s(self) -> float:
        return time.time()

    def elapsed_ms(self) -> float:
        return time.monotonic() * 1000.0

    def now(self) -> datetime:
        return datetime.now(UTC)


def new_id() -> str:
    """A fresh random identifier (UUID 4)."""
    return str(uuid.uuid4())


def new_secret(prefix: str) -> str:
    """A fresh bearer secret: prefix and 32 random bytes, URL-safe."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"
