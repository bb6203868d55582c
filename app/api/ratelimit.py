"""How fast one caller may ask: a token bucket per key, in this process's memory.

Owns the buckets and their bound. Several API replicas each keep their own, so the limit of a deployment is the limit
of a process times the replicas; that protects the process, which is what it is for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from app.errors import RateLimitedError

BUCKETS_MAX = 20_000


class RateLimiter:
    """Buckets that refill at `rate_per_s` and hold twice as much for bursts."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now_ms: float) -> None:
        """Spend one request of `key`. Raises RateLimitedError with the time until the next is free. A rate of 0
        limits nothing.
        """
        if self._rate_per_s <= 0:
            return
        capacity = max(1.0, 2.0 * self._rate_per_s)
        with self._lock:
            level, at_ms = self._buckets.pop(key, (capacity, now_ms))
            level = min(capacity, level + max(0.0, now_ms - at_ms) / 1000.0 * self._rate_per_s)
            allowed = level >= 1.0
            self._buckets[key] = (level - 1.0 if allowed else level, now_ms)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        if not allowed:
            raise RateLimitedError(
                f"more than {self._rate_per_s:g} requests per second", retry_after_s=(1.0 - level) / self._rate_per_s
            )
