"""How long after a load has jumped the target has room for it: real requests to a real HAProxy, counted by `headroom
routes follow haproxy`, planned for by a running `headroom up`.

python -m benchmarks.jump --home FOLDER [--jumps 8]

FOLDER is where `headroom up` runs. Services of their own jump to ten times what they were asked for, one after the
other, each at a moment of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.client.connection import read_connection
from app.routing.haproxy import HaproxyStyle, backends
from app.routing.routes import ServiceRoutes, label_of
from benchmarks.gateway.processes import await_true, following, running_haproxy
from headroom_client import Client
from tests.ports import free_port

CALM_RPS, JUMPED_RPS, ROOM_RPS = 20.0, 200.0, 180.0
SETTLE_S, SOON_S = 40.0, 15.0
GIVE_UP_S = 120.0
LOOK_S = 0.1
FRONT = """
frontend jumps
    bind 127.0.0.1:{port}
    use_backend %[path,field(2,/)]
"""


async def ask(port: int, service: str, rates_rps: Mapping[str, float]) -> None:
    """Requests of one service over one connection, as many as its rate says by now."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET /{label_of(service)} HTTP/1.1\r\nHost: jump\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    try:
        while True:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head:
                raise RuntimeError(head.decode())
            due_s += 1.0 / rates_rps[service]
            await asyncio.sleep(max(0.0, due_s - loop.time()))
    finally:
        writer.close()


def room_rps(client: Client, service: str) -> float:
    """What the target has for a service."""
    target = client.call("GET", "/v1/targets/current").body
    return sum(each["capacity_rps"] for each in target["assignments"] if each["workload"] == service)


async def took_s(client: Client, service: str, rates_rps: dict[str, float]) -> float:
    """One jump."""
    began_s = time.monotonic()
    rates_rps[service] = JUMPED_RPS
    while await asyncio.to_thread(room_rps, client, service) < ROOM_RPS:
        if time.monotonic() - began_s > GIVE_UP_S:
            raise TimeoutError(f"no room for {service} after {GIVE_UP_S:g} s")
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - began_s


async def jump(client: Client, port: int, services: Sequence[str]) -> list[float]:
    """All of them, each while the others go on."""
    rates_rps = dict.fromkeys(services, CALM_RPS)
    users = [asyncio.create_task(ask(port, service, rates_rps)) for service in services]
    moments, found = random.Random(1), []
    try:
        await asyncio.sleep(SETTLE_S)
        for service in services:
            await asyncio.sleep(SOON_S * (1.0 + moments.random()))
            before_rps = await asyncio.to_thread(room_rps, client, service)
            if before_rps >= ROOM_RPS:
                raise RuntimeError(f"{service} has room for {before_rps:.0f} requests/s before it jumps")
            found.append(await took_s(client, service, rates_rps))
            print(f"{service}: room for {before_rps:.0f} requests/s before, for the jump after {found[-1]:.2f} s")
    finally:
        for user in users:
            user.cancel()
    return found


def main() -> None:
    """Everything, once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--jumps", type=int, default=8)
    args = parser.parse_args()
    connection = read_connection(args.home / ".headroom")
    if connection is None:
        raise SystemExit(f"no `headroom up` in {args.home}")
    services = [f"jump/s{number}" for number in range(args.jumps)]
    with tempfile.TemporaryDirectory() as folder, Client(connection.server, connection.token) as client:
        client.call("PUT", "/v1/projects/jump", json={"name": "jump"})
        for service in services:
            spec = {
                "project": "jump",
                "name": service.removeprefix("jump/"),
                "model": "resnet50",
                "slo": {"kind": "latency", "latency_ms": 150},
                "rate_rps_declared": CALM_RPS,
            }
            client.call("PUT", f"/v1/services/{service}", json=spec)
        await_true(lambda: all(room_rps(client, service) > 0.0 for service in services), "a first plan", GIVE_UP_S)
        port = free_port()
        rendered = backends([ServiceRoutes(service=service, servers=()) for service in services], HaproxyStyle(slots=8))
        for service in services:
            # It answers itself; what is asked for is counted all the same.
            head = f"backend {label_of(service)}\n"
            rendered = rendered.replace(head, f"{head}    http-request return status 200\n")
        told = {"HEADROOM_SERVER": connection.server, "HEADROOM_TOKEN": connection.token}
        names = [word for service in services[1:] for word in ("--service", service)]
        front = FRONT.format(port=port)
        with (
            running_haproxy(Path(folder), rendered + front, label_of(services[0])) as gateway,
            following(gateway, services[0], told, [*names, "--gateway", "jumps"]),
        ):
            found = asyncio.run(jump(client, port, services))
    print(f"{len(found)} jumps: median {statistics.median(found):.2f} s, longest {max(found):.2f} s")


if __name__ == "__main__":
    main()
