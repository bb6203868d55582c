"""The control plane's own certificate authority: one file with its key and what is trusted beside it, and the
certificates it signs for nodes and for servers.

The file is replaced whole and read again when it changed, so that several processes may share it. After a rotation the
authority before stays trusted, and has signed the new one, so that whoever knows the old one alone believes the new.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.errors import FieldsError
from app.logs import EventLog
from app.settings import Settings
from solvers.errors import HeadroomError, InputError, StateError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

FILE = "authority.pem"
AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
SKEW = timedelta(minutes=5)
"""Clocks of those who check a certificate may be so far behind."""
SCHEME = "headroom"
SERVER = "headroom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A certificate for a key that somebody else holds."""

    certificate: str
    key: str
    """SHA-256 of the public key."""
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """What the certificate says that a peer has proved to hold the key of."""

    key: str
    names: frozenset[str]
    address: str | None
    """Which node of which cluster it is for, where this control plane or one like it signed it."""
    expires_at_s: float


def authority_file(settings: Settings) -> Path:
    return Path(settings.ca) if settings.ca else settings.home / FILE


class Authority:
    """One authority in its file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._mark: tuple[int, int, int] | None = None
        self._held: _Keyring | None = None

    @property
    def bundle(self) -> str:
        """All certificates that are trusted, the one that signs first."""
        held = self._read()
        return "".join(_pem(item) for item in (held.certificate, *held.earlier))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate that signs, in hex."""
        return _fingerprint(self._read().certificate)

    def sign_node(self, csr: str, node: str, cluster_id: str, life_s: float) -> Signed:
        """A certificate for the key in a request; what else stands there is not looked at. Raises FieldsError."""
        from cryptography import x509

        key = _key_of_request(csr)
        names = [x509.UniformResourceIdentifier(node_address(cluster_id, node)), x509.DNSName(node)]
        held = self._read()
        expires_at = min(datetime.now(UTC) + timedelta(seconds=life_s), held.certificate.not_valid_after_utc)
        made = _leaf(held, key, _name(node, cluster_id), names, expires_at)
        return Signed(certificate=_pem(made), key=key_digest(key), expires_at=expires_at)

    def server_pair(self, names: Sequence[str]) -> tuple[str, datetime]:
        """A key and a certificate for a server of these names, with what leads to earlier authorities, as one text;
        and when to ask for the next.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        held = self._read()
        now = datetime.now(UTC)
        expires_at = min(now + timedelta(days=SERVER_DAYS), held.certificate.not_valid_after_utc)
        listed: list[x509.GeneralName] = []
        for name in names:
            try:
                listed.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                listed.append(x509.DNSName(name))
        made = _leaf(held, key.public_key(), _name(SERVER), listed, expires_at)
        text = _key_pem(key) + "".join(_pem(item) for item in (made, *held.crossed))
        return text, now + (expires_at - now) * 2 / 3

    # --- Its life

    def create(self) -> bool:
        """Make it unless it is there; whether it was made."""
        if self.file.exists():
            return False
        held = _made()
        return self._write(_Keyring(key=held.key, certificate=held.certificate, earlier=(), crossed=()), fresh=True)

    def rotate(self) -> None:
        """Sign with a new key from now on. The certificates that stand are trusted until `retire`. Raises StateError
        while an earlier authority is trusted still.
        """
        old = self._read()
        if old.earlier:
            raise StateError("an earlier authority is trusted still; end that first with `headroom ca retire`")
        new = _made()
        crossed = _crossed(old, new)
        self._write(_Keyring(key=new.key, certificate=new.certificate, earlier=(old.certificate,), crossed=(crossed,)))

    def retire(self) -> int:
        """Trust the newest alone from now on; how many others were trusted."""
        held = self._read()
        if held.earlier:
            self._write(_Keyring(key=held.key, certificate=held.certificate, earlier=(), crossed=()))
        return len(held.earlier)

    def _read(self) -> _Keyring:
        try:
            found = self.file.stat()
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            with self._lock:
                if self._held is None or mark != self._mark:
                    self._held, self._mark = _parsed(self.file.read_bytes()), mark
                return self._held
        except (OSError, ValueError, TypeError) as error:
            if self._held is not None:
                # What was read last counts until the file can be read again.
                return self._held
            if isinstance(error, OSError):
                raise InputError(f"cannot read the authority {self.file}: {error.strerror}") from None
            raise InputError(f"{self.file} is not an authority: {error}") from None

    def _write(self, held: _Keyring, *, fresh: bool = False) -> bool:
        text = _key_pem(held.key) + "".join(_pem(i) for i in (held.certificate, *held.earlier, *held.crossed))
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=self.file.parent, prefix=".authority")
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if not fresh:
                Path(scratch).replace(self.file)
                return True
            # Of several processes that start at once one makes it.
            with suppress(FileExistsError):
                os.link(scratch, self.file)
                return True
            return False
        finally:
            Path(scratch).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keyring:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    earlier: tuple[x509.Certificate, ...]
    crossed: tuple[x509.Certificate, ...]
    """The newest as the earlier ones signed it."""


def node_address(cluster_id: str, node: str) -> str:
    """How a certificate names a node."""
    return f"{SCHEME}://{cluster_id}/nodes/{quote(node, safe='')}"


def presented(certificate: bytes) -> Presented:
    """What a peer's certificate says (DER). The chain is the handshake's to check."""
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    names: frozenset[str] = frozenset()
    address = None
    with suppress(x509.ExtensionNotFound):
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset(listed.get_values_for_type(x509.DNSName))
        told = listed.get_values_for_type(x509.UniformResourceIdentifier)
        address = next((str(item) for item in told if item.startswith(f"{SCHEME}://")), None)
    expires_at_s = found.not_valid_after_utc.timestamp()
    return Presented(key=key_digest(found.public_key()), names=names, address=address, expires_at_s=expires_at_s)


def request_digest(csr: str) -> str:
    """The key that a certificate request is for, as `key_digest` says it. Raises FieldsError."""
    return key_digest(_key_of_request(csr))


def key_digest(key: Any) -> str:
    """SHA-256 of a public key, in hex."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    content: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()


def own_names(given: str, host: str) -> tuple[str, ...]:
    """The names of a server: those given, separated by commas, else what this host is called and listens on."""
    listed = [name.strip() for name in given.split(",") if name.strip()]
    if not listed:
        listed = [socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1"]
        listed += [] if host in ("0.0.0.0", "::") else [host]
    return tuple(dict.fromkeys(listed))


def _made() -> _Keyring:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own tells it from the one before.
    name = _name(f"Headroom authority {key_digest(key.public_key())[:16]}")
    now = datetime.now(UTC)
    builder = _builder(name, name, key.public_key(), now + timedelta(days=AUTHORITY_DAYS))
    certificate = _sign(_as_authority(builder, key.public_key(), 1), key, key.public_key())
    return _Keyring(key=key, certificate=certificate, earlier=(), crossed=())


def _crossed(old: _Keyring, new: _Keyring) -> x509.Certificate:
    key, subject = new.key.public_key(), new.certificate.subject
    builder = _builder(subject, old.certificate.subject, key, old.certificate.not_valid_after_utc)
    return _sign(_as_authority(builder, key, 0), old.key, old.key.public_key())


def _leaf(
    held: _Keyring, key: Any, subject: x509.Name, names: Sequence[x509.GeneralName], expires_at: datetime
) -> x509.Certificate:
    """A certificate for a server, or for a node: neither can be used as the other."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    is_server = subject == _name(SERVER)
    use = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(subject, held.certificate.subject, key, expires_at)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    return _sign(builder, held.key, held.key.public_key())


def _name(common: str, organisation: str | None = None) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation is not None:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, until: datetime) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(datetime.now(UTC) - SKEW).not_valid_after(until)


def _as_authority(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePublicKey, depth: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    uses = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=depth), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _sign(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, public: ec.EllipticCurvePublicKey
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    return builder.sign(key, hashes.SHA256())


def _key_of_request(csr: str) -> Any:
    """The public key in a request that its holder signed. Raises FieldsError."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FieldsError.of("/csr", f"not a certificate request: {error}") from None
    if not is_signed:
        raise FieldsError.of("/csr", "the request is not signed by its own key")
    strong = isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) or (
        isinstance(key, rsa.RSAPublicKey) and 2048 <= key.key_size <= 8192
    )
    if not strong:
        raise FieldsError.of("/csr", "use an elliptic curve, Ed25519, or RSA of 2,048 to 8,192 bits")
    return key


def _parsed(content: bytes) -> _Keyring:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(content, None)
    first, *others = x509.load_pem_x509_certificates(content)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or first.public_key() != key.public_key():
        raise ValueError("its first certificate is not its key's")
    crossed = tuple(item for item in others if item.subject == first.subject)
    earlier = tuple(item for item in others if item.subject != first.subject)
    return _Keyring(key=key, certificate=first, earlier=earlier, crossed=crossed)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    content: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return content.decode()


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    content: bytes = certificate.public_bytes(Encoding.PEM)
    return content.decode()


def _fingerprint(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.hashes import SHA256

    content: bytes = certificate.fingerprint(SHA256())
    return content.hex()


# --- A server's side of TLS


LOOK_EVERY_S = 1.0


class Contexts:
    """The server's side of TLS, as the files say now. Thread-safe."""

    def __init__(self, settings: Settings, authority: Authority | None, log: EventLog) -> None:
        """Raises InputError for files that cannot be used."""
        self._settings = settings
        self._authority = authority
        self._log = log
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._renew_at: datetime | None = None
        self._mark = self._marks()
        self._context = self._made()

    def current(self) -> ssl.SSLContext:
        """What the next connection gets. Files that changed and cannot be used change nothing."""
        with self._lock:
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = time.monotonic()
                self._look()
            return self._context

    def _look(self) -> None:
        mark = self._marks()
        if mark == self._mark and (self._renew_at is None or datetime.now(UTC) < self._renew_at):
            return
        self._mark = mark
        try:
            self._context = self._made()
            self._log.info("tls.changed")
        except HeadroomError as error:
            self._log.error("tls.unchanged", error)

    def _files(self) -> list[Path]:
        named = [self._settings.tls_cert, self._settings.tls_key, self._settings.nodes_ca]
        return [Path(name) for name in named if name] + ([self._authority.file] if self._authority else [])

    def _marks(self) -> list[tuple[int, int]]:
        marks = []
        for file in self._files():
            with suppress(OSError):
                found = file.stat()
                marks.append((found.st_ino, found.st_mtime_ns))
        return marks

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Who comes back shows its certificate again, so that what is trusted is asked each time.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        try:
            self._show(context)
            trusted = [] if self._authority is None else [self._authority.bundle]
            if self._settings.nodes_ca:
                trusted.append(Path(self._settings.nodes_ca).read_text(encoding="ascii"))
            if trusted:
                context.load_verify_locations(cadata="\n".join(trusted))
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            raise InputError(f"TLS is not possible: {error}") from None
        return context

    def _show(self, context: ssl.SSLContext) -> None:
        if self._settings.tls_cert:
            context.load_cert_chain(self._settings.tls_cert, self._settings.tls_key or None, password=_no_password)
            return
        assert self._authority is not None
        names = own_names(self._settings.tls_names, self._settings.host)
        pair, self._renew_at = self._authority.server_pair(names)
        # The library reads keys from files alone.
        with tempfile.NamedTemporaryFile("w", dir=self._authority_folder(), encoding="ascii") as file:
            file.write(pair)
            file.flush()
            context.load_cert_chain(file.name)

    def _authority_folder(self) -> Path | None:
        return self._settings.home if self._settings.home.is_dir() else None


def _no_password() -> str:
    raise InputError("the key is encrypted; a server cannot be asked for its password")
