"""The systemd units: what keeps workers alive, what bounds the privileged helper, and that their commands are ours."""

from __future__ import annotations

import pwd
import shlex
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.config import read_config
from agents.helper.__main__ import read_order

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
Unit = dict[str, dict[str, list[str]]]


def read_unit(name: str) -> Unit:
    """Sections, keys and all values given to a key. An empty value is one, too: it means none."""
    found: Unit = defaultdict(lambda: defaultdict(list))
    section = ""
    text = (FOLDER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, separator, value = line.partition("=")
        assert separator, line
        found[section][key].append(value.strip())
    return found


def command(unit: Unit, variables: dict[str, str]) -> list[str]:
    """The command line that systemd would run."""
    (line,) = unit["Service"]["ExecStart"]
    for name, value in variables.items():
        line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in line
    return shlex.split(line)


def test_workers_outlive_the_agent() -> None:
    service = read_unit("headroom-agent.service")["Service"]
    assert service["KillMode"] == ["process"]
    assert service["OOMPolicy"] == ["continue"]
    assert service["Restart"] == ["always"]
    assert service["RuntimeDirectory"] == ["headroom"]
    assert service["RuntimeDirectoryPreserve"] == ["yes"]
    assert service["StateDirectory"] == ["headroom-agent"]
    assert not {"ExecStop", "ExecStopPost", "RemainAfterExit", "PrivateTmp", "PrivateDevices", "PrivateIPC"} & set(
        service
    )
    assert "MemoryDenyWriteExecute" not in service


def test_the_agent_has_no_privilege() -> None:
    service = read_unit("headroom-agent.service")["Service"]
    assert (service["User"], service["Group"]) == (["headroom"], ["headroom"])
    assert service["CapabilityBoundingSet"] == [""]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert not {"AmbientCapabilities", "SupplementaryGroups"} & set(service)


def test_the_helper_can_do_little_else() -> None:
    unit = read_unit("headroom-agent-helper.service")
    service = unit["Service"]
    assert (service["User"], service["Group"]) == (["root"], ["headroom"])
    assert service["CapabilityBoundingSet"] == ["CAP_SYS_ADMIN"]
    assert service["RestrictAddressFamilies"] == ["AF_UNIX"]
    assert service["DevicePolicy"] == ["closed"]
    assert all(allowed.startswith("char-nvidia") for allowed in service["DeviceAllow"])
    assert service["SystemCallFilter"] == ["@system-service"]
    switched_on = (
        "NoNewPrivileges",
        "PrivateNetwork",
        "PrivateTmp",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "RestrictNamespaces",
        "RestrictSUIDSGID",
    )
    assert {key: service[key] for key in switched_on} == {key: ["yes"] for key in switched_on}
    assert service["ProtectSystem"] == ["strict"]
    assert service["Restart"] == ["always"]
    assert (service["RuntimeDirectory"], service["StateDirectory"]) == (["headroom-helper"], ["headroom-helper"])
    assert service["RuntimeDirectoryMode"] == ["0750"]
    assert not {"AmbientCapabilities", "ExecStopPost", "ReadWritePaths"} & set(service)


def test_the_agent_starts_after_its_helper_and_lives_without_it() -> None:
    agent = read_unit("headroom-agent.service")["Unit"]
    assert "headroom-agent-helper.service" in agent["After"][0].split()
    assert "headroom-agent-helper.service" in agent["Wants"][0].split()
    assert not {"Requires", "BindsTo", "PartOf"} & set(agent)


def test_both_commands_are_understood_and_meet_at_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"headroom": SimpleNamespace(pw_uid=990)}[name])
    helper = command(read_unit("headroom-agent-helper.service"), {"HEADROOM_HELPER_DEVICES": "nvml:all"})
    assert helper[:2] == ["/opt/headroom/bin/headroom", "agent-helper"]
    order = read_order(helper[2:])
    assert (order.rules.uids, order.rules.gids, order.devices) == (frozenset({990}), frozenset(), "nvml:all")
    assert order.state_dir == Path("/var/lib/headroom-helper")

    variables = {"HEADROOM_AGENT_DEVICES": "nvml:all", "HEADROOM_AGENT_OPTIONS": "--rack r7"}
    agent = command(read_unit("headroom-agent.service"), variables)
    assert agent[:2] == ["/opt/headroom/bin/headroom", "agent"]
    config = read_config(agent[2:], {"HEADROOM_SERVER": "http://plane"})
    assert (config.rack, config.state_dir) == ("r7", Path("/var/lib/headroom-agent"))
    assert config.nvidia is not None
    assert config.nvidia.helper == order.socket_path


def test_the_user_of_the_units_is_made() -> None:
    lines = (FOLDER / "headroom.sysusers.conf").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:3] for line in lines if not line.startswith("#")] == [["u", "headroom", "-"]]
    rules = [line.split() for line in (FOLDER / "headroom.tmpfiles.conf").read_text().splitlines() if line[0] != "#"]
    assert all(rule[1].startswith("/etc/headroom") and int(rule[2], 8) & 0o007 == 0 for rule in rules)
    assert len(rules) == 3
