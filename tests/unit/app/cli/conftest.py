"""A control plane made of canned answers, and the command line run against it in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.program import run
from headroom_client import Client

SERVER = "http://control.test"


@dataclass
class Api:
    """Answers by method and path; what is asked is remembered."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        found = self.answers.get(f"{request.method} {request.url.path}")
        if isinstance(found, httpx.Response):
            return found
        if isinstance(found, BaseException):
            raise found
        if found is None:
            problem = {"status": 404, "code": "not-found", "detail": f"nothing at {request.url.path}"}
            return httpx.Response(404, json=problem)
        return httpx.Response(200, json=found, headers={"ETag": '"1"'})

    def body(self, index: int = -1) -> Any:
        """What was sent."""
        return json.loads(self.asked[index].content)


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Headroom = Callable[..., Said]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    made = Api()
    monkeypatch.setenv("HEADROOM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADROOM_SERVER", SERVER)
    monkeypatch.setenv("HEADROOM_TOKEN", "secret")
    transport = httpx.MockTransport(made)
    monkeypatch.setattr("app.cli.options.Client", partial(Client, transport=transport, attempts_max=1))
    return made


@pytest.fixture
def headroom(capsys: pytest.CaptureFixture[str]) -> Headroom:
    def command(*arguments: str) -> Said:
        status = run(arguments)
        captured = capsys.readouterr()
        return Said(int(status), captured.out, captured.err)

    return command


def page(*items: Any) -> dict[str, Any]:
    """A list's only page."""
    return {"items": list(items), "next_cursor": None}


class Served:
    """A server of this machine, for commands in processes of their own: what it was asked, and answers by path."""

    def __init__(self) -> None:
        asked, answers = self.asked, self.answers = list[str](), dict[str, Any]()

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answers.get(self.path.partition("?")[0], page())).encode())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Not to standard error."""

        self.server = HTTPServer(("127.0.0.1", 0), Answers)
        self.port = self.server.server_port


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()
