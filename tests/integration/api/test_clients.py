"""`Client` and `AsyncClient` before a real server, over real sockets: the same answers, errors and streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from app import kinds
from headroom_client import ApiError, AsyncClient, Client, UnreachableError
from tests import builders
from tests.integration.api.filled import fill
from tests.integration.api.serving import serving
from tests.integration.api.world import NODE, OWN, World

pytestmark = pytest.mark.integration
READS = ("fleet", "target", "costs", "budget_forecasts", "health", "ready", "focus")


def refused(error: ApiError) -> tuple[Any, ...]:
    return (error.status, error.code, error.message, error.pointers)


def test_whoever_awaits_finds_what_whoever_waits_does(world: World) -> None:
    fill(world)
    for number in range(5):
        world.put(kinds.SERVICE, builders.service(f"more-{number}", project=OWN))
    bad = {"project": OWN, "name": "bad", "model": "nobody", "rate_rps_declared": -1}

    async def awaits(address: str, waits: Client) -> None:
        async with AsyncClient(address, world.secrets["admin"]) as client:
            answers = await asyncio.gather(*(getattr(client, name)() for name in READS))
            for name, answer in zip(READS, answers, strict=True):
                found = getattr(waits, name)()
                assert type(answer) is type(found), name
                assert name in ("fleet", "costs", "budget_forecasts") or answer == found, name
            listed = [item["name"] async for item in client.items("services", limit=2)]
            assert listed == [item["name"] for item in waits.items("services", limit=2)]
            assert len(listed) == 7
            with pytest.raises(ApiError) as theirs:
                await client.put("service", bad)
            with pytest.raises(ApiError) as ours:
                waits.put("service", bad)
            assert refused(theirs.value) == refused(ours.value)
            standing = await client.get("node", NODE)
            written = await client.patch("node", [NODE], {"rack": "r9"}, if_match=standing.etag)
            assert (written.status, waits.get("node", NODE).body["rack"]) == (200, "r9")
            with pytest.raises(ApiError) as stale:
                await client.patch("node", [NODE], {"rack": "r8"}, if_match=standing.etag)
            assert stale.value.status == 412
            async with aclosing(client.watch_routes()) as routes:
                assert await anext(routes) == next(waits.watch_routes())
            with pytest.raises(ApiError) as nobody:
                await anext(client.logs(OWN, "nobody"))
            assert nobody.value.status == 404

    with serving(world) as (port, _), Client(f"http://127.0.0.1:{port}", world.secrets["admin"]) as waits:
        asyncio.run(awaits(waits.server, waits))


def test_nobody_there_is_told_to_whoever_awaits() -> None:
    async def awaits() -> None:
        async with AsyncClient("http://127.0.0.1:9", "t", attempts_max=1) as client:
            assert await client.ready() is False
            with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1:9"):
                await client.fleet()

    asyncio.run(awaits())
