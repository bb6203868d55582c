"""Who may connect, how much may be asked, what misbehaviour leads to, and when devices are brought back."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agents.errors import ConfigError
from agents.helper.desk import Peer
from agents.helper.protocol import LINE_BYTES_MAX, HelperAnswer, HelperRequest, Verb, decode_answer, encode_request
from agents.helper.server import TURNED_AWAY_MAX, HelperRules, listen, peer_of
from tests.unit.agents.builders import FakeClock
from tests.unit.agents.helper.conftest import US, Listening, Opener
from tests.unit.agents.helper.doubles import GPUS
from tests.waiting import wait_until

RULES = HelperRules(uids=frozenset({US.uid}))
STRANGER = Peer(pid=66, uid=4000, gid=4001)


def as_us(_: socket.socket) -> Peer:
    return US


def lock(number: int = 1, clock: int | None = 900, device: str = GPUS[0]) -> bytes:
    return encode_request(HelperRequest(number=number, verb=Verb.LOCK_CLOCK, device=device, value=clock))


def answers(connection: socket.socket) -> list[HelperAnswer]:
    """Everything until the other side closes."""
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return [decode_answer(line) for line in found.splitlines()]


def told(connection: socket.socket, sent: bytes) -> HelperAnswer:
    """The answer to one line."""
    connection.sendall(sent)
    found = b""
    while not found.endswith(b"\n"):
        piece = connection.recv(65536)
        assert piece, "closed without an answer"
        found += piece
    return decode_answer(found[:-1])


def test_requests_are_answered_in_order_on_one_connection(listening: Opener) -> None:
    helper = listening(credentials=as_us)
    with helper.connect() as connection:
        connection.sendall(b"".join(lock(number, 300 + 15 * number) for number in range(1, 11)))
        connection.shutdown(socket.SHUT_WR)
        assert answers(connection) == [HelperAnswer(number=number) for number in range(1, 11)]
    assert [value for _, _, value in helper.office.setters.calls] == [300 + 15 * number for number in range(1, 11)]


def test_who_comes_when_no_thread_is_left_may_come_again(listening: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = listening(replace(RULES, connections_max=1), credentials=as_us)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(1 + TURNED_AWAY_MAX):
            with helper.connect() as connection:
                assert connection.recv(1) == b""
    with helper.connect() as connection:
        assert told(connection, lock()).code == ""


def test_the_kernel_says_who_connected(listening: Opener) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert peer_of(near) == Peer(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())
    helper = listening(replace(RULES, uids=frozenset({os.getuid()})))
    with helper.connect() as connection:
        assert told(connection, lock()).code == ""
    wait_until(lambda: len(helper.office.told()) == 1)
    assert helper.office.told()[0]["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("rules", "peer", "admitted"),
    [
        (RULES, US, True),
        (RULES, STRANGER, False),
        (RULES, replace(STRANGER, uid=0), False),
        (replace(RULES, gids=frozenset({4001})), STRANGER, True),
        (replace(RULES, uids=frozenset(), gids=frozenset({4000})), STRANGER, False),
    ],
)
def test_only_listed_users_and_groups_are_served(
    listening: Opener, rules: HelperRules, peer: Peer, admitted: bool
) -> None:
    helper = listening(rules, credentials=lambda _: peer)
    near, far = socket.socketpair()
    far.settimeout(20)
    serving = threading.Thread(target=helper.server.serve, args=(near,))
    serving.start()
    with far:
        far.sendall(lock())
        far.shutdown(socket.SHUT_WR)
        found = answers(far)
    serving.join(timeout=20)
    assert [answer.code for answer in found] == ([""] if admitted else ["no-permission"])
    assert helper.office.setters.calls == ([("lock_clock", GPUS[0], 900)] if admitted else [])
    assert helper.office.told()[-1]["uid"] == peer.uid


@pytest.mark.parametrize(
    "sent",
    [b"x" * (LINE_BYTES_MAX + 2) + b"\n", b"x" * 100_000, b"hello\n", b"\xff\xfe\n", b"{}\n", b"\0" * 50 + b"\n"],
)
def test_what_is_no_message_is_told_once_and_cut_off(listening: Opener, sent: bytes) -> None:
    helper = listening(credentials=as_us)
    with helper.connect() as connection:
        connection.sendall(sent + lock())
        found = answers(connection)
    assert [(answer.number, answer.code) for answer in found] == [(None, "protocol")]
    assert helper.office.setters.calls == []
    with helper.connect() as connection:
        assert told(connection, lock()).code == ""


def test_a_line_that_never_ends_is_cut_off(listening: Opener) -> None:
    helper = listening(replace(RULES, line_timeout_s=0.05), credentials=as_us)
    with helper.connect() as silent, helper.connect() as slow:
        slow.sendall(lock()[:-1])
        assert [answer.code for answer in answers(slow)] == ["protocol"]
        # Silence alone is no offence: an agent has nothing to say for hours.
        assert told(silent, lock()).code == ""


def test_haste_is_refused_until_it_ends_and_then_cut_off(listening: Opener) -> None:
    clock = FakeClock()
    helper = listening(
        replace(RULES, requests_per_s=10.0, requests_burst=5, refused_max=3), credentials=as_us, now_s=clock
    )
    with helper.connect() as connection:
        assert [told(connection, lock(number)).code for number in range(7)] == [""] * 5 + ["busy"] * 2
        clock.pass_s(0.2)
        assert [told(connection, lock(number)).code for number in range(2)] == [""] * 2
        assert told(connection, lock()).code == "busy"
        assert answers(connection) == []
    with helper.connect() as connection:
        assert told(connection, lock()).code == ""
    assert len(helper.office.setters.calls) == 8


def test_connections_are_bounded(listening: Opener) -> None:
    helper = listening(replace(RULES, connections_max=2), credentials=as_us)
    with helper.connect() as one, helper.connect() as two:
        assert [told(each, lock()).code for each in (one, two)] == ["", ""]
        with helper.connect() as three:
            assert [answer.code for answer in answers(three)] == ["busy"]
        one.close()
        wait_until(lambda: helper.server.clients == 1)
        with helper.connect() as three:
            assert told(three, lock()).code == ""


def test_many_clients_at_once_are_all_answered(listening: Opener) -> None:
    helper = listening(credentials=as_us)

    def work(client: int) -> None:
        with helper.connect() as connection:
            for number in range(20):
                clock = 300 + 15 * ((client + number) % 80)
                assert told(connection, lock(number, clock, GPUS[client % 2])) == HelperAnswer(number=number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16), timeout=30))
    assert len(helper.office.setters.calls) == 320
    assert len(helper.office.told()) == 320
    wait_until(lambda: helper.server.clients == 0)


def test_noise_of_any_kind_leaves_a_helper_that_serves(listening: Opener) -> None:
    helper = listening(credentials=as_us)
    noise = random.Random(7)
    for _ in range(60):
        with helper.connect() as connection:
            pieces = [
                noise.randbytes(noise.randrange(1, 3000)),
                lock(noise.randrange(99)),
                lock()[: noise.randrange(1, 60)],
                b"\n" * noise.randrange(3),
            ]
            for piece in noise.sample(pieces, noise.randrange(1, 5)):
                try:
                    connection.sendall(piece)
                except (BrokenPipeError, ConnectionResetError):
                    break
    with helper.connect() as connection:
        assert told(connection, lock(5, None)) == HelperAnswer(number=5)
    assert {value for _, _, value in helper.office.setters.calls} <= {900, None}
    wait_until(lambda: helper.server.clients == 0)


def test_devices_are_brought_back_when_the_last_client_has_been_gone_for_long_enough(listening: Opener) -> None:
    clock = FakeClock()
    helper = listening(replace(RULES, restore_after_s=60.0), credentials=as_us, now_s=clock)
    first, second = helper.connect(), helper.connect()
    with first, second:
        assert [told(first, lock()).code, told(second, lock(device=GPUS[1])).code] == ["", ""]
        clock.pass_s(1000.0)
        assert helper.server.turn() is None
        first.close()
        wait_until(lambda: helper.server.clients == 1)
        clock.pass_s(1000.0)
        assert helper.server.turn() is None
    wait_until(lambda: helper.server.clients == 0)
    assert helper.server.turn() == 60.0
    clock.pass_s(59.0)
    assert helper.server.turn() == 1.0
    assert clocks(helper) == [900, 900]
    clock.pass_s(1.0)
    assert helper.server.turn() is None
    assert clocks(helper) == [None, None]


def test_who_comes_back_in_time_finds_everything_as_it_was(listening: Opener) -> None:
    clock = FakeClock()
    helper = listening(credentials=as_us, now_s=clock)
    with helper.connect() as connection:
        assert told(connection, lock()).code == ""
    wait_until(lambda: helper.server.clients == 0)
    clock.pass_s(59.0)
    with helper.connect() as connection:
        wait_until(lambda: helper.server.clients == 1)
        clock.pass_s(100.0)
        assert helper.server.turn() is None
        assert clocks(helper) == [900, None]


def test_a_helper_that_starts_after_a_crash_waits_for_agents_before_it_restores(listening: Opener) -> None:
    clock = FakeClock()
    helper = listening(credentials=as_us, now_s=clock)
    peer_request = HelperRequest(number=1, verb=Verb.LOCK_CLOCK, device=GPUS[0], value=900)
    helper.office.desk.handle(US, peer_request)
    assert helper.server.turn() == 60.0
    clock.pass_s(60.0)
    assert helper.server.turn() is None
    assert clocks(helper) == [None, None]


def test_what_could_not_be_restored_is_tried_again(listening: Opener) -> None:
    from agents.errors import LostError

    clock = FakeClock()
    helper = listening(credentials=as_us, now_s=clock)
    helper.office.desk.handle(US, HelperRequest(number=1, verb=Verb.LOCK_CLOCK, device=GPUS[0], value=900))
    helper.office.fail(LostError("gone"))
    clock.pass_s(60.0)
    assert helper.server.turn() == 30.0
    helper.office.fail(None)
    clock.pass_s(30.0)
    assert helper.server.turn() is None
    assert clocks(helper) == [None, None]


def clocks(helper: Listening) -> list[int | None]:
    return [held.clock for held in helper.office.boards.held.values()]


def test_the_socket_belongs_to_owner_and_group_alone(folder: Path) -> None:
    path = folder / "s"
    with listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_what_a_killed_helper_left_is_replaced_but_nothing_else(folder: Path) -> None:
    path = folder / "s"
    listen(path).close()
    with listen(path), pytest.raises(ConfigError, match="already listens"):
        listen(path)
    path.unlink()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        listen(path)
    assert path.read_text() == "mine"
    target = folder / "target"
    listen(target).close()
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="something else"):
        listen(path)


def test_paths_that_no_socket_can_have_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="107 bytes"):
        listen(folder / ("é" * 60))
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(folder / "missing" / "s")
