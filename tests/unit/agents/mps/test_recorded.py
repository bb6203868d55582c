"""What a real daemon said to what it was asked, played to protocol 2: `tests/recordings/h100/mps.txt`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.devices.parts import ShareOrder
from agents.errors import SharingError
from agents.mps.protocols import (
    MpsClient,
    MpsServer,
    ProtocolTwo,
    ServerState,
    may_be,
    memory_mib_in,
    pids_in,
    refused,
)

RECORDING = Path(__file__).parents[3] / "recordings" / "h100" / "mps.txt"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
MPS = ProtocolTwo()


def recorded(name: str) -> list[tuple[str, str]]:
    """What one of the daemons was asked, and what it said to that."""
    found: list[tuple[str, str]] = []
    at = ""
    for line in RECORDING.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            at = line[2:]
        elif at == name and line.startswith("> "):
            found.append((line[2:], ""))
        elif at == name:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    assert found
    return [(asked, said.strip("\n")) for asked, said in found]


class Played:
    """Instead of a control program: answers as the real one did where the same was asked next."""

    def __init__(self, name: str) -> None:
        self._rest = recorded(name)

    def ask_freely(self, *arguments: str, stdin: str = "") -> str:
        command = " ".join(arguments) or stdin.strip()
        for index, (asked, said) in enumerate(self._rest):
            if asked == command:
                del self._rest[: index + 1]
                return said
        raise AssertionError(f"nobody asked {command!r} from here on")

    def ask(self, *arguments: str, stdin: str = "") -> str:
        text = self.ask_freely(*arguments, stdin=stdin)
        if refused(text):
            raise SharingError(text)
        return text


def order(share: int, memory: int, worker: str = "w") -> ShareOrder:
    return ShareOrder(worker=worker, uuid=UUID, share_pct_sm=share, memory_mib_limit=memory)


def test_a_server_that_is_started_is_listed_and_takes_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    told = Played("started")
    assert MPS.servers(told) == ()
    MPS.start_server(told, UUID)
    assert MPS.servers(told) == (MpsServer(701, ServerState.ACTIVE),)
    assert MPS.servers(told) == (MpsServer(701, ServerState.ACTIVE),), "it stays when its last client has left"
    assert MPS.clients(Played("started")) == ()


def test_no_limit_is_shown_as_nothing_and_a_limit_as_it_was_set() -> None:
    told = Played("started")
    assert memory_mib_in(told.ask(stdin="get_default_device_pinned_mem_limit 0")) is None
    shown = memory_mib_in(told.ask(stdin="get_default_device_pinned_mem_limit 0"))
    assert may_be(shown, 6144)
    assert not may_be(shown, 5000)


def test_only_what_is_not_understood_looks_refused() -> None:
    for name in ("started", "limits", "serving"):
        for asked, said in recorded(name):
            assert refused(said) == (asked in ("help", "lspart", "nonsense")), asked
    with pytest.raises(SharingError, match="Unknown command"):
        Played("started").ask(stdin="nonsense")


def test_every_limit_in_mib_reads_back_as_one_that_it_may_be() -> None:
    units = {"M": 1.0, "MB": 1.0, "G": 1024.0}
    asked, checked = "", 0
    for command, said in recorded("limits"):
        if command.startswith("set_") and "pinned" in command:
            asked = command.rpartition(" ")[2]
        elif command.startswith("get_") and "pinned" in command and said:
            number, unit = asked.rstrip("MGKB"), asked.lstrip("0123456789.")
            if unit == "K":
                # Taken for mebibytes: this agent never says it.
                assert said == "7297G"
                continue
            assert may_be(memory_mib_in(said), float(number) * units[unit]), (asked, said)
            checked += 1
    assert checked == 14


def test_clients_are_those_listed_whatever_else_is_said_of_them() -> None:
    told = Played("limits")
    told.ask(stdin="set_active_thread_percentage 701 12.5")
    assert pids_in(told.ask(stdin="get_client_list 701")) == (801, 802)
    assert MPS.clients(Played("serving")) == tuple(MpsClient(pid, "701") for pid in (801, 802, 803, 804))


def test_ceilings_are_read_and_set_as_a_real_daemon_shows_them() -> None:
    told = Played("serving")
    clients = MPS.clients(told)
    assert MPS.misfit(told, order(30, 8064), clients[0]) == ""
    MPS.hold(told, [order(15, 7936, "a"), order(30, 8256, "b")])
    assert MPS.clients(told) == ()
    MPS.quit(told)
    assert MPS.misfit(Played("serving"), order(40, 8064), clients[0]) == "its server gives at most 30 % of the SMs"
    assert MPS.misfit(Played("serving"), order(30, 9216), clients[0]) == "its server gives at most 8192 MiB"
