"""`Client` and `AsyncClient` before a real server, over real sockets: the same answers, errors and streams."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import venv
from contextlib import aclosing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder

from app import kinds
from headroom_client import ApiError, AsyncClient, Client, UnreachableError
from tests import builders
from tests.integration.api.filled import fill
from tests.integration.api.serving import serving
from tests.integration.api.world import NODE, OWN, World

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[3]
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


OWN_PROJECT = {
    "app/__init__.py": 'NAME = "mine"\n',
    "app/main.py": """
import asyncio
import sys

import app
import headroom_client
from headroom_client import AsyncClient, Client


def waits(server: str, token: str) -> str | None:
    with Client(server, token) as client:
        return client.get("node", "a").etag


async def awaits(server: str, token: str) -> str | None:
    async with AsyncClient(server, token) as client:
        return (await client.get("node", "a")).etag


print(app.NAME, headroom_client.__file__, waits(*sys.argv[1:]), asyncio.run(awaits(*sys.argv[1:])), sep="\\n")
""",
    "wrong.py": """
from headroom_client import AsyncClient, Client


async def wrong(waits: Client, awaits: AsyncClient) -> None:
    one: int = waits.get("node", "a")
    other: int = await awaits.get("node", "a")
    waits.get(1)
""",
    "mypy.ini": "[mypy]\nstrict = true\n[mypy-httpx.*]\nfollow_imports = skip\n",
}
NEEDED = ("httpx", "httpcore", "h11", "anyio", "certifi", "idna", "typing_extensions.py")


def test_the_clients_wheel_leaves_a_projects_own_app_alone(world: World, tmp_path: Path) -> None:
    """In an environment that has the wheel and httpx, and nothing else."""

    def ran(*words: str, folder: Path = tmp_path) -> tuple[int, list[str]]:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        (wheel,) = WheelBuilder(str(ROOT / "headroom_client")).build(directory=str(tmp_path))
    venv.create(tmp_path / "venv", with_pip=False)
    python, here = str(tmp_path / "venv/bin/python"), Path(httpx.__file__).parents[1]
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet")
    assert ran(*pip, "--no-deps", "--no-index", wheel) == (0, [])
    assert Path(wheel).name.endswith("-py3-none-any.whl")
    (folder,) = (tmp_path / "venv/lib").glob("*/site-packages")
    for name in NEEDED:
        (folder / name).symlink_to(here / name)
    for name, text in OWN_PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    fill(world)
    with serving(world) as (port, _):
        status, told = ran(python, "-m", "app.main", f"http://127.0.0.1:{port}", world.secrets["admin"])
    assert (status, told[:2]) == (0, ["mine", str(folder / "headroom_client/__init__.py")]), told
    assert told[2] == told[3] != "None"
    checked = (sys.executable, "-m", "mypy", "--python-executable", python, "--no-incremental", "app", "wrong.py")
    status, told = ran(*checked)
    faults = [(line.partition(":")[0], line.rpartition("  ")[2]) for line in told if ": error: " in line]
    assert faults == [("wrong.py", "[assignment]")] * 2 + [("wrong.py", "[arg-type]")], told


def test_nobody_there_is_told_to_whoever_awaits() -> None:
    async def awaits() -> None:
        async with AsyncClient("http://127.0.0.1:9", "t", attempts_max=1) as client:
            assert await client.ready() is False
            with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1:9"):
                await client.fleet()

    asyncio.run(awaits())
