"""The authority's file, what it signs, and what it does not."""

from __future__ import annotations

import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from app.authority import Authority, Presented, own_names, presented, request_digest
from app.errors import FieldsError
from solvers.errors import InputError, StateError

DAY_S = 86_400.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "home" / "authority.pem")
    assert made.create()
    return made


def _request(tmp_path: Path, *kind: str) -> str:
    key = kind or ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    command = ["openssl", "req", "-new", "-newkey", *key, "-nodes", "-keyout", str(tmp_path / "key.pem")]
    done = subprocess.run([*command, "-subj", "/CN=whoever/O=they say"], check=True, capture_output=True, text=True)
    return done.stdout


def _read(pem: str) -> Presented:
    return presented(ssl.PEM_cert_to_DER_cert(pem))


def test_its_file_is_its_owners_and_made_once(authority: Authority) -> None:
    assert stat.S_IMODE(authority.file.stat().st_mode) == 0o600
    before = authority.file.read_bytes()
    assert not authority.create()
    assert authority.file.read_bytes() == before
    assert [item.name for item in authority.file.parent.iterdir()] == ["authority.pem"]


def test_of_processes_that_start_at_once_one_makes_it(tmp_path: Path) -> None:
    file, start = tmp_path / "authority.pem", threading.Barrier(8)
    made: list[bool] = []
    seen: list[str] = []

    def begin() -> None:
        one = Authority(file)
        start.wait(30.0)
        made.append(one.create())
        seen.append(one.fingerprint)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(made) == [False] * 7 + [True]
    assert len(set(seen)) == 1


def test_a_node_is_named_by_who_signs_and_not_by_who_asks(authority: Authority, tmp_path: Path) -> None:
    asked = _request(tmp_path)
    signed = authority.sign_node(asked, "gpu-7", "cluster-1", DAY_S)
    said = _read(signed.certificate)
    assert (said.names, said.address) == ({"gpu-7"}, "headroom://cluster-1/nodes/gpu-7")
    assert said.key == signed.key == request_digest(asked)
    assert said.expires_at_s == pytest.approx(signed.expires_at.timestamp(), abs=1.0)


@pytest.mark.parametrize(
    ("purpose", "is_good"), [("sslclient", True), ("sslserver", False)], ids=["as a node", "as a server"]
)
def test_a_nodes_certificate_serves_nobody(
    authority: Authority, tmp_path: Path, purpose: str, *, is_good: bool
) -> None:
    file = tmp_path / "node.pem"
    file.write_text(authority.sign_node(_request(tmp_path), "gpu-7", "cluster-1", DAY_S).certificate)
    assert _verified(authority.bundle, file, tmp_path, purpose) is is_good


def _verified(trusted: str, file: Path, tmp_path: Path, purpose: str) -> bool:
    (tmp_path / "trusted.pem").write_text(trusted)
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(tmp_path / "trusted.pem")]
    return subprocess.run([*command, "-untrusted", file, file], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "csr", ["", "nothing", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "\x00"]
)
def test_what_is_no_request_is_refused(authority: Authority, csr: str) -> None:
    with pytest.raises(FieldsError) as caught:
        authority.sign_node(csr, "a", "c", DAY_S)
    assert caught.value.faults[0].pointer == "/csr"


def test_a_request_must_be_signed_by_a_strong_key_of_its_own(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(FieldsError, match="2,048"):
        authority.sign_node(_request(tmp_path, "rsa:1024"), "a", "c", DAY_S)
    lines = _request(tmp_path).splitlines()
    changed = "B" if lines[-2][5] != "B" else "C"
    lines[-2] = lines[-2][:5] + changed + lines[-2][6:]
    with pytest.raises(FieldsError):
        authority.sign_node("\n".join(lines), "a", "c", DAY_S)


def test_a_rotation_is_believed_by_who_knows_the_old_alone(authority: Authority, tmp_path: Path) -> None:
    old, fingerprint = authority.bundle, authority.fingerprint
    node = tmp_path / "node.pem"
    node.write_text(authority.sign_node(_request(tmp_path), "a", "c", DAY_S).certificate)
    authority.rotate()
    assert authority.fingerprint != fingerprint
    assert authority.bundle.endswith(old)
    assert authority.bundle != old
    served = tmp_path / "server.pem"
    served.write_text(authority.server_pair(own_names("", "127.0.0.1"))[0])
    assert _verified(old, served, tmp_path, "sslserver")
    assert _verified(authority.bundle, node, tmp_path, "sslclient")
    with pytest.raises(StateError, match="retire"):
        authority.rotate()
    # Another process reads what this one wrote.
    other = Authority(authority.file)
    assert (authority.retire(), authority.retire()) == (1, 0)
    assert other.fingerprint == authority.fingerprint
    assert other.bundle.count("BEGIN CERTIFICATE") == 1
    served.write_text(other.server_pair(("localhost",))[0])
    assert not _verified(old, served, tmp_path, "sslserver")
    assert not _verified(other.bundle, node, tmp_path, "sslclient")
    assert _verified(other.bundle, served, tmp_path, "sslserver")


@pytest.mark.parametrize("content", ["", "nothing", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_none_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "authority.pem"
    with pytest.raises(InputError, match="cannot read"):
        _ = Authority(file).bundle
    file.write_text(content)
    with pytest.raises(InputError, match="not an authority"):
        _ = Authority(file).fingerprint


def test_a_server_is_called_as_it_is_told_or_as_its_host() -> None:
    assert own_names("a.example, 10.0.0.5", "0.0.0.0") == ("a.example", "10.0.0.5")
    assert {"localhost", "127.0.0.1", "10.0.0.7"} <= set(own_names("", "10.0.0.7"))
    assert "0.0.0.0" not in own_names("", "0.0.0.0")
