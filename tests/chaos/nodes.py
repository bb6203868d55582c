"""A node of agents' own code in a simulated history: the uplink that joins, fetches and sends, and the file of unsent
reports that outlives it, over calls of which the seed says whether they, or their answers, arrive.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import ssl
import tempfile
import threading
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
from agents.wire import NodeTarget
from tests.chaos.actors import Rememberer, Wish
from tests.chaos.turnstile import EPOCH
from tests.integration.api.world import World, join_message
from tests.integration.store.samples import device_report, report

NODE = "c"
REPORTS = "/v1/agent/reports"
FACTS = NodeFacts(
    node=NODE, servers=("http://simulated",), join_token="", rack="rack-1", failure_domain="zone-1", region="default",
    endpoint=None,
)  # fmt: skip


class PlainIdentity(Identity):
    """Of a node that speaks no TLS here: what each of its lives would read of this host's authorities costs as much as
    a tenth of a history.
    """

    _shared = functools.cache(ssl.create_default_context)

    def _made(self, *, bare: bool = False) -> ssl.SSLContext:
        return PlainIdentity._shared()


class Wire(SpreadConnection):
    """A connection to one of the API processes, on which a call may be lost, or its answer once it is given."""

    def __init__(self, node: RealNode) -> None:
        super().__init__(Servers(FACTS.servers, NODE))
        self._node = node
        self._world: World | None = None
        self._calls_left = 0
        self._arrives = True
        self.broke = False
        """Since it led here last."""

    def begin(self, world: World, calls_left: int, arrives: bool) -> None:
        """From now on it leads here; the last of so many calls is lost or, where it `arrives`, its answer."""
        self._world, self._calls_left, self._arrives, self.broke = world, calls_left, arrives, False

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> HttpAnswer:
        assert self._world is not None
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        self._calls_left -= 1
        self.broke = self.broke or self._calls_left == 0
        if self._calls_left == 0 and not self._arrives:
            raise UnreachableError("the call is lost")
        found = self._world.client.request(method, path, content=content, headers=sent)
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
            super().__init__(join_message(NODE, boot_id), facts, PlainIdentity(facts.trust, state), state, mailbox, log)
            self._connection = wire

    return WiredUplink()


def file_of(path: Path) -> unsent.ReportFile:
    """What its reports outlive it in; what is too old goes by the time of the history."""

    class TimedFile(unsent.ReportFile):
        def load(self, wall_s: float) -> list[unsent.UnsentReport]:
            return super().load(EPOCH.timestamp())

    return TimedFile(path / unsent.REPORTS_FILE, NODE, Log(NODE, io.StringIO()))


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
        self._observed_s = EPOCH.timestamp() - 240.0
        self._boots = 0
        self._made: set[tuple[str, int]] = set()
        self._void: set[tuple[str, int]] = set()
        """Acknowledged by what a restored backup undid."""
        self.acknowledged: list[tuple[str, int]] = []
        self._held = NodeTarget(node=NODE, generation=0, plan=None, devices=())
        """What it was told last: it holds it at once, and over its deaths."""
        self.applied: dict[tuple[str, int | None], int] = {}
        """The newest generation it said to hold, by life and epoch."""
        self._kept = 0
        self._is_kept = False
        """A backup knows this life, and no later one."""
        self._lives_on = False
        self._begin()

    def wish(self, stream: random.Random) -> Wish:
        for _ in range(stream.randint(0, 2)):
            self._cut(stream)
        # Death likes to come in the midst of something: while much is said and not all is answered, or between a backup
        # and its return. Then the host lives on: only an agent that goes on can be one that its server forgot.
        if stream.random() < (0.0 if self._lives_on else 0.5 if self._wire.broke or self._is_kept else 0.2):
            self._begin()
        calls_left, arrives = stream.choice((0, 0, 1, 2, 3)), stream.random() < 0.5
        return Wish(
            name=f"{self._boot_id} goes round with {len(self._mailbox.reports)} reports",
            work=lambda world: self._go_round(world, calls_left, arrives),
            heard=lambda _: None,
        )

    @property
    def boot_id(self) -> str:
        """Who speaks for the node."""
        return self._boot_id

    def pending(self) -> bool:
        return len(self._mailbox.reports) > 0 or not self._uplink.joined.is_set() or not self._heard

    def back_up(self) -> None:
        self._kept, self._is_kept = len(self.acknowledged), True

    def restore(self, stream: random.Random) -> None:
        self._is_kept, self._lives_on = False, stream.random() < 0.5
        self._void |= set(self.acknowledged[self._kept :])
        del self.acknowledged[self._kept :]
        self._heard = False

    def answered(self, body: list[dict[str, Any]], status: int) -> None:
        if status == 200:
            self.acknowledged += [(each["boot_id"], each["sequence"]) for each in body]
            self._heard = self._heard or any(each["boot_id"] == self._boot_id for each in body)

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
        self._is_kept = False
        self._heard = False
        """Whether something of this life was acknowledged, in this history of the database."""
        self._boot_id = f"boot-{NODE}-{self._boots}"
        self._mailbox = uplink.Mailbox(collect.ReportBuffer(self._boot_id, file_of(self._state.path)))
        self._mailbox.has_work = Once()
        self._wire = Wire(self)
        self._uplink = wired(self._facts, self._state, self._mailbox, self._boot_id, self._wire)

    def _cut(self, stream: random.Random) -> None:
        self._sequence += 1
        self._observed_s += stream.choice((1.0, 2.0, 5.0))
        held = self._held = self._mailbox.take_target() or self._held
        made = report(
            NODE, self._sequence, boot_id=self._boot_id, observed_at_s=self._observed_s, generation=held.generation,
            devices=[device_report(f"GPU-{NODE}-0")],
        )  # fmt: skip
        place = self._boot_id, held.epoch
        self.applied[place] = max(held.generation, self.applied.get(place, 0))
        self._made.add((self._boot_id, self._sequence))
        self._mailbox.post_report(replace(made, interval_s=1.0, cluster_id=held.cluster_id, epoch=held.epoch))

    def _go_round(self, world: World, calls_left: int, arrives: bool) -> None:
        self._wire.begin(world, calls_left, arrives)
        self._uplink.run(Once(), lambda: 0.0)
