"""What others notice of one node, or one tenant, that sends as much as it may of what nobody should send.

A real API and PostgreSQL with the limits that everybody has; four connections of one token, each with the next body as
soon as the last was answered. Beside them another node reports and somebody lists services, five times a second each.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from agents.wire import encode
from app.store.tokens import Purpose, Role
from benchmarks.nodes import GPU_TYPE, Body, join_of
from benchmarks.stack import Stack, processor_s, running_stack
from headroom_client import Client

LONG, SHORT = 4_000_000, 60_000
SENDERS, EVERY_S = 4, 0.2
REPORTS = "/v1/agent/reports"


def filled(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


BODIES: Mapping[str, bytes] = {
    "braces": filled(b"{}", LONG),
    "braces with room": filled(b"{}" + b" " * 24, LONG),
    "records inside": filled(b'{"replicas":' + filled(b"{}", 12_000) + b"}", LONG),
    "keys": b"[{" + b",".join(b'"%d":1' % number for number in range(390_000)) + b"}]",
    "short braces": filled(b"{}", SHORT),
    "short records": filled(b'{"a":1}', SHORT),
}


def sent(stack: Stack, token: str, method: str, path: str, body: bytes | None = None) -> int:
    """The status of an answer; 0 where none came."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=60.0)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except OSError:
        return 0
    else:
        return answer.status
    finally:
        connection.close()


class Others:
    """A node that reports and somebody who looks, until told to stop; what each waited, ms."""

    def __init__(self, stack: Stack, node: str, viewer: str) -> None:
        self._stack, self._node, self._viewer = stack, node, viewer
        self._body = Body("good")
        self._stop = threading.Event()
        self.waited_ms: dict[str, list[float]] = {"a list": [], "a report": []}
        self.refused = Counter[int]()

    def run(self) -> None:
        while not self._stop.wait(EVERY_S):
            # Whole numbers of the clock: no phase repeats another's.
            report = self._body.at(int(1000 * time.time()), time.time())
            for name, ask in (
                ("a list", (self._viewer, "GET", "/v1/services")),
                ("a report", (self._node, "POST", REPORTS, report)),
            ):
                began = time.perf_counter()
                status = sent(self._stack, *ask)
                self.waited_ms[name].append(1000 * (time.perf_counter() - began))
                self.refused[status] += status != 200

    def stop(self) -> None:
        self._stop.set()


def phase(stack: Stack, others: Others, seconds: float, flood: tuple[str, str, str, bytes] | None) -> str:
    """One row of what others waited while one token sends."""
    answered, until = Counter[int](), time.monotonic() + seconds

    def keep_sending() -> None:
        while flood is not None and time.monotonic() < until:
            answered[sent(stack, *flood)] += 1

    Path(f"/proc/{stack.api_pid}/clear_refs").write_text("5")
    threads = [threading.Thread(target=others.run), *(threading.Thread(target=keep_sending) for _ in range(SENDERS))]
    spent_s = processor_s(stack.api_pid)
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    time.sleep(max(0.0, until - time.monotonic()))
    others.stop()
    threads[0].join()
    waited = [f"{statistics.median(each):.0f} | {max(each):.0f}" for each in others.waited_ms.values()]
    told = ", ".join(f"{count} × {status}" for status, count in sorted(answered.items()))
    refused = sum(others.refused.values())
    spent = (processor_s(stack.api_pid) - spent_s) / seconds
    return f"{told} | {' | '.join(waited)} | {refused} | {spent:.2f} | {_peak_mib(stack.api_pid)}"


def _peak_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_sender", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each kind of body; default: 8")
    seconds = parser.parse_args().seconds
    with running_stack() as stack:
        with Client(stack.server, stack.admin_token) as client:
            client.put("gpu-type", GPU_TYPE)
        with Client(stack.server, stack.token(Role.AGENT, Purpose.JOIN)) as client:
            nodes = {
                name: client.call("POST", "/v1/agent/join", json=encode(join_of(name))).body["token"]
                for name in ("bad", "good")
            }
        viewer, tenant = stack.token(Role.VIEWER), stack.token(Role.OPERATOR)
        print(
            "| sent | answered | a list: median, ms | most | a report: median, ms | most | refused | API, cores | MiB |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        print(f"| nothing | {phase(stack, Others(stack, nodes['good'], viewer), seconds, None)} |")
        for name, body in BODIES.items():
            for who, token, way in (
                ("node", nodes["bad"], ("POST", REPORTS)),
                ("tenant", tenant, ("PUT", "/v1/services/default/x")),
            ):
                row = phase(stack, Others(stack, nodes["good"], viewer), seconds, (token, *way, body))
                print(f"| {name}, by a {who} | {row} |", flush=True)


if __name__ == "__main__":
    main()
