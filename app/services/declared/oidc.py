"""Signing in at the console by an identity provider (OpenID Connect, authorization code with PKCE): where a browser is
sent, what it comes back with, and what the provider says of who that is.

Nothing is believed but what the provider's keys signed, for this client, for this attempt, now. Who is known gets a
token of their own that nobody is told, so that it can be listed and revoked like any other, and ends with the sign-in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx

from app.errors import FieldsError, ForbiddenError, UnauthenticatedError
from app.services.declared.sign_ins import SIGN_IN_S, WHO_MAY, SignedIn, SignIns
from app.services.declared.tokens import Deed, TokenRequest, Tokens
from app.settings import Settings
from app.store import events, sign_ins
from app.store.engine import Database
from app.store.sign_ins import OidcAttempt
from app.store.tokens import Role
from headroom_client.way import way
from solvers.errors import InputError, TransientError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

BACK = "/session/oidc/back"
ATTEMPT_S, ATTEMPTS_MAX = 600.0, 10_000
"""Anybody may begin one: of more the oldest give way."""
SKEW_S = 60.0
CALL_S, ANSWER_BYTES_MAX = 5.0, 512 * 1024
AWAY_AGAIN_S = 5.0
"""A provider that could not be asked what it is, is asked again after this time: all wait for one who asks."""
KEYS_AGAIN_S = 30.0
"""A key that is not known is looked for this often at most: anybody may name one."""
KEY_BITS_MIN = 2048
REFUSED, REFUSED_EVERY_S = "oidc.refused", 60.0
RANKS = {Role.ADMIN: 3, Role.OPERATOR: 2, Role.VIEWER: 1}
Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcGrant:
    """Whoever has this value in the claim may do so much, everywhere or in one project."""

    value: str
    role: Role
    project: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcOrder:
    issuer: str
    client: str
    secret: str
    claim: str
    grants: tuple[OidcGrant, ...]
    redirect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcBegun:
    """Where a browser goes, and what it keeps meanwhile."""

    address: str
    binder: str


class OidcRefusedError(UnauthenticatedError):
    """What the provider, or whoever says so, answered is not believed. `reason` is for the audit."""

    code = "oidc-refused"

    def __init__(self, reason: str) -> None:
        super().__init__(f"signing in did not work: {reason}; try again")
        self.reason = reason


def oidc_order(settings: Settings) -> OidcOrder | None:
    """What the configuration says; None: nothing. Raises InputError where it says half."""
    if not settings.oidc_issuer:
        return None
    if not (settings.oidc_client and settings.oidc_roles and settings.public_url):
        raise InputError(
            "HEADROOM_OIDC_ISSUER also needs HEADROOM_OIDC_CLIENT, HEADROOM_OIDC_ROLES, HEADROOM_PUBLIC_URL"
        )
    for name, address in (("OIDC_ISSUER", settings.oidc_issuer), ("PUBLIC_URL", settings.public_url)):
        if not _is_private(address):
            raise InputError(f"HEADROOM_{name} must be an https:// address (http:// on this host alone)")
    try:
        secret = (
            Path(settings.oidc_secret_file).read_text(encoding="utf-8").strip() if settings.oidc_secret_file else ""
        )
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"HEADROOM_OIDC_SECRET_FILE cannot be read: {error}") from None
    return OidcOrder(
        issuer=settings.oidc_issuer,
        client=settings.oidc_client,
        secret=secret,
        claim=settings.oidc_claim,
        grants=tuple(_grant(part.strip()) for part in settings.oidc_roles.split(",")),
        redirect=settings.public_url.rstrip("/") + BACK,
    )


def _is_private(address: str) -> bool:
    """Whether nobody on the way can read along."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1"))


def _grant(text: str) -> OidcGrant:
    value, equals, granted = text.rpartition("=")
    role, _, project = granted.partition("@")
    if not (value and equals) or role not in [known.value for known in WHO_MAY]:
        raise InputError(f"HEADROOM_OIDC_ROLES: {text!r} is not VALUE=ROLE or VALUE=ROLE@PROJECT with a person's role")
    return OidcGrant(value=value, role=Role(role), project=project or None)


class OidcSignIns:
    def __init__(self, database: Database, order: OidcOrder, now_s: Callable[[], float]) -> None:
        self._database = database
        self._order = order
        self._now_s = now_s
        self._provider = OidcProvider(order)

    @property
    def over_tls(self) -> bool:
        return self._order.redirect.startswith("https://")

    def begin(self, back: str) -> OidcBegun:
        """Send a browser to the provider; `back` is where it wanted to go. Raises TransientError."""
        state, binder, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        challenge = _base64url(hashlib.sha256(verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self._order.client,
            "redirect_uri": self._order.redirect,
            "scope": "openid profile email",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._provider.endpoint("authorization_endpoint")
        with self._database.transaction() as session:
            attempt = OidcAttempt(nonce=nonce, verifier=verifier, back=back)
            sign_ins.keep_attempt(session, _key(state, binder), attempt, ATTEMPT_S, ATTEMPTS_MAX)
        return OidcBegun(address=f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}", binder=binder)

    def take(self, state: str, binder: str) -> OidcAttempt:
        """The attempt that a browser comes back from; it is over then. Raises OidcRefusedError."""
        with self._database.transaction() as session:
            found = sign_ins.take_attempt(session, _key(state, binder))
        if found is None:
            raise self._refused("this browser began no such attempt, or it is over")
        return found

    def finish(self, attempt: OidcAttempt, code: str, browser: str, request_id: str | None) -> SignedIn:
        """Sign in whom the provider names. Raises OidcRefusedError, ForbiddenError, TransientError."""
        try:
            told = self._provider.redeem(code, attempt.verifier)
            claims = verified(told, self._order, attempt.nonce, self._now_s(), self._provider.key)
        except OidcRefusedError as error:
            raise self._refused(error.reason) from None
        grant = granted(claims, self._order)
        if grant is None:
            self._note("no-role", str(claims["sub"]))
            raise ForbiddenError(f"nothing in your {self._order.claim} lets you look here; ask who runs this")
        who = next(str(claims[name]) for name in ("email", "preferred_username", "sub") if claims.get(name))
        name = "".join(filter(str.isprintable, f"{who} by sign-in"))[:60]
        wanted = TokenRequest(name=name, role=grant.role, project=grant.project, ttl_s=SIGN_IN_S)
        deed = Deed(actor=f"oidc:{claims['sub']}"[:200], request_id=request_id)
        # Nobody is told its secret: it stands in the list, and ends what it let in when it is revoked.
        try:
            token = Tokens(self._database).issue(wanted, deed)
        except FieldsError as error:
            self._note("no-project", error.message)
            raise ForbiddenError(
                f"{error.message}, though your {self._order.claim} grants it; ask who runs this"
            ) from None
        return SignIns(self._database).begin_with(token.id, browser, request_id)

    def _refused(self, reason: str) -> OidcRefusedError:
        self._note("refused", reason)
        return OidcRefusedError(reason)

    def _note(self, code: str, what: str) -> None:
        facts = {"code": code, "what": what[:200], "issuer": self._order.issuer}
        event = events.Event(name=REFUSED, actor="console", subject="oidc", facts=facts)
        with self._database.transaction() as session:
            events.append_rarely(session, event, REFUSED_EVERY_S)


def _key(state: str, binder: str) -> str:
    return f"{state}.{binder}"


def granted(claims: Claims, order: OidcOrder) -> OidcGrant | None:
    """The widest of what somebody's values grant."""
    found = claims.get(order.claim)
    values = found if isinstance(found, list) else [found]
    fits = [grant for grant in order.grants if grant.value in values]
    return max(fits, key=lambda grant: (grant.project is None, RANKS[grant.role]), default=None)


# --- The provider: what it says of itself, its keys, and tokens for codes


class OidcProvider:
    """Thread-safe."""

    def __init__(self, order: OidcOrder) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._said: Claims | None = None
        self._away: TransientError | None = None
        self._away_s = float("-inf")
        self._keys: Claims = {}
        self._keys_s = float("-inf")

    def endpoint(self, name: str) -> str:
        with self._lock:
            address = self._discovered().get(name)
        if not isinstance(address, str) or not _is_private(address):
            raise TransientError(f"the identity provider names no {name} that can be used")
        return address

    def _discovered(self) -> Claims:
        if self._said is not None:
            return self._said
        if self._away is not None and time.monotonic() < self._away_s + AWAY_AGAIN_S:
            raise TransientError(self._away.message)
        try:
            said = _asked("GET", f"{self._order.issuer.rstrip('/')}/.well-known/openid-configuration")
            if said.get("issuer") != self._order.issuer:
                raise TransientError("the identity provider says another issuer than HEADROOM_OIDC_ISSUER")
        except TransientError as error:
            self._away, self._away_s = error, time.monotonic()
            raise
        self._said = said
        return said

    def redeem(self, code: str, verifier: str) -> str:
        """The id token for a code. Raises OidcRefusedError, TransientError."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._order.redirect,
            "client_id": self._order.client,
            "code_verifier": verifier,
        }
        address, basic = self.endpoint("token_endpoint"), None
        if self._order.secret and self._takes_secrets_in_forms():
            form["client_secret"] = self._order.secret
        elif self._order.secret:
            basic = (quote_plus(self._order.client), quote_plus(self._order.secret))
        told = _asked("POST", address, form, basic).get("id_token")
        if not isinstance(told, str):
            raise OidcRefusedError("the provider gave no id token for the code")
        return told

    def _takes_secrets_in_forms(self) -> bool:
        """Every provider takes them as Basic (RFC 6749, 2.3.1), those that say so in the form as well."""
        with self._lock:
            methods = self._discovered().get("token_endpoint_auth_methods_supported")
        return isinstance(methods, list) and "client_secret_post" in methods

    def key(self, name: str | None) -> Claims:
        """A public key by its `kid`. Raises OidcRefusedError where there is none."""
        address = self.endpoint("jwks_uri")
        with self._lock:
            found = self._named(name)
            # Where keys have no names, another one in its place shows by nothing else.
            if (found is None or name is None) and time.monotonic() >= self._keys_s + KEYS_AGAIN_S:
                self._keys, self._keys_s = _asked("GET", address), time.monotonic()
                found = self._named(name)
        if found is None:
            raise OidcRefusedError("it is signed with a key that the provider does not have")
        return found

    def _named(self, name: str | None) -> Claims | None:
        listed = self._keys.get("keys")
        keys = [key for key in listed if isinstance(key, dict)] if isinstance(listed, list) else []
        signing = [key for key in keys if key.get("use", "sig") == "sig" and name in (None, key.get("kid"))]
        return signing[0] if len(signing) == 1 else None


def _asked(
    method: str, address: str, form: Mapping[str, str] | None = None, basic: tuple[str, str] | None = None
) -> Claims:
    """An answer in JSON, bounded. Raises OidcRefusedError where a form is refused, TransientError for all else."""
    try:
        taken = way(httpx.URL(address))
        headers = {"Accept": "application/json"}
        with httpx.stream(method, address, data=form, auth=basic, timeout=CALL_S, headers=headers, **taken) as answer:
            found = _object(_bounded(answer.iter_bytes()))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise TransientError(f"the identity provider cannot be asked: {type(error).__name__}") from None
    if form is not None and 400 <= answer.status_code < 500:
        if found is not None and found.get("error") == "invalid_client":
            raise OidcRefusedError("the provider does not take this server's secret")
        raise OidcRefusedError(f"the provider does not take the code: it answers {answer.status_code}")
    if answer.status_code != 200 or found is None:
        no_json = "" if found is not None else " without JSON"
        raise TransientError(f"the identity provider answers {answer.status_code}{no_json}")
    return found


def _object(content: bytes) -> Claims | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _bounded(parts: Iterable[bytes]) -> bytes:
    body, end_s = b"", time.monotonic() + CALL_S
    for part in parts:
        body += part
        if len(body) > ANSWER_BYTES_MAX or time.monotonic() > end_s:
            raise TransientError("the identity provider answers without end")
    return body


# --- Id tokens


def verified(token: str, order: OidcOrder, nonce: str, now_s: float, key_of: Callable[[str | None], Claims]) -> Claims:
    """What an id token claims, if all of it is so. Raises OidcRefusedError."""
    parts = token.split(".")
    if len(token) > ANSWER_BYTES_MAX or len(parts) != 3:
        raise OidcRefusedError("the id token is none")
    header, claims = _part(parts[0]), _part(parts[1])
    algorithm, name = header.get("alg"), header.get("kid")
    if algorithm not in ("RS256", "ES256") or "crit" in header:
        raise OidcRefusedError("it is signed in a way that is not believed")
    key = key_of(name if isinstance(name, str) else None)
    if not _is_signed(f"{parts[0]}.{parts[1]}".encode(), _bytes(parts[2]), algorithm, key):
        raise OidcRefusedError("its signature is wrong")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    told = claims.get("nonce")
    for holds, problem in (
        (claims.get("iss") == order.issuer, "it is from another issuer"),
        (order.client in audiences, "it is for somebody else"),
        (len(audiences) == 1 or claims.get("azp") == order.client, "it is for several, and not asked for by us"),
        (claims.get("azp", order.client) == order.client, "it was asked for by somebody else"),
        (_number(claims, "exp") > now_s - SKEW_S, "it has expired"),
        (_number(claims, "iat") < now_s + SKEW_S, "it is from the future"),
        ("nbf" not in claims or _number(claims, "nbf") < now_s + SKEW_S, "it is not valid yet"),
        (isinstance(told, str) and secrets.compare_digest(told.encode(), nonce.encode()), "it answers another attempt"),
        (isinstance(claims.get("sub"), str) and claims["sub"], "it names nobody"),
    ):
        if not holds:
            raise OidcRefusedError(problem)
    return claims


def _number(claims: Claims, name: str) -> float:
    found = claims.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or abs(found) > 1e12:
        raise OidcRefusedError(f"it does not say {name}")
    return float(found)


def _part(text: str) -> Claims:
    found = _object(_bytes(text))
    if found is None:
        raise OidcRefusedError("the id token is none")
    return found


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(str(text).encode("ascii") + b"=" * (-len(str(text)) % 4), b"-_", validate=True)
    except ValueError:
        raise OidcRefusedError("the id token is none") from None


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _is_signed(content: bytes, signature: bytes, algorithm: str, key: Claims) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if key.get("alg", algorithm) != algorithm:
        return False
    try:
        if algorithm == "RS256":
            _rsa(key).verify(signature, content, padding.PKCS1v15(), SHA256())
            return True
        if len(signature) != 64:
            return False
        halves = (int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
        _curve(key).verify(encode_dss_signature(*halves), content, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _rsa(key: Claims) -> RSAPublicKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    if key.get("kty") != "RSA":
        raise ValueError("not a key of this kind")
    numbers = RSAPublicNumbers(int.from_bytes(_bytes(key.get("e"))), int.from_bytes(_bytes(key.get("n"))))
    if numbers.n.bit_length() < KEY_BITS_MIN:
        raise ValueError("too short")
    return numbers.public_key()


def _curve(key: Claims) -> EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicNumbers

    if (key.get("kty"), key.get("crv")) != ("EC", "P-256"):
        raise ValueError("not a key of this kind")
    x, y = (int.from_bytes(_bytes(key.get(name))) for name in ("x", "y"))
    return EllipticCurvePublicNumbers(x, y, SECP256R1()).public_key()
