"""Configurations as text, and files that are whole at every moment. HAProxy itself reads them in the integration
tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.routing.haproxy import Balance, HaproxyStyle, backends
from app.routing.nginx import upstreams
from app.routing.routes import RouteServer, ServiceRoutes, write_whole
from solvers.errors import InputError

LABELS = ServiceRoutes(
    service="vision/labels",
    servers=(RouteServer(host="10.0.0.1", port=9001, weight=100), RouteServer(host="fd00::7", port=9002, weight=40)),
    ready_path="/v2/it's ready",
)
NOBODY = ServiceRoutes(service="vision/faces", servers=())


def test_a_backend_has_all_its_slots() -> None:
    text = backends([LABELS, NOBODY], HaproxyStyle(slots=3))
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith(("backend", "server"))] == [
        "backend vision:labels",
        "server slot1 10.0.0.1:9001 weight 100",
        "server slot2 [fd00::7]:9002 weight 40",
        "server slot3 127.0.0.1:1 weight 1 disabled",
        "backend vision:faces",
        "server slot1 127.0.0.1:1 weight 1 disabled",
        "server slot2 127.0.0.1:1 weight 1 disabled",
        "server slot3 127.0.0.1:1 weight 1 disabled",
    ]
    assert lines.count("balance leastconn") == lines.count("option redispatch 1") == 2
    assert lines.count("option http-server-close") == lines.count("retry-on conn-failure") == 2
    # Only the service that names a path is asked over HTTP; the other is asked for a connection.
    assert lines.count("option httpchk") == 1
    assert r"http-check send meth GET uri '/v2/it'\''s ready'" in lines


def test_too_few_slots_are_said() -> None:
    with pytest.raises(InputError, match=r"vision/labels has 2 servers, but --slots is 1"):
        backends([LABELS], HaproxyStyle(slots=1))


def test_the_better_of_two_may_be_drawn() -> None:
    assert "    balance random(2)\n" in backends([LABELS], HaproxyStyle(balance=Balance.RANDOM))
    assert "    random two least_conn;\n" in upstreams([LABELS], Balance.RANDOM)


def test_an_upstream_is_never_empty() -> None:
    text = upstreams([LABELS, NOBODY])
    assert [line.strip() for line in text.splitlines() if line.strip().startswith(("upstream", "server"))] == [
        "upstream vision.labels {",
        "server 10.0.0.1:9001 weight=100 max_fails=2 fail_timeout=2s;",
        "server [fd00::7]:9002 weight=40 max_fails=2 fail_timeout=2s;",
        "upstream vision.faces {",
        "server 127.0.0.1:1 down;",
    ]
    assert text.count("{") == text.count("}") == 2


def test_two_upstreams_of_one_name_are_refused() -> None:
    twins = [ServiceRoutes(service=name, servers=()) for name in ("a.b/c", "a/b.c")]
    with pytest.raises(InputError, match=r"a\.b/c and a/b\.c would both be the upstream a\.b\.c"):
        upstreams(twins)


def test_files_are_replaced_whole_and_only_when_they_differ(tmp_path: Path) -> None:
    path = tmp_path / "upstreams.conf"
    assert write_whole(path, "one")
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o640)
    before = path.stat().st_ino
    assert not write_whole(path, "one")
    assert path.stat().st_ino == before
    assert write_whole(path, "two")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("two", 0o640)
    assert [child.name for child in tmp_path.iterdir()] == ["upstreams.conf"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", "text")
