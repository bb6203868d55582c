"""A process that is asked to end hears it, and only while it listens."""

from __future__ import annotations

import signal
import threading

import pytest

from app.signals import SIGNALS, asked_to_end


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_the_call_and_what_stood_before_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    asked = threading.Event()
    with asked_to_end(asked.set):
        assert signal.getsignal(number) is not before
        signal.raise_signal(number)
        assert asked.wait(60)
    assert signal.getsignal(number) is before


def test_a_signal_that_interrupts_the_wait_for_the_same_event_is_heard() -> None:
    """As it happened to a follower of routes: asked to end in the moment in which a wait holds the event's lock."""
    asked = threading.Event()
    with asked_to_end(asked.set):
        with asked._cond:
            signal.raise_signal(signal.SIGTERM)
        assert asked.wait(60)


def test_handlers_come_back_after_a_failure_too() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), asked_to_end(lambda: None):
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def listen() -> None:
        with asked_to_end(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [before]


def test_whoever_handled_the_signal_before_still_hears_where_asked_for() -> None:
    heard: list[str] = []
    asked = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    try:
        with asked_to_end(asked.set, pass_on=True):
            signal.raise_signal(signal.SIGTERM)
            assert asked.wait(60)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["server", "server"]
