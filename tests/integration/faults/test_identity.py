"""Nodes that prove who they are: real servers and agents over TLS, and everybody who is somebody else."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from agents.wire import encode
from app.authority import Authority, presented
from app.store import tokens
from headroom_client import Client
from tests import nursery
from tests.integration.api.world import join_message
from tests.integration.faults.house import House, Postgres, Process
from tests.ports import free_port

pytestmark = pytest.mark.integration

SHORT_DAYS = str(24.0 / 86_400.0)


class TlsHouse(House):
    """A control plane whose API speaks TLS alone."""

    def __init__(self, postgres: Postgres, **extra: str) -> None:
        super().__init__(postgres, {"HEADROOM_TLS": "1", **extra})
        self.address = f"https://127.0.0.1:{self.port}"
        self.authority = Authority(self.home / "authority.pem")

    def trusting(self, identity: Path | None = None) -> ssl.SSLContext:
        """What a client uses that believes this authority, and shows this certificate."""
        context = ssl.create_default_context(cadata=self.authority.bundle)
        if identity is not None:
            context.load_cert_chain(identity)
        return context

    @contextmanager
    def client(self, token: str | None = None) -> Iterator[Client]:
        transport = httpx.HTTPTransport(verify=self.trusting())
        with Client(self.address, self.admin if token is None else token, timeout_s=10.0, transport=transport) as found:
            yield found

    def ready(self, port: int | None = None) -> bool:
        with self.client() as client:
            return client.ready()

    def join_token(self, node: str | None = None, uses: int = 1) -> str:
        terms = {"purpose": tokens.Purpose.JOIN, "uses_max": uses, "ttl_s": 3600.0, "subject": node}
        return self.token(tokens.Role.AGENT, **terms)

    def state(self, node: str) -> Path:
        return self.home / "agents" / node

    def start_node(self, node: str, *options: str, token: str = "") -> Process:
        command = (
            *("-m", "agents", "--server", self.address, "--node", node, "--devices", "fake:t4", "--time-factor", "20"),
            *("--state-dir", str(self.state(node)), *options),
        )
        self._environment["HEADROOM_TOKEN"] = token
        return self._start(node, (sys.executable, *command))

    def ask(
        self, method: str, path: str, token: str, identity: Path | None = None, plain: object = None, port: int = 0
    ) -> tuple[int, str]:
        """Status and code of one request over a connection of its own; (0, why) when the server hangs up."""
        context = self.trusting(identity)
        connection = http.client.HTTPSConnection("127.0.0.1", port or self.port, timeout=20.0, context=context)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if plain is None else json.dumps(plain), headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 0, type(error).__name__
        finally:
            connection.close()
        told = json.loads(body) if answer.status >= 400 else {}
        return answer.status, str(told.get("code", ""))

    def node_token(self, node: str) -> str:
        return (self.state(node) / "token").read_text().strip()

    def reports(self, node: str) -> int:
        return int(self.one("SELECT count(*) FROM report_log WHERE source = %s", f"node/{node}") or 0)

    def refusals(self, name: str, subject: str) -> set[str]:
        found = self.rows("SELECT facts->>'code' FROM events WHERE name = %s AND subject = %s", name, subject)
        return {str(code) for (code,) in found}

    def authorities_of(self, node: str) -> set[str]:
        query = "SELECT authority FROM node_keys WHERE node_id = %s AND revoked_at IS NULL AND expires_at > now()"
        return {str(found) for (found,) in self.rows(query, node)}


@pytest.fixture
def tls_house(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[TlsHouse]:
    found = TlsHouse(postgres, **getattr(request, "param", {}))
    try:
        yield found
        assert not found.tracebacks()
    finally:
        found.close()


def _target(node: str) -> str:
    return f"/v1/agent/nodes/{node}/target"


def _start_two(house: TlsHouse) -> None:
    house.start_api()
    for node in ("a", "b"):
        house.start_node(node, "--ca-sha256", house.authority.fingerprint, token=house.join_token(node))
    for node in ("a", "b"):
        house.await_true(f"{node} reports", lambda node=node: house.reports(node) > 1)


def test_a_token_is_good_with_its_nodes_key_alone(tls_house: TlsHouse) -> None:
    house = tls_house
    _start_two(house)
    mine, other = (house.state(node) / "identity.pem" for node in ("a", "b"))
    token = house.node_token("a")
    assert house.ask("GET", _target("a"), token, mine) == (200, "")
    # What it is: a key only its owner reads, a certificate that names node and cluster.
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    said = presented(ssl.PEM_cert_to_DER_cert(mine.read_text().partition("-----END PRIVATE KEY-----")[2].strip()))
    cluster_id = house.one("SELECT cluster_id FROM cluster_state")
    assert (said.names, said.address) == ({"a"}, f"headroom://{cluster_id}/nodes/a")
    assert "PRIVATE KEY" not in str(house.rows("SELECT * FROM node_keys"))
    # A stolen token, alone and beside a good certificate of another node.
    assert house.ask("GET", _target("a"), token) == (401, "certificate-required")
    assert house.ask("GET", _target("a"), token, other) == (401, "certificate-foreign")
    assert house.ask("POST", "/v1/agent/join", token, None, encode(join_message("a"))) == (401, "certificate-required")
    assert house.ask("GET", "/v1/doorbell", token, other) == (401, "certificate-foreign")
    for shown, code in ((None, "certificate-required"), (other, "certificate-foreign")):
        assert house.ask("POST", "/v1/agent/reports", token, shown, []) == (401, code)
    assert house.ask("GET", _target("a"), house.node_token("b"), other) == (404, "not-found")
    assert house.refusals("join.refused", "nodes/a") == {"certificate-required", "certificate-foreign"}
    # A certificate of another cluster's authority, for the very same name and address.
    elsewhere = Authority(house.home / "elsewhere.pem")
    elsewhere.create()
    forged = _identity(elsewhere, house.home / "forged", str(cluster_id))
    assert house.ask("GET", _target("a"), token, forged)[0] == 0
    # The server's own authority, but another cluster's node, whose key is bound nowhere here.
    foreign = _identity(house.authority, house.home / "foreign", "another-cluster")
    assert house.ask("GET", _target("a"), token, foreign) == (401, "certificate-foreign")
    house.await_true("it is told", lambda: "certificate-foreign" in house.refusals("certificate.refused", "tls"))
    # Plain HTTP gets no answer, and disturbs nobody.
    with socket.create_connection(("127.0.0.1", house.port), timeout=20.0) as peer:
        peer.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not peer.recv(1000).startswith(b"HTTP")
    stored = house.reports("a")
    house.await_true("a goes on", lambda: house.reports("a") > stored)


def _identity(authority: Authority, folder: Path, cluster_id: str, node: str = "a") -> Path:
    """A key and a certificate for it, as an agent would have them."""
    folder.mkdir()
    key = folder / "key.pem"
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key))
    asked = _program("req", "-new", *made, "-subj", "/CN=x")
    file = folder / "identity.pem"
    file.write_text(key.read_text() + authority.sign_node(asked, node, cluster_id, 3600.0).certificate)
    return file


def test_a_node_that_is_turned_out_is_out_everywhere(tls_house: TlsHouse) -> None:
    house = tls_house
    _start_two(house)
    port = free_port()
    house.start_api(wait=False, port=port)
    shown, token = house.home / "copied.pem", house.node_token("a")
    shutil.copy(house.state("a") / "identity.pem", shown)
    house.await_true("the other API serves", lambda: house.ask("GET", _target("a"), token, shown, port=port)[0] == 200)
    # An open stream at the other one.
    context = house.trusting(shown)
    stream = http.client.HTTPSConnection("127.0.0.1", port, timeout=30.0, context=context)
    stream.request("GET", "/v1/doorbell", headers={"Authorization": f"Bearer {token}"})
    answer = stream.getresponse()
    assert answer.status == 200
    said = house.run("nodes", "revoke", "a", "--server", house.address, "--token", house.admin)
    assert "certificate verify failed" in said.stderr
    house._environment["SSL_CERT_FILE"] = str(house.home / "trusted.pem")
    (house.home / "trusted.pem").write_text(house.authority.bundle)
    said = house.run("nodes", "revoke", "a", "--server", house.address, "--token", house.admin)
    assert said.stdout == "turned out a\n", said.stderr
    assert house.ask("GET", _target("a"), token, shown) == (401, "unauthenticated")
    house.await_true(
        "the other API knows", lambda: house.ask("GET", _target("a"), token, shown, port=port)[0] == 401, 5.0
    )
    while answer.readline():
        pass
    stream.close()
    # A token for any node does not bring the name back; one made for it does.
    csr = encode(join_message("a", "boot-9"))
    for_any = house.join_token()
    assert house.ask("POST", "/v1/agent/join", for_any, None, csr) == (403, "node-revoked")
    assert house.ask("POST", "/v1/agent/join", house.join_token("b"), None, csr) == (403, "forbidden")
    house.await_true("it is told", lambda: house.rows("SELECT 1 FROM events WHERE name = 'node.revoked'"))
    before = house.reports("b")
    house.await_true("b goes on", lambda: house.reports("b") > before)
    assert house.ask("POST", "/v1/agent/join", house.join_token("a"), None, csr) == (200, "")
    listed = house.run("nodes", "identities", "-o", "json", "--server", house.address, "--token", house.admin)
    assert {item["node_id"] for item in json.loads(listed.stdout)} == {"a", "b"}


@pytest.mark.parametrize("tls_house", [{"HEADROOM_NODE_CERTIFICATE_DAYS": SHORT_DAYS}], indirect=True)
def test_certificates_are_renewed_before_they_end(tls_house: TlsHouse) -> None:
    house = tls_house
    house.start_api()
    agent = house.start_node("a", "--ca-sha256", house.authority.fingerprint, token=house.join_token("a"))
    house.await_true("it reports", lambda: house.reports("a") > 0)
    first = house.home / "first.pem"
    shutil.copy(house.state("a") / "identity.pem", first)
    house.await_true("it has three keys", lambda: len(house.rows("SELECT 1 FROM node_keys")) >= 3, 90.0)
    assert first.read_text() != (house.state("a") / "identity.pem").read_text()
    # Another key each time, and no join between.
    assert house.one("SELECT count(*) FROM events WHERE name = 'node.joined'") == 1
    assert agent.alive
    refused = house.ask("GET", _target("a"), house.node_token("a"), first)
    house.await_true("the first is over", lambda: house.ask("GET", _target("a"), house.node_token("a"), first)[0] == 0)
    assert refused in ((200, ""), (0, refused[1]))
    house.await_true("it is told", lambda: "certificate-expired" in house.refusals("certificate.refused", "tls"))
    seen = house.reports("a")
    house.await_true("it goes on", lambda: house.reports("a") > seen)


def test_the_authority_is_rotated_under_a_living_fleet(tls_house: TlsHouse) -> None:
    house = tls_house
    _start_two(house)
    old = house.authority.fingerprint
    copied = house.home / "old.pem"
    shutil.copy(house.state("a") / "identity.pem", copied)
    old_trust = ssl.create_default_context(cadata=house.authority.bundle)
    assert "sha256" in house.run("ca", "rotate").stdout
    assert house.run("ca", "rotate").returncode != 0
    new = house.authority.fingerprint
    assert new != old
    for node in ("a", "b"):
        house.await_true(f"{node} changes over", lambda node=node: new in house.authorities_of(node), 90.0)
    # Whoever knows the old one alone believes the server still.
    connection = http.client.HTTPSConnection("127.0.0.1", house.port, timeout=20.0, context=old_trust)
    connection.request("GET", "/v1/health")
    assert connection.getresponse().status == 200
    connection.close()
    token = house.node_token("a")
    assert house.ask("GET", _target("a"), token, copied)[0] == 200
    assert "no more" in house.run("ca", "retire").stdout
    house.await_true("the old one is out", lambda: house.ask("GET", _target("a"), token, copied)[0] == 0)
    assert house.ask("GET", _target("a"), token, house.state("a") / "identity.pem")[0] == 200
    seen = house.reports("a"), house.reports("b")
    house.await_true("both go on", lambda: house.reports("a") > seen[0] and house.reports("b") > seen[1])


@pytest.mark.parametrize("tls_house", [{"HEADROOM_NODES_TLS": "required"}], indirect=True)
def test_where_certificates_are_required_a_token_alone_is_nothing(tls_house: TlsHouse) -> None:
    house = tls_house
    house.start_api()
    once = house.join_token("a")
    assert house.ask("POST", "/v1/agent/join", once, None, encode(join_message("a"))) == (401, "certificate-required")
    assert house.one("SELECT sum(uses) FROM tokens") == 0
    assert house.one("SELECT count(*) FROM nodes") == 0
    with house.client() as client:
        told = client.call("GET", "/v1/authorities").body
    assert (told["nodes"], told["signs"], told["sha256"]) == ("required", True, house.authority.fingerprint)
    # Nobody is believed blindly: another fingerprint, and no token is ever sent.
    doubting = house.start_node("doubting", "--ca-sha256", "0" * 64, token=once)
    house.await_true("it says so", lambda: "not the one that --ca-sha256 names" in doubting.tail(50))
    trusting = house.start_node("system", token=once)
    house.await_true("it says so", lambda: "certificate verify failed" in trusting.tail(50))
    assert house.one("SELECT sum(uses) FROM tokens") == 0
    house.start_node("a", "--ca-sha256", house.authority.fingerprint, token=once)
    house.await_true("a reports", lambda: house.reports("a") > 0)
    # The same key may ask again, another one may not.
    assert house.one("SELECT bound FROM join_uses").startswith("key:")


def test_certificates_from_elsewhere_name_their_nodes(postgres: Postgres) -> None:
    """The server's and the nodes' come from an authority that the operator has."""
    site = Authority(postgres.home / "site.pem")
    site.create()
    folder = postgres.home / "site"
    folder.mkdir(exist_ok=True)
    pair, _ = site.server_pair(("127.0.0.1",))
    (folder / "server.pem").write_text(pair)
    (folder / "ca.pem").write_text(site.bundle)
    extra = {"HEADROOM_TLS_CERT": str(folder / "server.pem"), "HEADROOM_TLS_KEY": str(folder / "server.pem")}
    house = TlsHouse(postgres, **extra, HEADROOM_NODES_CA=str(folder / "ca.pem"), HEADROOM_NODES_TLS="required")
    house.authority = site
    try:
        house.start_api()
        assert not (house.home / "authority.pem").exists()
        own = _named(site, house.home / "own", "a")
        other = _named(site, house.home / "other", "b")
        given = ("--ca", str(folder / "ca.pem"), "--tls-cert", str(own), "--tls-key", str(own))
        message = encode(join_message("a"))
        assert house.ask("POST", "/v1/agent/join", house.join_token("a"), other, message)[1] == "certificate-required"
        house.start_node("a", *given, token=house.join_token("a"))
        house.await_true("a reports", lambda: house.reports("a") > 0)
        assert house.ask("GET", _target("a"), house.node_token("a"), other) == (401, "certificate-foreign")
        assert house.ask("GET", _target("a"), house.node_token("a"), own) == (200, "")
        assert not house.tracebacks()
    finally:
        house.close()


def _named(authority: Authority, folder: Path, node: str) -> Path:
    """A key and a certificate that names a node and no cluster, as others' authorities sign."""
    file = _identity(authority, folder, "x", node)
    folder = folder / "ca"
    folder.mkdir()
    (folder / "ca.pem").write_text(authority.file.read_text())
    key = file.parent / "key.pem"
    asked = _program("req", "-new", "-key", str(key), "-subj", f"/CN={node}")
    (folder / "names").write_text(f"subjectAltName=DNS:{node}\n")
    ca = str(folder / "ca.pem")
    signing = ("x509", "-req", "-CA", ca, "-CAkey", ca, "-days", "1", "-extfile", str(folder / "names"))
    file.write_text(key.read_text() + _program(*signing, told=asked))
    return file


def _program(*arguments: str, told: str = "") -> str:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True, input=told).stdout


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "identity.md"


def _commands(block: str) -> list[str]:
    marked = PAGE.read_text().partition(f"<!-- {block}: run by a test -->\n```\n")[2]
    assert marked, block
    return marked.partition("```")[0].splitlines()


def test_the_pages_commands_lead_from_nothing_to_a_fleet_with_new_keys(tls_house: TlsHouse, tmp_path: Path) -> None:
    """Each line as it stands; what serves and what acts as a node goes on in the background."""
    house = tls_house
    programs = tmp_path / "bin"
    programs.mkdir()
    nursery.put_program(programs / "headroom", "app")
    house._environment["PATH"] = f"{programs}:{house._environment['PATH']}"
    del house._environment["HEADROOM_TLS"]
    work = house.home / "work"
    work.mkdir()

    def run(line: str) -> str:
        command = ["bash", "-c", f"set -e; cd {work}; {line}"]
        environment = dict(house._environment)
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120.0)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    *made, serving = _commands("fleet")
    for line in made:
        run(line)
    house._start("served", ("bash", "-c", f"cd {work}; exec {serving}"))
    house.await_true("the API serves", house.ready)
    named, token, agent = (line.replace(":8443", f":{house.port}") for line in _commands("node"))
    run(f"{named}; {token}")
    house._start("agent", ("bash", "-c", f"cd {work}; {named}; exec {agent}"))
    house.await_true("the node reports", lambda: house.reports("gpu-7") > 0)
    before = house.authorities_of("gpu-7")
    rotate, look, retire = _commands("rotation")
    told = run(rotate)
    new = house.authority.fingerprint
    assert new in told
    house.await_true("the node has changed over", lambda: new in house.authorities_of("gpu-7"), 90.0)
    assert before != {new}
    assert f"{new[:16]} signs, and signed every node's newest key" in run(f"{named}; {look}")
    assert "no more" in run(retire)
    seen = house.reports("gpu-7")
    house.await_true("the node goes on", lambda: house.reports("gpu-7") > seen)
