"""One agent at work: applies the target, cuts reports, and lets its other threads talk.

Owns the applying thread's rhythm and what outlives a restart: the accepted target, which is enforced from the first
moment on, whether or not anybody answers. It refuses to talk to the network itself.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from agents.apply import Applier
from agents.collect import Collector
from agents.devices.base import Devices
from agents.doorbell import listen
from agents.errors import DeviceError, StateFileError, TargetRefusedError
from agents.log import Log
from agents.state import TARGET_FILE, StateDirectory
from agents.uplink import Identity, Mailbox, Uplink
from agents.wire import PROTOCOL_VERSION, Join, NodeTarget, WireError, decode_node_target, encode

VERSION = "0.1.0"
REPORT_INTERVAL_S = 5.0
"""Until the control plane says otherwise."""
PASS_S = 0.2
"""Between two passes while something is under way."""
PASS_S_SLOW = 1.0
"""The same after this many passes in which nothing could be done."""
PASSES_IDLE_MAX = 50
FAREWELL_S = 2.0
"""How long an agent that ends waits for its last reports to be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself when it joins."""

    node: str
    server: str
    join_token: str
    rack: str
    failure_domain: str
    region: str
    endpoint: str | None
    restore_on_exit: bool = False


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic and wall clock, seconds."""

    monotonic_s: Callable[[], float] = field(default=time.monotonic)
    wall_s: Callable[[], float] = field(default=time.time)


class Agent:
    """Wires the parts of one node together."""

    def __init__(
        self, facts: NodeFacts, devices: Devices, state: StateDirectory, log: Log, clocks: Clocks | None = None
    ) -> None:
        self._facts = facts
        self._devices = devices
        self._state = state
        self._log = log
        self._clocks = clocks or Clocks()
        self.boot_id = uuid.uuid4().hex
        self.mailbox = Mailbox()
        both = (self._clocks.monotonic_s, self._clocks.wall_s)
        self._collector = Collector(facts.node, self.boot_id, devices, both)
        self.applier = Applier(facts.node, devices, self._clocks.monotonic_s, random.Random())
        join = Join(
            node=facts.node,
            boot_id=self.boot_id,
            agent_version=VERSION,
            protocol_version=PROTOCOL_VERSION,
            rack=facts.rack,
            failure_domain=facts.failure_domain,
            region=facts.region,
            endpoint=facts.endpoint,
            devices=devices.inventory(),
        )
        identity = Identity(join=join, join_token=facts.join_token)
        self.uplink = Uplink(identity, facts.server, state, self.mailbox, log)
        self._idle_passes = 0
        self._refused: tuple[int, str] | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until stopped, then say goodbye. Workers go on."""
        self._resume()
        quiet = threading.Event()
        threads = [
            threading.Thread(
                target=self.uplink.run, args=(quiet, self._clocks.monotonic_s), name="uplink", daemon=True
            ),
            threading.Thread(
                target=listen,
                args=(self._facts.server, self.uplink, self.mailbox, quiet, self._log),
                name="doorbell",
                daemon=True,
            ),
        ]
        for thread in threads:
            thread.start()
        report_at_s = self._clocks.monotonic_s() + self._report_interval_s()
        while not stop.is_set():
            pause_s = self.turn()
            now_s, interval_s = self._clocks.monotonic_s(), self._report_interval_s()
            if now_s >= report_at_s:
                self._report()
                report_at_s = max(now_s, report_at_s + interval_s)
            # The interval is the control plane's to say, and it may have said so meanwhile.
            report_at_s = min(report_at_s, now_s + interval_s)
            self.mailbox.news.wait(max(0.0, min(pause_s, report_at_s - now_s)))
        self._end(quiet, threads[0])

    def turn(self) -> float:
        """Take over a target that came in, make a pass, send the receipt it calls for; seconds until the next turn."""
        target = self.mailbox.take_target()
        if target is not None:
            self._accept(target)
        try:
            passed = self.applier.run_pass()
            receipt = self.applier.receipt(self.boot_id, self._collector.observed_at_s())
        except DeviceError as error:
            self._log.state("devices", "unreadable", code=error.code, reason=str(error))
            return PASS_S_SLOW
        self._log.state("devices", "readable")
        self._idle_passes = 0 if passed.calls else self._idle_passes + 1
        if receipt is not None:
            self.mailbox.post_receipt(receipt)
            self._log.event(
                "target.read_back",
                generation=receipt.generation,
                outcome=receipt.outcome,
                problems="; ".join(receipt.problems) or None,
            )
        if passed.settled:
            return float("inf")
        return PASS_S if self._idle_passes < PASSES_IDLE_MAX else PASS_S_SLOW

    def _resume(self) -> None:
        """Go on with the target of an earlier agent on this node."""
        try:
            plain = self._state.read_json(TARGET_FILE)
            if plain is not None:
                target = decode_node_target(plain)
                self.applier.accept(target)
                self._log.event("target.resumed", generation=target.generation)
        except (StateFileError, WireError, TargetRefusedError) as error:
            self._log.event("target.unusable", reason=str(error))

    def _accept(self, target: NodeTarget) -> None:
        try:
            changed = self.applier.accept(target)
        except TargetRefusedError as error:
            self._refuse(target, str(error))
            return
        if changed:
            self._refused = None
            try:
                self._state.write_text(TARGET_FILE, json.dumps(encode(target), separators=(",", ":")))
            except StateFileError as error:
                self._log.event("target.not_kept", reason=str(error))
            self._log.event("target.accepted", generation=target.generation)

    def _refuse(self, target: NodeTarget, reason: str) -> None:
        """Say no once for each target, however often it is fetched."""
        if self._refused == (target.generation, reason):
            return
        self._refused = (target.generation, reason)
        self._log.event("target.refused", generation=target.generation, reason=reason)
        observed_at_s = self._collector.observed_at_s()
        try:
            self.mailbox.post_receipt(self.applier.refusal(self.boot_id, observed_at_s, target.generation, reason))
        except DeviceError as error:
            self._log.event("receipt.unreadable", code=error.code, reason=str(error))

    def _report(self) -> None:
        try:
            report = self._collector.cut(self.applier.generation_applied)
        except DeviceError as error:
            self._log.event("report.unreadable", code=error.code, reason=str(error))
            return
        self.mailbox.post_report(report)

    def _report_interval_s(self) -> float:
        return self.uplink.report_interval_s or REPORT_INTERVAL_S

    def _end(self, quiet: threading.Event, uplink_thread: threading.Thread) -> None:
        self._report()
        if self._facts.restore_on_exit:
            try:
                self._devices.restore()
            except DeviceError as error:
                self._log.event("restore.failed", code=error.code, reason=str(error))
        deadline_s = self._clocks.monotonic_s() + FAREWELL_S
        while self.uplink.joined.is_set() and len(self.mailbox.reports) and self._clocks.monotonic_s() < deadline_s:
            uplink_thread.join(0.02)
        quiet.set()
        self.mailbox.has_work.set()
        self._devices.close()
