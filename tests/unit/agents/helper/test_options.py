"""The helper's command line and what keeps it from starting."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.errors import ConfigError
from agents.helper.__main__ import main, read_order
from agents.helper.server import HelperRules


def test_everything_can_be_said() -> None:
    said = "--socket /run/x/s --allow-uid 990 --allow-uid 991 --allow-gid 7 --devices nvml:all"
    more = "--state-dir /var/lib/x --restore-after 5 --audit-log /var/log/x"
    order = read_order([*said.split(), *more.split()])
    assert order.rules == HelperRules(uids=frozenset({990, 991}), gids=frozenset({7}), restore_after_s=5.0)
    assert (order.socket_path, order.devices) == (Path("/run/x/s"), "nvml:all")
    assert (order.state_dir, order.audit_log) == (Path("/var/lib/x"), Path("/var/log/x"))


def test_defaults_serve_nobody_but_those_named() -> None:
    order = read_order(["--allow-uid", "990", "--devices", "nvml:all"])
    assert order.rules == HelperRules(uids=frozenset({990}), restore_after_s=60.0)
    assert str(order.socket_path) == "/run/headroom-helper/helper.sock"


def test_users_and_groups_may_be_named() -> None:
    order = read_order(["--allow-uid", "root", "--allow-gid", "root", "--devices", "nvml:all"])
    assert order.rules == HelperRules(uids=frozenset({0}), gids=frozenset({0}))


@pytest.mark.parametrize("option", ["--allow-uid", "--allow-gid"])
@pytest.mark.parametrize("name", ["no-such-name", "-1", "1.5", ""])
def test_names_that_nobody_has_are_refused(option: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_order([f"{option}={name}", "--devices", "nvml:all"])
    assert "on this host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([], "nobody may use"),
        (["--allow-uid", "1", "--restore-after", "-1"], "--restore-after"),
        (["--allow-uid", "1", "--restore-after", "nan"], "--restore-after"),
    ],
)
def test_what_makes_no_sense_is_refused(more: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_order(["--devices", "nvml:all", *more])


def test_a_wrong_start_ends_with_a_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.pthread_sigmask", lambda how, signals: set())
    assert main(["--devices", "fake:T4", "--allow-uid", "1", "--state-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("headroom agent-helper: --devices 'fake:T4': expected nvml:")
