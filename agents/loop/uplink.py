"""The way to the control plane and back: joining, sending receipts and reports, fetching the target, and the doorbell.

When to call, what a failure means (retry, drop, join anew) and the node token. Nothing here touches a device, so a slow
or absent control plane delays nothing on this node. Reports are sent oldest first, exactly once as far as answers tell:
one that may have arrived is sent again under the same sequence, and the receiver knows it.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from agents.config import NodeFacts
from agents.devices.base import Devices
from agents.errors import AgentError, StateFileError
from agents.identity import Identity, IdentityError
from agents.log import Log
from agents.loop.collect import ReportBuffer
from agents.loop.kept import KeptText
from agents.servers import Servers, SpreadConnection
from agents.state import TOKEN_FILE, StateDirectory
from agents.transport import HttpAnswer, StatusError, UnreachableError
from agents.wire import (
    AUTHORITY,
    HISTORY,
    READS,
    Join,
    LogPiece,
    LogRequest,
    NodeReceipt,
    NodeTarget,
    Report,
    WireError,
    decode,
    decode_items,
    encode,
)

POLL_S = 30.0
"""The target is fetched this often even when no bell rings."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.5, 30.0
REPORTS_PER_SEND = 50
RECEIPTS_KEPT_MAX = 32
_NOT_KNOWN = frozenset({401, 403})


class Mailbox:
    """What the applying thread and the uplink's thread hand each other. Thread-safe."""

    def __init__(self, reports: ReportBuffer) -> None:
        self.reports = reports
        self.has_work = threading.Event()
        """For the uplink: something to send or to fetch."""
        self.news = threading.Event()
        """For the applying thread: a target to take over, or an interval to keep to."""
        self.from_future = threading.Event()
        """For the applying thread: the control plane refuses times that this node tells, because they are to come."""
        self.logs_wanted = threading.Event()
        """For who hands over logs: somebody reads."""
        self._receipts: deque[NodeReceipt] = deque(maxlen=RECEIPTS_KEPT_MAX)
        self._target: NodeTarget | None = None
        self._rung = 0
        self._lock = threading.Lock()

    def post_report(self, report: Report) -> None:
        self.reports.add(report)
        self.has_work.set()

    def post_receipt(self, receipt: NodeReceipt) -> None:
        with self._lock:
            self._receipts.append(receipt)
        self.has_work.set()

    def next_receipt(self) -> NodeReceipt | None:
        with self._lock:
            return self._receipts[0] if self._receipts else None

    def drop_receipt(self, receipt: NodeReceipt) -> None:
        with self._lock:
            if self._receipts and self._receipts[0] is receipt:
                self._receipts.popleft()

    def ring(self) -> None:
        with self._lock:
            self._rung += 1
        self.has_work.set()

    def rung(self) -> int:
        """How often the bell has rung."""
        with self._lock:
            return self._rung

    def put_target(self, target: NodeTarget) -> None:
        """Hand over a fetched target; a newer one replaces one that was not taken yet."""
        with self._lock:
            self._target = target
        self.news.set()

    def take_target(self) -> NodeTarget | None:
        with self._lock:
            found, self._target = self._target, None
            self.news.clear()
            return found


class _LaterError(Exception):
    """Try again later; where the control plane said when, after so long."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class _UnwelcomeError(_LaterError):
    """The control plane answers, and does not want what this node says."""


class Uplink:
    """Talks to the control plane. `run` belongs in a thread of its own."""

    def __init__(
        self, join: Join, facts: NodeFacts, identity: Identity, state: StateDirectory, mailbox: Mailbox, log: Log
    ) -> None:
        self.joined = threading.Event()
        self.report_interval_s: float | None = None
        self.heard_s: float | None = None
        """When the control plane answered last (monotonic)."""
        self._join_message, self._join_token = join, facts.join_token
        self._identity = identity
        self.servers = Servers(facts.servers, facts.node, tls=identity.context)
        self._connection = self.servers.connection()
        self._served_by = ""
        self._token_file = KeptText(state, TOKEN_FILE, log, "token")
        self._mailbox = mailbox
        self._log = log
        self._jitter = random.Random()
        self._node_token = (state.read_text(TOKEN_FILE) or "").strip()
        self._fetched = 0
        """How often the bell had rung when the target was last fetched."""
        self._cluster_id: str | None = None
        self._epoch: int | None = None
        """As told at joining."""
        self._tag: str | None = None
        self._tells_history = True
        """Reports do, until a server knows no such fields."""
        self._backoff_s = 0.0

    def token_for(self, cluster_id: str | None) -> str:
        """The node's own token, where it has joined the cluster of that name (whose target it holds); else empty: what
        another one orders is not carried out either.
        """
        foreign = None not in (cluster_id, self._cluster_id) and cluster_id != self._cluster_id
        return "" if foreign or not self.joined.is_set() else self._node_token

    @property
    def token(self) -> str:
        """The node's own token; empty before the first join."""
        return self._node_token

    def run(self, stop: threading.Event, now_s: Callable[[], float]) -> None:
        fetch_at_s = 0.0
        while not stop.is_set():
            self._mailbox.has_work.clear()
            wait_s = max(0.0, fetch_at_s - now_s())
            try:
                if not self.joined.is_set():
                    self._join()
                if self._mailbox.rung() != self._fetched or now_s() >= fetch_at_s:
                    self._fetch()
                    fetch_at_s = now_s() + POLL_S * self._jitter.uniform(0.8, 1.2)
                    wait_s = max(0.0, fetch_at_s - now_s())
                self._token_file.again()
                if self._identity.is_due():
                    self._renew()
                # After the target: reports may be turned away for long.
                self.send_all()
                self._backoff_s = 0.0
                self.heard_s = now_s()
                self._log.state("control-plane", "reached")
                if self._served_by != self._connection.url:
                    self._served_by = self._connection.url
                    self._log.event("server.chosen", server=self._served_by)
            except (UnreachableError, IdentityError, StateFileError, _LaterError) as error:
                state = "refuses" if isinstance(error, _UnwelcomeError) else "away"
                self._log.state("control-plane", state, reason=str(error))
                self._doubt(error)
                self._backoff_s = min(BACKOFF_S_MAX, max(BACKOFF_S_MIN, 2.0 * self._backoff_s))
                pause_s = self._backoff_s * self._jitter.uniform(0.5, 1.0)
                if isinstance(error, _LaterError) and error.after_s is not None:
                    # It has too much to do, but is there.
                    pause_s, self.heard_s = error.after_s * self._jitter.uniform(0.5, 1.5), now_s()
                stop.wait(pause_s)
                continue
            self._mailbox.has_work.wait(wait_s)
        self._connection.close()

    def send_all(self) -> None:
        """Send every receipt and report that waits. Raises UnreachableError or _LaterError when it must go on later."""
        while (receipt := self._mailbox.next_receipt()) is not None:
            answer = self._call("POST", "/v1/agent/receipts", encode(receipt))
            if not answer.ok:
                self._note_time(answer)
                self._log.event("receipt.refused", generation=receipt.generation, reason=answer.reason())
            self._mailbox.drop_receipt(receipt)
        count = REPORTS_PER_SEND
        while reports := self._mailbox.reports.oldest(count):
            texts = (report.text if self._tells_history else report.plain_text for report in reports)
            body = b"[" + b",".join(texts) + b"]"
            answer = self._call("POST", "/v1/agent/reports", body, {"Content-Type": "application/json"})
            if answer.ok:
                self._mailbox.reports.settle(reports)
                count = REPORTS_PER_SEND
            elif b'"history-foreign"' in answer.body:
                # It may be the wrong one, or a backup that nobody has given an epoch of its own yet.
                self.joined.clear()
                raise _UnwelcomeError(answer.reason(), POLL_S)
            elif self._tells_history and b'"unknown-field"' in answer.body:
                self._tells_history = False
            elif len(reports) > 1:
                # One bad report must not cost its neighbours: halve until it stands alone.
                count = len(reports) // 2
            else:
                self._mailbox.reports.settle(reports, refused=True)
                self._note_time(answer)
                self._log.event(
                    "report.refused",
                    sequence=reports[0].sequence,
                    reason=answer.reason(),
                    refused_total=self._mailbox.reports.refused,
                )

    def _note_time(self, refusal: HttpAnswer) -> None:
        if b'"time-in-future"' in refusal.body:
            self._mailbox.from_future.set()

    def _doubt(self, error: Exception) -> None:
        """Where a server hangs up on the certificate alone, join again without it: it is over or revoked, or another
        authority's.
        """
        hung_up = isinstance(error, UnreachableError) and not error.is_silence
        refused = hung_up and self._identity.is_refused(self._connection.url)
        if refused:
            self._log.event("certificate.refused", server=self._connection.url)
            self.joined.clear()
        self._identity.set_aside(refused)

    def _renew(self) -> None:
        """Have the next key signed. Raises UnreachableError."""
        path, csr = f"/v1/agent/nodes/{self._join_message.node}/certificates", None
        try:
            csr = self._identity.request(self._join_message.node)
            answer = self._connection.call("POST", path, {"csr": csr})
            told = answer.json() if answer.ok else None
            if isinstance(told, dict) and self._identity.keep(told):
                self._log.event("certificate.renewed", certificate_s=told.get("certificate_s"))
                return
            reason = answer.reason()
        except (IdentityError, StateFileError) as error:
            reason = str(error)
        self._identity.later()
        self._log.event("certificate.not_renewed", reason=reason)

    def _join(self) -> None:
        """Join with the node's own token, else with the join token."""
        reasons = []
        self._identity.learn(self.servers.chosen())
        for token in (self._node_token, self._join_token):
            if not token:
                continue
            self._connection.token = token
            message = self._join_message
            if token == self._join_token:
                message = replace(message, csr=self._identity.request(message.node))
            answer = self._connection.call("POST", "/v1/agent/join", encode(message))
            if answer.ok:
                self._enter(answer.json())
                return
            if answer.later:
                raise _LaterError(answer.reason(), answer.after_s)
            reasons.append(answer.reason())
            if answer.status not in _NOT_KNOWN:
                break
        if self._identity.has_ended():
            reasons.append("this node's certificate has ended: a join token lets it in again")
        raise _UnwelcomeError("; ".join(reasons) or "no token to join with")

    def _enter(self, joined: object) -> None:
        if not isinstance(joined, dict):
            raise _LaterError("the answer to joining is not an object")
        self._identity.keep(joined)
        token, interval_s = joined.get("token"), joined.get("report_interval_s")
        if isinstance(token, str) and token and token != self._node_token:
            self._node_token = token
            self._token_file.keep(token + "\n")
        if isinstance(interval_s, int | float) and interval_s > 0.0:
            self.report_interval_s = float(interval_s)
        self._connection.token = self._node_token
        self._tag, self._cluster_id, self._epoch = None, joined.get("cluster_id"), joined.get("epoch")
        dropped = self._mailbox.reports.joined(joined.get("cluster_id"))
        if dropped:
            self._log.event("reports.foreign", reports=dropped)
        self._tells_history = True
        self.joined.set()
        self._mailbox.news.set()
        self._log.event("node.joined", boot_id=self._join_message.boot_id)

    def _fetch(self) -> None:
        """Hand over the target. Raises _LaterError when another epoch has begun: that server may have forgotten this
        boot, and must hear of it before anything else.
        """
        rung, epoch = self._mailbox.rung(), None
        headers = {READS: HISTORY} if self._tag is None else {READS: HISTORY, "If-None-Match": self._tag}
        answer = self._call("GET", f"/v1/agent/nodes/{self._join_message.node}/target", None, headers)
        if answer.status == 200:
            try:
                target = decode(NodeTarget, answer.json())
                epoch = target.epoch
                self._mailbox.put_target(target)
            except WireError as error:
                self._log.event("target.unreadable", reason=str(error))
            self._tag = answer.headers.get("etag")
        elif answer.status not in (204, 304, 404):
            self._log.event("target.unavailable", reason=answer.reason())
        self._identity.hear(answer.headers.get(AUTHORITY.lower()))
        self._fetched = rung
        if epoch is not None and self._epoch not in (None, epoch):
            self.joined.clear()
            raise _LaterError(f"epoch {epoch} has begun: this node has to join again")

    def _call(self, method: str, path: str, body: object, headers: dict[str, str] | None = None) -> HttpAnswer:
        """One call as this node. Raises _LaterError for answers that say nothing about the message itself."""
        answer = self._connection.call(method, path, body, headers)
        if answer.status in _NOT_KNOWN:
            self.joined.clear()
            raise _UnwelcomeError(f"this node is not known: {answer.reason()}")
        if answer.later:
            raise _LaterError(answer.reason(), answer.after_s)
        return answer


# --- Listens to the doorbell: one open stream that only says "generation N exists"
#
# It is never needed: without it, targets are polled. Which generation it is, is the target's to say: a number may come
# again after the control plane's database was restored.


DOORBELL = "/v1/doorbell"
SILENCE_S_MAX = 90.0
"""The server says something at least every twenty seconds or so; longer silence means that nobody is there."""


def listen(uplink: Uplink, mailbox: Mailbox, stop: threading.Event, log: Log) -> None:
    """Ring the mailbox for everything heard, until stopped."""
    connection = uplink.servers.connection()
    jitter = random.Random()
    backoff_s = BACKOFF_S_MIN
    while not stop.is_set():
        if not uplink.joined.wait(1.0):
            continue
        connection.token = uplink.token
        if _follow(connection, mailbox, stop, log):
            backoff_s = BACKOFF_S_MIN
        stop.wait(backoff_s * jitter.uniform(0.5, 1.0))
        backoff_s = min(BACKOFF_S_MAX, 2.0 * backoff_s)


def _follow(connection: SpreadConnection, mailbox: Mailbox, stop: threading.Event, log: Log) -> bool:
    """One stream from its opening to its end; whether the server said anything."""
    said = False
    try:
        for line in connection.lines(DOORBELL, SILENCE_S_MAX):
            said = True
            # Comments only say that somebody is there.
            if line.startswith(b"{"):
                mailbox.ring()
            if b'"logs"' in line:
                mailbox.logs_wanted.set()
            log.state("doorbell", "heard")
            if stop.is_set():
                break
    except (UnreachableError, StatusError) as error:
        log.state("doorbell", "silent", reason=str(error))
    return said


# --- Hands what workers write to those who read it: asked for through the doorbell, and only while somebody reads
#
# What could not be handed over comes again with the next piece. Nothing is kept here but places in files.


LOG_REQUESTS = "/v1/agent/log-requests"
LOOK_S = 1.0
"""Between two looks while somebody reads."""
REQUESTS_MAX = 64


class Tails:
    """`run` belongs in a thread of its own."""

    def __init__(self, devices: Devices, connection: SpreadConnection, token: Callable[[], str], log: Log) -> None:
        self._devices = devices
        self._connection = connection
        self._token = token
        self._log = log
        self._places: dict[int, Mapping[str, int]] = {}
        """How far each worker was read, for everybody who reads."""
        self._owed = False
        """Somebody may wait who was told nothing yet: no bell rings for them again."""

    def run(self, stop: threading.Event, wanted: threading.Event) -> None:
        while not stop.is_set():
            wanted.wait(LOOK_S if self._places or self._owed else None)
            wanted.clear()
            try:
                self.look()
                self._log.state("logs", "handed")
            except (UnreachableError, WireError, AgentError) as error:
                self._places, self._owed = {}, True
                self._log.state("logs", "kept", reason=str(error))
        self._connection.close()

    def look(self) -> None:
        """Tell everybody who reads what came. Raises UnreachableError, WireError."""
        self._connection.token = self._token()
        answer = self._connection.call("GET", LOG_REQUESTS)
        asked = decode_items(LogRequest, answer.json())[:REQUESTS_MAX] if answer.ok else ()
        reached = {each.request: self._tell(each) for each in asked}
        self._places = {request: places for request, places in reached.items() if places is not None}
        self._owed = not answer.ok or len(self._places) < len(asked)

    def _tell(self, asked: LogRequest) -> Mapping[str, int] | None:
        """How far somebody was told; None: not at all yet."""
        before = self._places.get(asked.request)
        read = self._devices.read_log(asked.replica, asked.lines, before)
        if before is not None and not read.lines:
            return read.places
        piece = LogPiece(lines=read.lines, problem=read.problem)
        answer = self._connection.call("POST", f"{LOG_REQUESTS}/{asked.request}", encode(piece))
        return read.places if answer.ok else before
