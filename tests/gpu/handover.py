"""The step about changing a share: a shadow beside the old worker, the switch, and how long either was missing."""

from __future__ import annotations

import threading
import time

from agents.devices.base import WorkerReading
from tests.gpu.host import ask, ended, opened, ready, spec
from tests.gpu.rig import Rig
from tests.waiting import spend

CHANGES = ((30, 50), (50, 20))


def handover(rig: Rig) -> None:
    """Requests all the while: none may fail, and the longest silence is the gap."""
    with opened(rig) as host:
        current = ready(rig, host, spec(rig, "svc", "convnet", share=CHANGES[0][0], batch=4))
        client = _Client(current)
        for _, share in CHANGES:
            began_s = time.monotonic()
            shadow = ready(rig, host, spec(rig, "svc", "convnet", share=share, batch=4))
            rig.note(f"a shadow at {share} % is ready after", time.monotonic() - began_s, "s")
            client.worker = shadow
            spend(0.5)
            ended(rig, host, current)
            current = shadow
        client.close()
        rig.check("no request failed", client.failed == 0, float(client.failed), note=f"{client.answered} answered")
        rig.note("longest silence", 1000.0 * client.gap_s, "ms")


class _Client:
    """One request after the other to whoever is the worker now."""

    def __init__(self, worker: WorkerReading) -> None:
        self.worker = worker
        self.answered = self.failed = 0
        self.gap_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stop.is_set():
            try:
                ask(self.worker, "/infer")
                self.answered += 1
                now_s = time.monotonic()
                self.gap_s, last_s = max(self.gap_s, now_s - last_s), now_s
            except OSError:
                self.failed += 1
                spend(0.02)
