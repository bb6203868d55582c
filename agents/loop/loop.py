"""One agent at work: applies the target, cuts reports, and lets its other threads talk.

The accepted target outlives a restart and is enforced from the first moment on, whether or not anybody answers. When
nobody has answered for long, it holds what works and changes nothing until somebody does.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from agents.config import NodeFacts
from agents.devices.base import Devices
from agents.errors import AgentError, DeviceError, ForeignTargetError, StateFileError, TargetRefusedError
from agents.identity import Identity
from agents.log import Log
from agents.loop.apply import Applier
from agents.loop.collect import Collector, ReportBuffer, Sampler
from agents.loop.governing import NodeGoverning
from agents.loop.kept import KeptText
from agents.loop.told import AgentTold
from agents.loop.unsent import REPORTS_FILE, ReportFile
from agents.loop.uplink import Mailbox, Tails, Uplink, listen
from agents.profiling.desk import DeskParts, ProfilingDesk
from agents.profiling.loads import LoadMaker
from agents.profiling.points import Control
from agents.state import TARGET_FILE, StateDirectory
from agents.wire import OVERLAP, PROTOCOL_VERSION, Join, NodeTarget, Report, WireError, decode, encode, mirrored
from solvers.version import VERSION

REPORT_INTERVAL_S = 5.0
"""Until the control plane says otherwise."""
PASS_S = 0.2
"""Between two passes while something is under way."""
PASS_S_QUICK = 0.02
"""The same after a pass that did something: most of that reads back at once."""
PASS_S_SLOW = 1.0
"""The same after this many passes in which nothing could be done."""
PASSES_IDLE_MAX = 50
GOVERNOR_FILE = "governor.json"
GOVERNOR_KEPT_EVERY_S = 60.0
REPORTS, GOVERNOR, PROFILING = "reports", "governor", "profiling"
"""Who reads what devices did."""
PROFILING_ENDS_S = 30.0
"""How long an agent that ends waits for a profile run to clean up."""
FAREWELL_S = 2.0
"""How long an agent that ends waits for its last reports to be taken."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic and wall clock, seconds."""

    monotonic_s: Callable[[], float] = field(default=time.monotonic)
    wall_s: Callable[[], float] = field(default=time.time)


class Agent:
    def __init__(
        self, facts: NodeFacts, devices: Devices, state: StateDirectory, log: Log, clocks: Clocks | None = None
    ) -> None:
        self.loads: LoadMaker | None = None
        """Makes load for profile runs; without it this node carries out none."""
        self._facts = facts
        self._devices = devices
        self._state = state
        self._log = log
        self._target_file = KeptText(state, TARGET_FILE, log, "target")
        self._clocks = clocks or Clocks()
        self.boot_id = uuid.uuid4().hex
        reports = ReportFile(state.path / REPORTS_FILE, facts.node, log)
        self.mailbox = Mailbox(ReportBuffer(self.boot_id, reports))
        both = (self._clocks.monotonic_s, self._clocks.wall_s)
        self._samples = Sampler(devices, self._clocks.monotonic_s, (REPORTS, GOVERNOR, PROFILING))
        self._collector = Collector(facts.node, self.boot_id, partial(self._samples.take, REPORTS), both)
        self.applier = Applier(facts.node, devices, self._clocks.monotonic_s, random.Random())
        self.applier.route_grace_s = facts.route_grace_s
        self._governing = NodeGoverning(devices, self._clocks.monotonic_s) if facts.governed else None
        if self._governing is not None:
            self.applier.more_problems = self._governing.problems
            self.applier.wishes = self._governing.wishes
        join = mirrored(
            Join,
            facts,
            boot_id=self.boot_id,
            agent_version=VERSION,
            protocol_version=PROTOCOL_VERSION,
            devices=tuple(
                replace(each, capabilities={**(each.capabilities or {}), OVERLAP: ""}) for each in devices.inventory()
            ),
            csr=None,
        )
        self.uplink = Uplink(join, facts, Identity(facts.trust, state), state, self.mailbox, log)
        self.applier.reservations.when_back = self.mailbox.news.set
        self._reported: Report | None = None
        self._idle_passes = 0
        self._problems_logged: str | None = None
        self._refused: tuple[int, str] | None = None
        self._began_s = self._clocks.monotonic_s()
        self._governor_kept_s = self._began_s

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
                args=(self.uplink, self.mailbox, quiet, self._log),
                name="doorbell",
                daemon=True,
            ),
        ]
        connection = self.uplink.servers.connection()
        tails = Tails(self._devices, connection, lambda: self.uplink.token_for(self._cluster_id()), self._log)
        wanted = (quiet, self.mailbox.logs_wanted)
        threading.Thread(target=tails.run, args=wanted, name="logs", daemon=True).start()
        if self.loads is not None:
            desk = ProfilingDesk(self._desk_parts(self.loads))
            threads.append(threading.Thread(target=desk.run, args=(stop,), name="profiling", daemon=True))
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
        for thread in threads[2:]:
            # It has a worker to stop and a clock to give back.
            thread.join(PROFILING_ENDS_S)
        self._end(quiet, threads[0])

    def _desk_parts(self, loads: LoadMaker) -> DeskParts:
        return DeskParts(
            devices=self._devices,
            reservations=self.applier.reservations,
            occupied=self._occupied,
            samples=partial(self._samples.take, PROFILING),
            loads=loads,
            control=Control(self.uplink.servers.connection()),
            token=lambda: self.uplink.token_for(self._cluster_id()),
            folder=self._state.path,
            log=self._log,
            now_s=self._clocks.monotonic_s,
        )

    def _cluster_id(self) -> str | None:
        return None if self.applier.target is None else self.applier.target.cluster_id

    def _occupied(self, uuid: str) -> bool:
        target = self.applier.target
        return target is not None and any(device.uuid == uuid and device.replicas for device in target.devices)

    def turn(self) -> float:
        """Take over a target that came in, make a pass, send the receipt it calls for; seconds until the next turn."""
        target = self.mailbox.take_target()
        if target is not None:
            self._accept(target)
        self._watch_silence()
        self._watch_clock()
        try:
            self._govern()
            passed = self.applier.run_pass()
            receipt = self.applier.receipt(self.boot_id, self._collector.observed_at_s())
        except AgentError as error:
            self._log.state("devices", "unreadable", code=error.code, reason=str(error))
            return PASS_S_SLOW
        self._log.state("devices", "readable")
        self._idle_passes = 0 if passed.calls else self._idle_passes + 1
        if receipt is not None:
            self.mailbox.post_receipt(receipt)
            problems = "; ".join(receipt.problems) or None
            same = problems is not None and problems == self._problems_logged
            self._problems_logged = problems
            self._log.event(
                "target.read_back",
                generation=receipt.generation,
                outcome=receipt.outcome,
                problems="as before" if same else problems,
            )
        if not passed.settled and passed.calls:
            return PASS_S_QUICK
        if not passed.settled:
            return PASS_S if self._idle_passes < PASSES_IDLE_MAX else PASS_S_SLOW
        governed_s = self._governing.due_s() if self._governing is not None else math.inf
        return min(self._facts.pass_s_settled, governed_s)

    def health(self) -> dict[str, object]:
        """What the node's endpoint tells: since when nobody answered, and whether changes are frozen for that."""
        target = self.applier.target
        return {
            "alone_s": round(self._alone_s(), 1),
            "frozen": self.applier.frozen,
            "generation": None if target is None else target.generation,
            "generation_applied": self.applier.generation_applied,
        }

    def told(self) -> AgentTold:
        """What Prometheus may know of it."""
        reports = self.mailbox.reports
        return AgentTold(
            node=self._facts.node,
            version=VERSION,
            health=self.health(),
            waiting=len(reports),
            lost=reports.lost,
            refused=reports.refused,
            report=self._reported,
        )

    def _alone_s(self) -> float:
        """Seconds since the control plane answered, or since this agent began."""
        heard_s = self.uplink.heard_s
        return self._clocks.monotonic_s() - (self._began_s if heard_s is None else max(heard_s, self._began_s))

    def _watch_silence(self) -> None:
        frozen = self._alone_s() >= self._facts.alone_after_s
        if frozen != self.applier.frozen:
            self.applier.frozen = frozen
            self._log.event("changes.frozen" if frozen else "changes.thawed", alone_s=round(self._alone_s(), 1))

    def _watch_clock(self) -> None:
        """A clock that was ahead and is right again is followed back; what was refused meanwhile is told again."""
        if self.mailbox.from_future.is_set():
            self.mailbox.from_future.clear()
            if self._collector.set_back():
                self.applier.tell_again()
                self._log.event("clock.set_back")

    def _govern(self) -> None:
        """Move what the plan left to the governor, on what devices did since it looked last."""
        target = self.applier.target
        if self._governing is None or target is None:
            return
        if self._governing.due_s() <= 0.0:
            self._governing.observe(self._samples.take(GOVERNOR))
            counts = self._governing.take_counts()
            if set(counts) - {"good", "held", "not_applied"}:
                self._log.event("governor.decided", **counts)
        self.applier.govern(self._governing.overlay(target))
        if self._clocks.monotonic_s() - self._governor_kept_s >= GOVERNOR_KEPT_EVERY_S:
            self._keep_governor()

    def _keep_governor(self) -> None:
        self._governor_kept_s = self._clocks.monotonic_s()
        if self._governing is not None:
            try:
                self._state.write_json(GOVERNOR_FILE, self._governing.memory())
            except StateFileError as error:
                self._log.event("governor.not_kept", reason=str(error))

    def _resume(self) -> None:
        """Go on with the target of an earlier agent on this node; without one, undo what an earlier agent left."""
        try:
            plain = self._state.read_json(TARGET_FILE)
            if plain is not None:
                target = decode(NodeTarget, plain)
                self.applier.accept(target)
                self._log.event("target.resumed", generation=target.generation)
        except (StateFileError, WireError, TargetRefusedError) as error:
            self._log.event("target.unusable", reason=str(error))
        if self.applier.target is None and self._facts.restore_on_exit:
            self._restore()
        try:
            memory = self._state.read_json(GOVERNOR_FILE)
            if memory is not None and self._governing is not None:
                self._governing.recall(memory)
        except (StateFileError, ValueError) as error:
            self._log.event("governor.forgot", reason=str(error))

    def _accept(self, target: NodeTarget) -> None:
        try:
            changed = self.applier.accept(target)
        except TargetRefusedError as error:
            self._refuse(target, error)
            return
        if changed:
            self._refused = None
            self._target_file.keep(json.dumps(encode(target), separators=(",", ":")))
            self._log.event("target.accepted", generation=target.generation)

    def _refuse(self, target: NodeTarget, refusal: TargetRefusedError) -> None:
        """Say no once for each target, however often it is fetched; once for all from where none is for this node."""
        reason = str(refusal)
        refused = (0 if isinstance(refusal, ForeignTargetError) else target.generation, reason)
        if self._refused == refused:
            return
        self._refused = refused
        self._log.event("target.refused", generation=target.generation, reason=reason)
        observed_at_s = self._collector.observed_at_s()
        try:
            self.mailbox.post_receipt(self.applier.refusal(self.boot_id, observed_at_s, target, reason))
        except DeviceError as error:
            self._log.event("receipt.unreadable", code=error.code, reason=str(error))

    def _report(self) -> None:
        self._target_file.again()
        try:
            report = self._collector.cut(self.applier.generation_applied)
        except DeviceError as error:
            self._log.event("report.unreadable", code=error.code, reason=str(error))
            return
        held = self.applier.target
        if held is not None:
            report = replace(report, cluster_id=held.cluster_id, epoch=held.epoch)
        self._reported = report
        self.mailbox.post_report(report)

    def _report_interval_s(self) -> float:
        return self.uplink.report_interval_s or REPORT_INTERVAL_S

    def _end(self, quiet: threading.Event, uplink_thread: threading.Thread) -> None:
        self._report()
        self._keep_governor()
        if self._facts.restore_on_exit:
            self._restore()
        deadline_s = self._clocks.monotonic_s() + FAREWELL_S
        while self.uplink.joined.is_set() and len(self.mailbox.reports) and self._clocks.monotonic_s() < deadline_s:
            uplink_thread.join(0.02)
        quiet.set()
        self.mailbox.has_work.set()
        self.mailbox.logs_wanted.set()
        self._devices.close()

    def _restore(self) -> None:
        try:
            self._devices.restore()
        except DeviceError as error:
            self._log.event("restore.failed", code=error.code, reason=str(error))
