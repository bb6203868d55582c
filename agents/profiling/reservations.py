"""Which devices are lent to a profile run, and whether their owner wants them back.

Owns the hand-shake between the thread that applies targets and the one that measures: a lent device is left alone by
the applier; when the target puts replicas there the device is claimed, the run ends and gives it back. Safe from
several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Reservations:
    """Devices that are lent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: set[str] = set()
        self._claimed: set[str] = set()
        self.when_back: Callable[[], None] = lambda: None
        """Called after a device was given back."""

    def lend(self, uuid: str) -> bool:
        """Lend a device; False when it is lent already."""
        with self._lock:
            if uuid in self._lent:
                return False
            self._lent.add(uuid)
            return True

    def give_back(self, uuid: str) -> None:
        """The run is over and has cleaned up."""
        with self._lock:
            self._lent.discard(uuid)
            self._claimed.discard(uuid)
        self.when_back()

    def is_lent(self, uuid: str) -> bool:
        """Whether the applier must leave it alone."""
        with self._lock:
            return uuid in self._lent

    def claim(self, uuid: str) -> None:
        """The target wants the device: the run on it shall end."""
        with self._lock:
            if uuid in self._lent:
                self._claimed.add(uuid)

    def is_claimed(self, uuid: str) -> bool:
        """Whether the run must end."""
        with self._lock:
            return uuid in self._claimed
