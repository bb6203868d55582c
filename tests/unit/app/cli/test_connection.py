"""Which control plane a command talks to, and that a stored token stays with its user and its server."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from app.cli.options import connect
from app.cli.output import CommandError, Exit
from app.client.connection import CLIENT_FILE, Connection, read_connection, write_connection
from solvers.errors import InputError
from solvers.version import VERSION
from tests.unit.app.cli.conftest import SERVER, Api, Headroom, Served, page

STORED = Connection(server="http://127.0.0.1:8080", token="stored")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADROOM_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (*PROXIES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_what_up_stored_is_private_and_used(home: Path) -> None:
    (home / CLIENT_FILE).touch(mode=0o644)
    write_connection(home, STORED)
    assert stat.S_IMODE((home / CLIENT_FILE).stat().st_mode) == 0o600
    assert read_connection(home) == STORED
    with connect(None, None) as client:
        assert client.server == STORED.server


def test_options_come_first(home: Path) -> None:
    write_connection(home, STORED)
    with connect("http://other.test", "mine") as client:
        assert client.server == "http://other.test"


def test_the_stored_token_is_shown_to_no_other_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_connection(home, STORED)
    monkeypatch.setattr("app.cli.options.Client.health", lambda _: True)
    with pytest.raises(CommandError, match=r"no token for http://other\.test") as caught:
        connect("http://other.test", None)
    assert caught.value.exit_code is Exit.REFUSED


def test_without_a_server_the_way_out_is_named(home: Path) -> None:
    with pytest.raises(CommandError, match="headroom up") as caught:
        connect(None, None)
    assert caught.value.exit_code is Exit.USAGE


def test_a_broken_file_is_named(home: Path) -> None:
    (home / CLIENT_FILE).write_text("{}")
    with pytest.raises(InputError, match=r"client\.json"):
        connect(None, None)


PROXIES = ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("variable", PROXIES)
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "http://[::1"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_is_asked_for_this_machine(
    headroom: Headroom, monkeypatch: pytest.MonkeyPatch, served: Served, variable: str, proxy: str, host: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    said = headroom("get", "services", "--server", f"http://{host}:{served.port}", "--token", "t")
    assert (said.status, said.err) == (Exit.OK, "")
    assert served.asked[0].startswith("/v1/services")


def test_a_proxy_that_fails_is_named(home: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("get", "services", "--server", "http://control.test", "--token", "t")
    monkeypatch.setenv("http_proxy", "user:hush@127.0.0.1:9")
    said = headroom(*asked)
    assert said.status == Exit.UNREACHABLE
    assert "through the proxy http://127.0.0.1:9 that the environment names" in said.err
    assert "hush" not in said.err
    monkeypatch.setenv("no_proxy", "control.test")
    assert "proxy" not in headroom(*asked).err
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", "http://[::1")
    said = headroom(*asked)
    assert (said.status, said.err.count("\n")) == (Exit.USAGE, 1)
    assert "the proxy that the environment names for http:// is no address" in said.err


def test_a_proxy_is_asked_for_others(
    home: Path, headroom: Headroom, monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{served.port}")
    assert headroom("get", "services", "--server", "http://control.test", "--token", "t").status == Exit.OK
    assert served.asked[0].startswith("http://control.test/v1/services")


@pytest.mark.parametrize("server", ["http://[::1", "http://", "http://a:b:c"])
def test_an_address_that_is_none_is_one_line(home: Path, headroom: Headroom, server: str) -> None:
    said = headroom("status", "--server", server, "--token", "t")
    assert (said.status, said.out, said.err.count("\n")) == (Exit.USAGE, "", 1)
    assert "the server address" in said.err


@pytest.mark.parametrize("token", ["hush\u00e9", "hush\ny", "hush\r", "hush y", "\udce9hush"])
def test_a_token_that_is_none_is_one_line_without_it(home: Path, headroom: Headroom, token: str) -> None:
    said = headroom("status", "--server", "http://127.0.0.1:9", "--token", token)
    assert (said.status, said.out, said.err.count("\n")) == (Exit.USAGE, "", 1)
    assert "the token holds" in said.err
    assert "hush" not in said.err


OLDER = "of a version that it does not tell"


@pytest.mark.parametrize("version", ["0.0.9", OLDER])
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("top", "-n", "1"),
        ("plan",),
        ("plans",),
        ("explain", "p/s", "--plan", "x"),
        ("report", "cost"),
        ("budget",),
        ("nodes",),
        ("simulate", "--advise"),
        ("drain", "n"),
        ("task", "list"),
    ],
)
def test_a_server_that_does_not_tell_what_is_asked_is_called_older(
    api: Api, headroom: Headroom, words: tuple[str, ...], version: str
) -> None:
    api.answers |= {f"GET /v1/{route}": page({}) for route in ("plans", "budget-forecasts", "tasks/status")}
    api.answers |= {f"GET /v1/{route}": {"id": "x"} for route in ("fleet", "plans/x/explain", "costs", "nodes/n/drain")}
    api.answers |= {f"POST /v1/{route}": {"id": "x"} for route in ("plans", "simulations", "nodes/n/drain")}
    if version is not OLDER:
        api.answers["GET /v1/version"] = {"version": version}
    said = headroom(*words)
    assert (said.status, said.out, said.err.count("\n")) == (Exit.FAILED, "", 1), said.err
    assert said.err.startswith(f"headroom: {SERVER} answers without '")
    assert f"headroom {version} there is older than headroom {VERSION} here; upgrade the server" in said.err


def test_doctor_says_that_an_older_server_is_to_be_upgraded(api: Api, headroom: Headroom) -> None:
    api.answers |= {"GET /v1/version": {"version": "0.0.9", "cluster": "c"}, "GET /v1/ready": {}, "GET /v1/fleet": {}}
    lines = {line["check"]: line for line in headroom("doctor", "--json").json}
    assert {lines[name]["state"] for name in ("nodes", "plans", "beliefs")} == {"wrong"}
    assert "older than headroom" in lines["nodes"]["found"]
    assert lines["nodes"]["todo"] == "upgrade the server"


def test_an_answer_is_yaml_that_reads_as_it_came(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/services"] = page(found := {"project": "p", "name": "s", "slo": {"latency_ms": 5}})
    (read,) = yaml.safe_load(headroom("get", "services", "-o", "yaml").out)
    assert found.items() <= read.items()
