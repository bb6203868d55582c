"""Who asked the helper for what, and what came of it: one JSON line each, in a log that cannot grow without end.

Owns the form, the bound on the file (one older file is kept) and the bound on lines about strangers, which anybody on
the host could otherwise fill it with. Texts from outside are shortened and escaped.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

BYTES_MAX = 4 * 1024 * 1024
STRANGERS_PER_S = 5
TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class Peer:
    """The process on the other side of a connection, as the kernel says."""

    pid: int
    uid: int
    gid: int


class Audit:
    """Writes lines; thread-safe. To a stream (whose reader bounds it, as the journal does), or to a file."""

    def __init__(
        self, target: TextIO | Path, wall_s: Callable[[], float] = time.time, bytes_max: int = BYTES_MAX
    ) -> None:
        self._target = target
        self._wall_s = wall_s
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._strangers_second = 0
        self._strangers = 0
        self._suppressed = 0

    def request(self, peer: Peer | None, outcome: str, *, verb: str, device: str, value: object) -> None:
        """A request that was read. Without a peer it is the helper's own doing."""
        with self._lock:
            self._write(peer, {"verb": verb, "device": device, "value": value, "outcome": outcome})

    def stranger(self, peer: Peer | None, outcome: str) -> None:
        """A connection or line that was turned away; only the first few of a second are told, the rest counted."""
        with self._lock:
            second = int(self._wall_s())
            if second != self._strangers_second:
                self._strangers_second, self._strangers = second, 0
            self._strangers += 1
            if self._strangers > STRANGERS_PER_S:
                self._suppressed += 1
                return
            suppressed, self._suppressed = self._suppressed, 0
            more = {"suppressed": suppressed} if suppressed else {}
            self._write(peer, {"verb": None, "outcome": outcome, **more})

    def _write(self, peer: Peer | None, facts: dict[str, object]) -> None:
        now_s = self._wall_s()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1000):03d}Z"
        who = {"by": "helper"} if peer is None else {"uid": peer.uid, "gid": peer.gid, "pid": peer.pid}
        short = {name: fact[:TEXT_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()}
        line = json.dumps({"time": moment, "event": "helper.asked", **who, **short}) + "\n"
        try:
            self._append(line)
        except OSError:
            # A full disk must not keep a device from being brought back to its original settings.
            return

    def _append(self, line: str) -> None:
        if not isinstance(self._target, Path):
            self._target.write(line)
            self._target.flush()
            return
        if self._target.exists() and self._target.stat().st_size + len(line) > self._bytes_max:
            self._target.replace(self._target.with_name(self._target.name + ".1"))
        with self._target.open("a", encoding="ascii") as file:
            file.write(line)
