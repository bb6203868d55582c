"""Who this node is, and whom it believes, over TLS: the authorities it trusts, its key and its certificate.

The key is made here and never leaves this host; the control plane signs it when the node joins and again before the
certificate ends. Nothing is believed blindly: the first trust is a file or a fingerprint that whoever starts the agent
gives, or what this host trusts anyway. Keys and requests are made by the `openssl` program.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agents.config import Trust
from agents.errors import AgentError, ConfigError
from agents.state import StateDirectory
from agents.transport import HttpConnection, UnreachableError

IDENTITY_FILE = "identity.pem"
"""Key and certificate, replaced together."""
NEXT_KEY_FILE = "next-key.pem"
"""A key whose certificate has not come yet; it stays until it has, so that a lost answer can be asked for again."""
TRUST_FILE = "authorities.pem"
TERM_FILE = "certificate.json"
AUTHORITIES = "/v1/authorities"
RETRY_S = 60.0
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_REQUEST_CONFIG = "[req]\ndistinguished_name=name\n[name]\n"
_PROGRAM_S = 30.0


class IdentityError(AgentError):
    code = "identity"


class Identity:
    """Thread-safe."""

    def __init__(self, trust: Trust, state: StateDirectory, now_s: Callable[[], float] = time.time) -> None:
        """Raises ConfigError for files that cannot be used."""
        self._trust = trust
        self._state = state
        self._now_s = now_s
        self._lock = threading.RLock()
        self._set_aside = False
        self._signs = False
        self._again_at_s = 0.0
        self._told = ""
        """The authority that signs, as the control plane told last."""
        self._marks = self._read_marks()
        self._context = self._made()

    # --- For connections

    def context(self) -> ssl.SSLContext:
        """What connections are to use now."""
        with self._lock:
            if self._marks != self._read_marks():
                self._reload()
            return self._context

    def _reload(self) -> None:
        """Take files as they are now. Those of somebody else may be replaced one after the other: the old pair is shown
        until both are there.
        """
        marks = self._read_marks()
        try:
            self._context = self._made()
        except ConfigError:
            if not marks:
                raise
        else:
            self._marks = marks

    def _read_marks(self) -> tuple[object, ...]:
        """What changes with files that are not replaced here."""
        return tuple(_mark(file) for file in (self._trust.tls_cert, self._trust.tls_key) if file is not None)

    # --- What this node has

    @property
    def has_certificate(self) -> bool:
        return self._trust.tls_cert is not None or (self._state.path / IDENTITY_FILE).exists()

    def has_ended(self) -> bool:
        """The certificate is over."""
        term = self._term()
        return self._trust.tls_cert is None and term is not None and self._now_s() >= term[1]

    def is_due(self) -> bool:
        """It is time for another certificate: there is none, two thirds of its life are over, or another authority
        signs now.
        """
        if not self._signs or self._trust.tls_cert is not None or self._now_s() < self._again_at_s:
            return False
        term = self._term()
        changed = bool(self._told) and self._told != _digest(_first(self._state.read_text(TRUST_FILE) or ""))
        return term is None or changed or self._now_s() >= term[0]

    def later(self) -> None:
        """It did not work; not again at once."""
        term = self._term()
        left_s = RETRY_S if term is None else (term[1] - self._now_s()) / 10.0
        self._again_at_s = self._now_s() + min(RETRY_S, max(1.0, left_s))

    def hear(self, authority: str | None) -> None:
        """Which authority signs now, as an answer told by its fingerprint."""
        if authority:
            self._told = authority

    def set_aside(self, aside: bool) -> None:
        """Show the certificate no more, or again."""
        with self._lock:
            if aside != self._set_aside:
                self._set_aside = aside
                self._reload()

    def is_refused(self, url: str) -> bool:
        """Whether a server that hung up answers who shows no certificate, and not who shows this one."""
        if not url.startswith("https:") or not self.has_certificate or self._set_aside:
            return False
        return self._is_answered(url, bare=True) and (self.has_ended() or not self._is_answered(url, bare=False))

    def _is_answered(self, url: str, *, bare: bool) -> bool:
        try:
            HttpConnection(url, tls=lambda: self._made(bare=True) if bare else self.context()).call("GET", AUTHORITIES)
        except UnreachableError:
            return False
        return True

    # --- Learning whom to believe, and asking to be signed

    def learn(self, url: str) -> None:
        """Ask a server which authorities there are and whether it signs. Where all that is known is a fingerprint, what
        it names is kept. Raises UnreachableError, IdentityError.
        """
        if not url.startswith("https:"):
            self._signs = False
            return
        if self._trust.ca_sha256 is not None and self._state.read_text(TRUST_FILE) is None:
            self._state.write_text(TRUST_FILE, fetched(url, self._trust.ca_sha256))
            with self._lock:
                self._reload()
        answer = HttpConnection(url, tls=lambda: self._made(bare=True)).call("GET", AUTHORITIES)
        told = answer.json() if answer.ok else {}
        self._signs = isinstance(told, dict) and told.get("signs") is True

    def request(self, node: str) -> str | None:
        """A certificate request for the node's next key; None where nobody would sign it. Raises IdentityError."""
        if not self._signs or self._trust.tls_cert is not None:
            return None
        if self._state.read_text(NEXT_KEY_FILE) is None:
            arguments = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            self._state.write_text(NEXT_KEY_FILE, _openssl(*arguments))
        key = str(self._state.path / NEXT_KEY_FILE)
        asking = ("req", "-new", "-key", key, "-subj", f"/CN={node}", "-config", "/dev/stdin")
        return _openssl(*asking, told=_REQUEST_CONFIG)

    def keep(self, answer: dict[str, object]) -> bool:
        """Take over what a control plane signed; False when its answer holds no certificate."""
        certificate, authorities, life_s = (
            answer.get(name) for name in ("certificate", "authorities", "certificate_s")
        )
        if not isinstance(certificate, str) or not isinstance(authorities, str) or not isinstance(life_s, int | float):
            return False
        key = self._state.read_text(NEXT_KEY_FILE)
        if key is None:
            return False
        now_s = self._now_s()
        # In this order, so that whoever dies in between has another one signed.
        self._state.remove(TERM_FILE)
        self._state.write_text(IDENTITY_FILE, key + certificate)
        self._state.write_json(TERM_FILE, [now_s + life_s * 2.0 / 3.0, now_s + life_s])
        self._state.write_text(TRUST_FILE, authorities)
        self._state.remove(NEXT_KEY_FILE)
        with self._lock:
            self._set_aside = False
            self._reload()
        return True

    def _made(self, *, bare: bool = False) -> ssl.SSLContext:
        context = believing(self._trust, self._state.read_text(TRUST_FILE) or "")
        try:
            if self._trust.tls_cert is not None:
                if not bare:
                    context.load_cert_chain(self._trust.tls_cert, self._trust.tls_key)
            elif not bare and not self._set_aside and self.has_certificate and not self.has_ended():
                context.load_cert_chain(self._state.path / IDENTITY_FILE)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificates for TLS cannot be used: {error}") from None
        return context

    def _term(self) -> tuple[float, float] | None:
        """When to renew, and when it ends."""
        found = self._state.read_json(TERM_FILE)
        is_pair = isinstance(found, list) and len(found) == 2 and all(isinstance(item, int | float) for item in found)
        return (float(found[0]), float(found[1])) if isinstance(found, list) and is_pair else None


def believing(trust: Trust, told: str) -> ssl.SSLContext:
    """What believes servers that were signed by those whom the starter of the agent names, or this host trusts, or a
    control plane told of. Raises ConfigError.
    """
    named = trust.ca is not None or trust.ca_sha256 is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if named else ssl.create_default_context()
    try:
        if trust.ca is not None:
            context.load_verify_locations(trust.ca)
        if told.strip():
            context.load_verify_locations(cadata=told)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the authorities for TLS cannot be used: {error}") from None
    return context


def fetched(url: str, fingerprint: str) -> str:
    """The authority of this fingerprint, as a server tells it that nobody believes yet. Raises UnreachableError,
    IdentityError.
    """
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    # Nothing secret is said here, and of what is heard one certificate alone counts: the one that was named.
    told = HttpConnection(url, tls=lambda: blind).call("GET", AUTHORITIES).json()
    listed = str(told.get("authorities")) if isinstance(told, dict) else ""
    for found in _PEM.findall(listed):
        if hmac.compare_digest(_digest(found), fingerprint):
            return str(found) + "\n"
    raise IdentityError("the server's authority is not the one that --ca-sha256 names")


def _openssl(*arguments: str, told: str = "") -> str:
    program = shutil.which("openssl")
    if program is None:
        raise IdentityError("the program openssl is needed to make this node's key, and is not there")
    try:
        done = subprocess.run(
            [program, *arguments], input=told, capture_output=True, text=True, timeout=_PROGRAM_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise IdentityError(f"openssl {arguments[0]} failed: {error}") from None
    return done.stdout


def _first(bundle: str) -> str:
    found = _PEM.search(bundle)
    return found.group() if found is not None else ""


def _digest(certificate: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest() if certificate else ""


def _mark(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
