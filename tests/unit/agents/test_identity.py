"""When a node takes its certificate for what a server hangs up on, and when it has another one signed."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from agents import identity as module
from agents.config import Trust
from agents.errors import StateFileError
from agents.identity import IDENTITY_FILE, NEXT_KEY_FILE, TERM_FILE, TRUST_FILE, Identity
from agents.state import StateDirectory
from agents.transport import HttpAnswer, UnreachableError

URL = "https://api.example"


class Place:
    """A node's state directory, and a server that answers by what a connection shows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.answers: Callable[[bool], bool] = lambda _: True
        self.state = StateDirectory(folder)
        place = self

        class Wire:
            def __init__(self, url: str, timeout_s: float = 10.0, tls: Callable[[], object] = object) -> None:
                self.is_bare = tls() == "bare"

            def call(self, method: str, path: str) -> HttpAnswer:
                if not place.answers(self.is_bare):
                    raise UnreachableError("hung up")
                return HttpAnswer(200, {}, b'{"signs": true}')

        monkeypatch.setattr(module, "HttpConnection", Wire)
        monkeypatch.setattr(Identity, "_made", lambda _, *, bare=False: "bare" if bare else "shown")
        self.identity = Identity(Trust(), self.state, lambda: self.now_s)

    def certify(self) -> bool:
        self.state.write_text(NEXT_KEY_FILE, "key\n")
        return self.identity.keep({"certificate": "signed\n", "authorities": "", "certificate_s": 90.0})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path / "state", monkeypatch)


def test_a_certificate_is_doubted_where_it_alone_is_hung_up_on(place: Place) -> None:
    place.answers = lambda is_bare: is_bare
    assert not place.identity.is_refused(URL)
    assert place.certify()
    assert place.identity.is_refused(URL)
    assert not place.identity.is_refused("http://api.example")
    place.identity.set_aside(True)
    assert not place.identity.is_refused(URL)


def test_a_server_that_is_away_or_comes_back_meanwhile_refused_nothing(place: Place) -> None:
    assert place.certify()
    place.answers = lambda _: False
    assert not place.identity.is_refused(URL)
    place.answers = lambda _: True
    assert not place.identity.is_refused(URL)
    # One that is over is shown to nobody any more.
    place.now_s += 90.0
    assert place.identity.is_refused(URL)


def test_another_certificate_is_due_after_two_thirds(place: Place) -> None:
    assert not place.identity.is_due()
    place.identity.learn(URL)
    assert place.identity.is_due()
    assert place.certify()
    assert (place.state.path / IDENTITY_FILE).read_text() == "key\nsigned\n"
    assert not (place.state.path / NEXT_KEY_FILE).exists()
    assert place.state.read_json(TERM_FILE) == [1060.0, 1090.0]
    assert (place.identity.is_due(), place.identity.has_ended()) == (False, False)
    place.now_s = 1060.0
    assert place.identity.is_due()
    place.identity.later()
    assert not place.identity.is_due()
    place.now_s = 1090.0
    assert (place.identity.is_due(), place.identity.has_ended()) == (True, True)


def test_another_certificate_is_due_when_another_authority_signs(place: Place) -> None:
    place.identity.learn(URL)
    assert place.certify()
    place.state.write_text(TRUST_FILE, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    place.identity.hear(None)
    assert not place.identity.is_due()
    place.identity.hear("0" * 64)
    assert place.identity.is_due()


def test_an_answer_without_a_certificate_changes_nothing(place: Place) -> None:
    place.state.write_text(NEXT_KEY_FILE, "key\n")
    assert not place.identity.keep({"certificate": None, "authorities": None, "certificate_s": None})
    assert place.state.read_text(NEXT_KEY_FILE) == "key\n"
    assert not place.identity.has_certificate


def authority(letter: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{letter * 4}\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("files", range(4))
def test_a_certificate_that_was_kept_in_part_is_asked_for_again(
    place: Place, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written when the agent was killed: the old one and its term stand, or it is due."""
    place.state.write_text(NEXT_KEY_FILE, "key\n")
    old = {"certificate": "old\n", "authorities": authority("A"), "certificate_s": 90.0}
    assert place.identity.keep(old)
    place.state.write_text(NEXT_KEY_FILE, "next\n")
    left, write = files, StateDirectory.write_text

    def killed(state: StateDirectory, name: str, text: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StateFileError("killed")
        write(state, name, text)

    place.now_s += 60.0
    with monkeypatch.context() as dying:
        dying.setattr(StateDirectory, "write_text", killed)
        try:
            kept = place.identity.keep({**old, "certificate": "new\n", "authorities": authority("B")})
        except StateFileError:
            kept = False
    again = Identity(Trust(), place.state, lambda: place.now_s)
    again.learn(URL)
    again.hear(hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority("B"))).hexdigest())
    assert kept == (files == 3)
    assert again.is_due() == (not kept)
    # Of the new one nobody thinks that it is over when the old one is.
    place.now_s += 40.0
    is_new = (place.state.path / IDENTITY_FILE).read_text() == "next\nnew\n"
    assert is_new == (files > 0)
    assert not (is_new and again.has_ended())


class Pair:
    """Files of a certificate and its key, as a site's own authority replaces them: one after the other."""

    def __init__(self, folder: Path) -> None:
        self.trust = Trust(tls_cert=folder / "node.crt", tls_key=folder / "node.key")
        self._fresh, self._spare = folder / "fresh.key", folder / "spare"

    def make(self) -> str:
        """Another key, whose certificate comes back."""
        self._fresh.write_text(module._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))
        asked = ("req", "-new", "-x509", "-key", str(self._fresh), "-subj", "/CN=node", "-config", "/dev/stdin")
        return module._openssl(*asked, told="[req]\ndistinguished_name=name\n[name]\n")

    def put_certificate(self, certificate: str) -> None:
        assert self.trust.tls_cert is not None
        self._spare.write_text(certificate)
        self._spare.replace(self.trust.tls_cert)

    def put_key(self) -> None:
        assert self.trust.tls_key is not None
        self._fresh.replace(self.trust.tls_key)


@pytest.mark.parametrize("key_first", [True, False])
def test_a_pair_is_shown_when_both_of_its_files_are_there(tmp_path: Path, *, key_first: bool) -> None:
    pair = Pair(tmp_path)
    pair.put_certificate(pair.make())
    pair.put_key()
    identity = Identity(pair.trust, StateDirectory(tmp_path / "state"))
    shown = identity.context()
    certificate = pair.make()
    first, second = pair.put_key, lambda: pair.put_certificate(certificate)
    if not key_first:
        first, second = second, first
    first()
    assert identity.context() is shown
    identity.set_aside(True)
    assert identity.context() is shown
    second()
    later = identity.context()
    assert later is not shown
    assert identity.context() is later


def test_looking_without_a_certificate_hides_no_new_one(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.put_certificate(pair.make())
    pair.put_key()
    identity = Identity(pair.trust, StateDirectory(tmp_path / "state"))
    shown = identity.context()
    pair.put_certificate(pair.make())
    pair.put_key()
    identity._made(bare=True)
    assert identity.context() is not shown
