"""A node of agents' own code in a simulated history: the uplink that joins, fetches and sends, and the file of unsent
reports that outlives it, over calls of which the seed says whether their answers arrive.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.config import NodeFacts
from agents.identity import Identity
from agents.log import Log
from agents.loop import collect, unsent, uplink
from agents.servers import Servers, SpreadConnection
from agents.state import StateDirectory
from agents.transport import HttpAnswer, UnreachableError
from tests.chaos.actors import Rememberer, Wish
from tests.integration.api.world import World, join_message
from tests.integration.store.samples import device_report, report

NODE = "c"
REPORTS = "/v1/agent/reports"
FACTS = NodeFacts(
    node=NODE, servers=("http://simulated",), join_token="", rack="rack-1", failure_domain="zone-1", region="default",
    endpoint=None,
)  # fmt: skip


class Wire(SpreadConnection):
    """A connection to one of the API processes, whose answers may be lost once they are given."""

    def __init__(self, node: RealNode) -> None:
        super().__init__(Servers(FACTS.servers, NODE))
        self._node = node
        self._world: World | None = None
        self._calls_left = 0

    def begin(self, world: World, calls_left: int) -> None:
        """From now on it leads here; the answer to the call after so many is lost."""
        self._world, self._calls_left = world, calls_left

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        assert self._world is not None
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        found = self._world.client.request(method, path, content=content, headers=sent)
        self._calls_left -= 1
        if self._calls_left == 0:
            raise UnreachableError("the answer is lost")
        if path == REPORTS and content is not None:
            self._node.answered(json.loads(content), found.status_code)
        names = {name.lower(): value for name, value in found.headers.items()}
        return HttpAnswer(found.status_code, names, found.content)


def wired(facts: NodeFacts, state: StateDirectory, mailbox: uplink.Mailbox, boot_id: str, wire: Wire) -> uplink.Uplink:
    """The uplink over such a connection; reached by its module's name, so that mutants take part."""

    class WiredUplink(uplink.Uplink):
        def __init__(self) -> None:
            log = Log(NODE, io.StringIO())
            super().__init__(join_message(NODE, boot_id), facts, Identity(facts.trust, state), state, mailbox, log)
            self._connection = wire

    return WiredUplink()


class Once(threading.Event):
    """Lets a loop go round once, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def is_set(self) -> bool:
        asked, self._asked = self._asked, True
        return asked

    def wait(self, timeout: float | None = None) -> bool:
        return True


class RealNode(Rememberer):
    """Cuts reports, goes round its loop, and dies and begins again with what its files hold."""

    def __init__(self, join_token: str) -> None:
        self._state = StateDirectory(Path(tempfile.mkdtemp(prefix="headroom-node-")))
        self._facts = replace(FACTS, join_token=join_token)
        self._observed_s = time.time() - 240.0
        self._boots = 0
        self._made: set[tuple[str, int]] = set()
        self._void: set[tuple[str, int]] = set()
        """Acknowledged by what a restored backup undid."""
        self.acknowledged: list[tuple[str, int]] = []
        self._kept = 0
        self._begin()

    def wish(self, stream: random.Random) -> Wish:
        for _ in range(stream.randint(0, 2)):
            self._cut(stream)
        if stream.random() < 0.2:
            self._begin()
        calls_left = stream.choice((0, 0, 0, 1, 2, 3))
        return Wish(
            name=f"{self._boot_id} goes round with {len(self._mailbox.reports)} reports",
            work=lambda world: self._go_round(world, calls_left),
            heard=lambda _: None,
        )

    def pending(self) -> bool:
        return len(self._mailbox.reports) > 0 or not self._uplink.joined.is_set()

    def back_up(self) -> None:
        self._kept = len(self.acknowledged)

    def restore(self, stream: random.Random) -> None:
        self._void |= set(self.acknowledged[self._kept :])
        del self.acknowledged[self._kept :]

    def answered(self, body: list[dict[str, Any]], status: int) -> None:
        if status == 200:
            self.acknowledged += [(each["boot_id"], each["sequence"]) for each in body]

    @property
    def owed(self) -> set[tuple[str, int]]:
        """What must be stored once it has no more to send: it gives nothing up, whatever it lived through."""
        assert not self._mailbox.reports.refused, "the control plane refused a report"
        assert not self._mailbox.reports.lost, "a report was given up"
        return self._made - self._void

    def close(self) -> None:
        shutil.rmtree(self._state.path)

    def _begin(self) -> None:
        """A new life after a death, with what the files hold."""
        self._boots += 1
        self._sequence = 0
        self._boot_id = f"boot-{NODE}-{self._boots}"
        file = unsent.ReportFile(self._state.path / unsent.REPORTS_FILE, NODE, Log(NODE, io.StringIO()))
        self._mailbox = uplink.Mailbox(collect.ReportBuffer(self._boot_id, file))
        self._mailbox.has_work = Once()
        self._wire = Wire(self)
        self._uplink = wired(self._facts, self._state, self._mailbox, self._boot_id, self._wire)

    def _cut(self, stream: random.Random) -> None:
        self._sequence += 1
        self._observed_s += stream.choice((1.0, 2.0, 5.0))
        made = report(
            NODE, self._sequence, boot_id=self._boot_id, observed_at_s=self._observed_s,
            devices=[device_report(f"GPU-{NODE}-0")],
        )  # fmt: skip
        self._made.add((self._boot_id, self._sequence))
        self._mailbox.post_report(replace(made, interval_s=1.0))

    def _go_round(self, world: World, calls_left: int) -> None:
        self._wire.begin(world, calls_left)
        self._uplink.run(Once(), lambda: 0.0)
