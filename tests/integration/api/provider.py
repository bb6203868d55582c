"""An identity provider that tests run: honest, unless it is told what to say. People meet its page, tests without a
browser ask it directly.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.integration.api.world import OWN

CLIENT, SECRET = "headroom-console", "a secret of the client"
ROLES = f"sre=admin,ml=operator,everybody=viewer,team-a=operator@{OWN}"


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8))


@cache
def pair(name: str) -> rsa.RSAPrivateKey:
    """One of a name for all providers of this process: to find its primes takes longer than any sign-in."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider:
    """An identity provider on a socket, by a name of its own: another site than whoever is at 127.0.0.1."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.rsa = pair("its own")
        self.curve = ec.generate_private_key(ec.SECP256R1())
        self.foreign = pair("another's")
        self.codes: dict[str, dict[str, str]] = {}
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "r1"}
        self.claims: dict[str, Any] = {"sub": "u-1", "email": "ada@example.org", "groups": ["ml", "other"]}
        self.signer: Any = None
        self.signature: str | None = None
        self.answer: dict[str, Any] | None = None
        self.lost: tuple[str, ...] = ()
        self.methods: list[str] | None = ["client_secret_basic", "client_secret_post"]
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith(provider.lost):
                    self.say(404, {})
                elif self.path.startswith("/authorize?"):
                    self.say(200, provider.page(f"{provider.issuer}{self.path}"), "text/html")
                else:
                    self.say(200, provider.keys() if self.path == "/keys" else provider.discovery())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                kind, _, basic = self.headers.get("authorization", "").partition(" ")
                if kind == "Basic":
                    told_of = base64.b64decode(basic).decode().split(":")
                    form |= {"client_id": [unquote_plus(told_of[0])], "basic_secret": [unquote_plus(told_of[1])]}
                status, told = provider.redeem({name: values[0] for name, values in form.items()})
                self.say(status, told)

            def say(self, status: int, told: object, kind: str = "application/json") -> None:
                body = (told if isinstance(told, str) else json.dumps(told)).encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://{host}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            **({} if self.methods is None else {"token_endpoint_auth_methods_supported": self.methods}),
        }

    def keys(self) -> dict[str, Any]:
        public, point = self.rsa.public_key().public_numbers(), self.curve.public_key().public_numbers()
        return {
            "keys": [
                {"kty": "RSA", "kid": "r1", "use": "sig", "n": number(public.n), "e": number(public.e)},
                {
                    "kty": "EC",
                    "kid": "e1",
                    "crv": "P-256",
                    "x": b64(point.x.to_bytes(32)),
                    "y": b64(point.y.to_bytes(32)),
                },
            ]
        }

    def authorize(self, address: str) -> dict[str, str]:
        """As if somebody had signed in at the address a browser was sent to: what it comes back with."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert address.startswith(f"{self.issuer}/authorize?")
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (CLIENT, "code", "S256")
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"state": asked["state"], "code": code}

    def page(self, address: str) -> str:
        """What a browser is shown that was sent here: somebody goes on, or does not want to."""
        back = f"{parse_qs(urlsplit(address).query)['redirect_uri'][0]}?"
        brought = self.authorize(address)
        ways = {"Go on": brought, "Cancel": {"state": brought["state"], "error": "access_denied"}}
        links = [f'<a href="{html.escape(back + urlencode(way))}">{name}</a>' for name, way in ways.items()]
        return f'<!doctype html><link rel="icon" href="data:,"><title>Work</title>{" ".join(links)}'

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def redeem(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form["code"], None)
        challenge = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        by_form = "client_secret_post" in (self.methods or ())
        assert ("client_secret" in form, "basic_secret" in form) == (by_form, not by_form)
        if (form["client_id"], form["client_secret" if by_form else "basic_secret"]) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        if self.answer is not None:
            return 200, self.answer
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self.token(asked["nonce"])}

    def token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce, **self.claims}
        content = f"{b64(json.dumps(self.header).encode())}.{b64(json.dumps(claims).encode())}"
        return f"{content}.{self.signature if self.signature is not None else self.sign(content.encode())}"

    def sign(self, content: bytes) -> str:
        if self.header["alg"] == "ES256":
            halves = decode_dss_signature(self.curve.sign(content, ec.ECDSA(hashes.SHA256())))
            return b64(b"".join(half.to_bytes(32) for half in halves))
        return b64((self.signer or self.rsa).sign(content, padding.PKCS1v15(), hashes.SHA256()))
