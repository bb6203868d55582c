"""A listener at the doorbell, as an agent is one: it dials again whenever the stream breaks, and remembers what it
heard.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import httpx

from tests.integration.faults.house import House


class Listener:
    """Hears generations until the block ends."""

    def __init__(self, house: House) -> None:
        self.heard: list[int] = []
        self.dialled = 0
        self._house = house
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(10.0)

    def knows(self, generation: Callable[[], int]) -> bool:
        """Whether the newest heard is at least this."""
        return bool(self.heard) and self.heard[-1] >= generation()

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._house.admin}"}
        while not self._ending.is_set():
            try:
                self._listen(headers)
            except httpx.HTTPError:
                self._ending.wait(0.1)

    def _listen(self, headers: dict[str, str]) -> None:
        # Heartbeats come every second, so three seconds of silence are a dead connection.
        with httpx.stream("GET", f"{self._house.address}/v1/doorbell", headers=headers, timeout=3.0) as answer:
            if not answer.is_success:
                self._ending.wait(0.1)
                return
            self.dialled += 1
            for line in answer.iter_lines():
                if line.startswith("{"):
                    self.heard.append(json.loads(line)["generation"])
                if self._ending.is_set():
                    return
