"""When a node takes its certificate for what a server hangs up on, and when it has another one signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents import identity as module
from agents.config import Trust
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
