"""Tells webhooks what happened: signed, once for every event as far as the network lets know, the oldest first.

The leader looks for alarms and puts events in line; each delivery is claimed under a row lock before it is sent, so
that one process tries it, and comes again if that process dies. A receiver that does not answer holds up only what is
meant for itself. Addresses are judged after names are resolved, and the connection goes to the address that was judged.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import urlsplit

from app.logs import EventLog
from app.services.planning.planning import Leader
from app.store import webhooks
from app.store.engine import Database
from app.store.webhooks import ClaimedDelivery, DeliveryOutcome, DeliveryState
from app.workers.pace import RETURN_S
from solvers.cycle.ports import Clock
from solvers.domain.webhook import Webhook
from solvers.errors import HeadroomError, InputError, TransientError

PUBLIC = "public"
SENDERS = 64
"""One for each webhook at a time; where more are due, whoever answered last goes before those that did not."""
ANSWER_S = 10.0
"""From looking up a name to the end of the answer."""
HOLD_S = 30.0
"""How long a claim keeps others away."""
PAUSE_S_MIN, PAUSE_S_MAX = 5.0, 3600.0
ATTEMPTS_MAX, ATTEMPTS_MAX_REFUSED = 12, 3
"""Some three hours of silence or failures; but who says that it will never take this is not asked for ever."""
SECRET_BYTES_MIN = 16
LOST_S = 60.0
"""A node that was silent for so long is told of."""
_SITE_LOCAL = ipaddress.IPv6Network("fec0::/10")
"""As private as what came after it, though Python takes it for global."""
# Link-local and what clouds tell of a machine, multicast, and IPv6 in which any IPv4 address can hide.
_NEVER = (
    *ipaddress.IPv6Network("::/96").address_exclude(ipaddress.IPv6Network("::1/128")),
    *map(ipaddress.ip_network, (
        "0.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "224.0.0.0/4",
        "255.255.255.255/32", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "ff00::/8", "::ffff:0:0:0/96",
        "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32",
    )),
)  # fmt: skip
_log = EventLog("headroom.webhooks")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class UntoldError(Exception):
    """Why nothing was sent."""


class WebhookNetworks:
    """Where webhooks may lead: networks, and `public` for every address that is routed in the internet."""

    def __init__(self, given: str) -> None:
        """Raises InputError."""
        words = [word.strip() for word in given.split(",") if word.strip()]
        self._is_public = PUBLIC in words
        try:
            self._networks = tuple(ipaddress.ip_network(word) for word in words if word != PUBLIC)
        except ValueError as error:
            raise InputError(f"HEADROOM_WEBHOOK_NETWORKS: {error}") from None

    def allows(self, text: str) -> bool:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in _NEVER):
            return False
        if any(address in network for network in self._networks):
            return True
        return self._is_public and address.is_global and address not in _SITE_LOCAL

    def resolved(self, host: str, port: int) -> str:
        """An address of a host; all of them must be allowed. Raises UntoldError."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # Of Unicode: a label is empty or too long.
            said = (error.strerror if isinstance(error, OSError) else None) or error
            raise UntoldError(f"{host} cannot be resolved: {said}") from None
        addresses = [str(each[4][0]) for each in found]
        for address in addresses:
            if not self.allows(address):
                raise UntoldError(f"{host} leads to {address}, which HEADROOM_WEBHOOK_NETWORKS does not allow")
        return addresses[0]


class SigningSecrets:
    """Where secrets lie: files of one folder, variables whose names say that they are such."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    def of(self, webhook: Webhook) -> bytes:
        """Raises UntoldError, which names the reference and never its value."""
        if webhook.secret_environment is not None:
            found, where = self._environment.get(webhook.secret_environment, "").encode(), webhook.secret_environment
        else:
            where = f"the file {webhook.secret_file}"
            found = self._read(str(webhook.secret_file), where)
        if len(found) < SECRET_BYTES_MIN:
            raise UntoldError(f"the secret in {where} is missing or shorter than {SECRET_BYTES_MIN} bytes")
        return found

    def _read(self, name: str, where: str) -> bytes:
        if not self._folder:
            raise UntoldError("no folder of secrets is open: HEADROOM_WEBHOOK_SECRETS_DIR")
        try:
            descriptor = os.open(Path(self._folder) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise UntoldError(f"{where} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(4096).strip()


def body_of(claimed: ClaimedDelivery) -> bytes:
    told = {
        "id": claimed.event_id,
        "at": claimed.at.isoformat(),
        "event": claimed.name,
        "actor": claimed.actor,
        "subject": claimed.subject,
        "project": claimed.project,
        "facts": claimed.facts,
    }
    return json.dumps(told, separators=(",", ":")).encode()


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`: HMAC-SHA256 over the seconds, a dot and the body."""
    return f"t={at_s},v1={hmac.new(secret, f'{at_s}.'.encode() + body, hashlib.sha256).hexdigest()}"


def post(url: str, body: bytes, headers: Mapping[str, str], networks: WebhookNetworks) -> int:
    """The status of the answer, whose body is not read; redirects are not followed. Raises UntoldError, OSError and
    http.client.HTTPException.
    """
    end_s = time.monotonic() + ANSWER_S
    parts = urlsplit(url)
    host, is_tls = str(parts.hostname), parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    address, late = _looked_up(networks, host, port, end_s), threading.Event()
    opened = socket.create_connection((address, port), timeout=_left_s(end_s))
    # A trickle would keep each single wait short: the whole has one end. TLS takes the socket over, which is none then,
    # so the connection is cut by another.
    line = opened.dup()
    end = threading.Timer(_left_s(end_s), _cut, [line, late])
    end.start()
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        connection.sock = ssl.create_default_context().wrap_socket(opened, server_hostname=host) if is_tls else opened
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        connection.request("POST", path, body, dict(headers))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise _unanswered() from None
        raise
    finally:
        end.cancel()
        connection.close()
        opened.close()
        line.close()


def _looked_up(networks: WebhookNetworks, host: str, port: int, end_s: float) -> str:
    """As `networks.resolved`; nothing cuts a look-up, so one that takes too long is left to end by itself."""
    found: Future[str] = Future()

    def look() -> None:
        try:
            found.set_result(networks.resolved(host, port))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            found.set_exception(error)

    threading.Thread(target=look, name=f"webhook name {host}", daemon=True).start()
    try:
        return found.result(_left_s(end_s))
    except TimeoutError:
        raise _unanswered() from None


def _left_s(end_s: float) -> float:
    """Raises UntoldError where nothing is."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise _unanswered()
    return left_s


def _unanswered() -> UntoldError:
    return UntoldError(f"no answer within {ANSWER_S:g} s")


def _cut(line: socket.socket, late: threading.Event) -> None:
    late.set()
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class WebhookSender:
    """Alarms, the line, and the threads that send."""

    def __init__(self, database: Database, clock: Clock, networks: WebhookNetworks, secrets: SigningSecrets) -> None:
        self._database = database
        self._clock = clock
        self._networks = networks
        self._secrets = secrets
        self._term: int | None = None
        """The fencing token under which every look found the database, and since when."""
        self._looks_since_ms = 0.0
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def look(self, leader: Leader) -> None:
        """See what happened, and have it told; returns at once, whoever answers or not. Raises TransientError."""
        now_ms = self._clock.elapsed_ms()
        if self._term != leader.fencing:
            self._term, self._looks_since_ms = leader.fencing, now_ms
        returning = now_ms < self._looks_since_ms + 1000.0 * RETURN_S
        try:
            with self._database.transaction() as session:
                webhooks.raise_alarms(session, leader.holder, LOST_S, returning=returning)
        except TransientError:
            self._term = None
            raise
        with self._database.transaction() as session:
            webhooks.enqueue(session)
        for webhook in self._database.read(webhooks.due):
            with self._lock:
                if webhook in self._busy or len(self._busy) >= SENDERS or self._ending.is_set():
                    continue
                # It ends under the same lock; and who cannot be started is not busy.
                threading.Thread(target=self._tell, args=(webhook,), name=f"webhook {webhook}", daemon=True).start()
                self._busy.add(webhook)

    def close(self) -> None:
        """End; what was not settled comes again. Twice is once."""
        self._ending.set()

    def _tell(self, webhook: str) -> None:
        """Send what waits for a webhook until nothing is due."""
        try:
            while not self._ending.is_set() and self._tell_next(webhook):
                pass
        except HeadroomError as error:
            _log.warning("webhook.delayed", error, webhook=webhook)
        except Exception as error:  # noqa: BLE001 - one webhook's surprise must not end the thread of the others
            _log.error("webhook.failed", error, webhook=webhook)
        finally:
            with self._lock:
                self._busy.discard(webhook)

    def _tell_next(self, webhook: str) -> bool:
        with self._database.transaction() as session:
            claimed = webhooks.claim(session, webhook, HOLD_S)
        if claimed is None:
            return False
        came = self._sent(claimed)
        with self._database.transaction() as session:
            webhooks.settle(session, claimed, came)
        if came.state is not DeliveryState.DELIVERED:
            _log.warning(
                "webhook.untold",
                webhook=webhook,
                delivery=claimed.id,
                attempts=claimed.attempts,
                state=came.state.value,
                reason=came.error,
            )
        return came.state is DeliveryState.DELIVERED

    def _sent(self, claimed: ClaimedDelivery) -> DeliveryOutcome:
        body = body_of(claimed)
        try:
            at_s = int(self._clock.now_s())
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "headroom",
                "Headroom-Event": claimed.name,
                "Headroom-Delivery": str(claimed.id),
                "Headroom-Signature": signature(self._secrets.of(claimed.spec), at_s, body),
            }
            status = post(claimed.spec.url, body, headers, self._networks)
        except UntoldError as refusal:
            return _again(claimed, None, str(refusal))
        except (OSError, http.client.HTTPException) as error:
            return _again(claimed, None, f"{type(error).__name__}: {error}"[:200])
        if 200 <= status < 300:
            return DeliveryOutcome(state=DeliveryState.DELIVERED, status=status)
        return _again(claimed, status, f"answered {status}")


def _again(claimed: ClaimedDelivery, status: int | None, error: str) -> DeliveryOutcome:
    """Another time, after a pause that grows; or never."""
    is_refused = status is not None and 400 <= status < 500 and status not in (408, 409, 425, 429)
    if claimed.attempts >= (ATTEMPTS_MAX_REFUSED if is_refused else ATTEMPTS_MAX):
        return DeliveryOutcome(state=DeliveryState.GIVEN_UP, status=status, error=error)
    pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** (claimed.attempts - 1)) * random.uniform(0.8, 1.2)
    return DeliveryOutcome(state=DeliveryState.WAITING, status=status, error=error, pause_s=pause_s)
