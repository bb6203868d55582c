"""The rooms of a local control plane as real processes: embedded or named database, API, planner, agents, traffic.

Secrets travel in the environment or lie in files of mode 0600; none is on a command line, which every user of the
machine can read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from agents.wire import NodeTarget, decode
from app.client.connection import Connection, read_connection, write_connection
from app.demo.fleet import GATEWAY, NODES, DemoNode, is_blank, seed
from app.demo.home import Home
from app.demo.process import ChildSpec
from app.settings import Settings
from headroom_client import ApiError, Client, UnreachableError
from solvers.errors import InvariantError, StateError

DEMO_PACE = {"HEADROOM_REPORT_INTERVAL_S": "1", "HEADROOM_RETENTION_RAW_DAYS": "1"}
"""A demo is watched from close by and for a short time; what the user's environment says goes before."""
LAUNCH_FASTER = 10
"""Simulated processes start this much faster, so that nobody waits for the first plan; a day goes 24 times faster."""
API_FINISH_S = 25.0
"""More than an API process takes for what it has begun when it is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    settings: Settings
    demo: bool = True


def address_of(settings: Settings, scheme: str = "http") -> str:
    """Where a browser on this machine finds an API that listens as these settings say."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"{scheme}://[{host}]:{settings.port}" if ":" in host else f"{scheme}://{host}:{settings.port}"


class LocalRooms:
    """Everything that the supervisor does not do itself. Each call blocks until done, or raises HeadroomError."""

    def __init__(self, order: Order, home: Home, noticed: Callable[[str], object]) -> None:
        """`noticed` hears what migrations leave undone."""
        self._settings: Settings = order.settings
        self._demo = order.demo
        self._home = home
        self._noticed = noticed
        self._agents = home.path / "agents"
        self._address = address_of(order.settings)
        self._client: Client | None = None
        self._anchor_s = time.time()

    # -- database -----------------------------------------------------------------------------------------------------

    def database(self) -> str:
        """The URL of the named database, or of the embedded one, which is started where needed."""
        if self._settings.database_url:
            return self._settings.database_url
        from app.store.embedded import embedded_url

        return embedded_url(self._home.path)

    def stop_database(self) -> None:
        """Stop the embedded database; a named one is not ours."""
        if not self._settings.database_url:
            from app.store.embedded import stop_embedded

            stop_embedded(self._home.path)

    def migrate(self, url: str) -> None:
        from app.store.migrate import upgrade

        upgrade(url, told=self._noticed)
        if self._demo:
            self._require_history(url)

    def _require_history(self, url: str) -> None:
        """Raise StateError where a node would refuse what this database tells, as after another was put there."""
        from app.store import targets
        from app.store.engine import Database

        database = Database(url, pool_size=1)
        try:
            standing = database.read(targets.standing, self._settings.cluster)
        finally:
            database.dispose()
        for held in self._held():
            if held.cluster_id not in (None, standing.cluster_id):
                raise StateError(
                    f"{held.node} belongs to cluster {held.cluster_id}, which this database is not of: put that one's"
                    f" back, or move {self._agents} away for nodes that are new"
                )
            if not standing.succeeds(held):
                raise StateError(
                    f"{held.node} holds generation {held.generation}, this database is older, at {standing.generation}:"
                    " for nodes to follow what was restored, `headroom restore --new-epoch`, then `headroom up`"
                )

    def _held(self) -> Iterator[NodeTarget]:
        """What nodes hold since they ran last. What cannot be read is for them to tell."""
        for node in NODES:
            with suppress(OSError, ValueError):
                yield decode(NodeTarget, json.loads((self._agents / node.name / "target.json").read_text()))

    def admit(self, url: str, address: str) -> None:
        """Make sure of the tokens, keeping those of earlier runs that are still good."""
        from app.demo.tokens import ensure_tokens
        from app.services.declared.tokens import TokenRequest
        from app.store.tokens import Purpose, Role

        stored = read_connection(self._home.path)
        held = {
            "admin": stored.token if stored else None,
            "join": self._home.read_secret("join"),
            "gateway": self._home.read_secret("gateway"),
        }
        wanted = {
            "admin": TokenRequest(name="administrator of headroom up", role=Role.ADMIN),
            "join": TokenRequest(name="simulated nodes", role=Role.AGENT, purpose=Purpose.JOIN),
            "gateway": TokenRequest(name="traffic", role=Role.AGENT, purpose=Purpose.GATEWAY, subject=GATEWAY),
        }
        secrets = ensure_tokens(url, wanted, held)
        write_connection(self._home.path, Connection(server=address, token=secrets["admin"]))
        self._home.write_secret("join", secrets["join"])
        self._home.write_secret("gateway", secrets["gateway"])
        self._client = Client(address, secrets["admin"])

    # -- processes ----------------------------------------------------------------------------------------------------

    def api(self) -> ChildSpec:
        return ChildSpec(
            name="api",
            command=(sys.executable, "-P", "-m", "app", "serve"),
            environment={
                **self._server_environment(),
                "HEADROOM_HOST": self._settings.host,
                "HEADROOM_PORT": str(self._settings.port),
            },
            stop_deadline_s=self._settings.drain_s + API_FINISH_S,
        )

    def planner(self) -> ChildSpec:
        command = (sys.executable, "-P", "-m", "app", "planner")
        return ChildSpec(name="planner", command=command, environment=self._server_environment())

    def agents(self) -> tuple[ChildSpec, ...]:
        return tuple(self._agent(node) for node in NODES)

    def traffic(self) -> ChildSpec:
        """`headroom traffic`, whose day began with this supervisor, also after a restart of the process."""
        return ChildSpec(
            name="traffic",
            command=(
                sys.executable,
                "-P",
                "-m",
                "app",
                "traffic",
                "--gateway",
                GATEWAY,
                "--anchor-s",
                f"{self._anchor_s:.3f}",
            ),
            environment={
                "HEADROOM_HOME": str(self._home.path),
                "HEADROOM_SERVER": self._address,
                "HEADROOM_TOKEN": self._secret("gateway"),
            },
        )

    def _agent(self, node: DemoNode) -> ChildSpec:
        return ChildSpec(
            name=f"agent-{node.name}",
            command=(
                *(sys.executable, "-P", "-m", "agents", "--server", self._address),
                *("--node", node.name, "--devices", "fake:" + ",".join(node.gpus)),
                *("--state-dir", str(self._agents / node.name), "--listen", "127.0.0.1:0"),
                *("--rack", node.rack, "--failure-domain", node.failure_domain, "--time-factor", str(LAUNCH_FASTER)),
            ),
            environment={"HEADROOM_TOKEN": self._secret("join")},
        )

    def _server_environment(self) -> dict[str, str]:
        # Without a URL every process finds, or starts, the embedded server under this home by itself.
        pace = {name: text for name, text in DEMO_PACE.items() if self._demo and name not in os.environ}
        return {"HEADROOM_HOME": str(self._home.path), "HEADROOM_DATABASE_URL": self._settings.database_url, **pace}

    def _secret(self, name: str) -> str:
        secret = self._home.read_secret(name)
        if secret is None:
            raise InvariantError(f"the {name} token was not written")
        return secret

    # -- over HTTP ----------------------------------------------------------------------------------------------------

    def api_ready(self) -> bool:
        return self._api().ready()

    def seed(self) -> None:
        """Declare the demo's documents into a blank control plane, and finish a seeding that was cut short."""
        mark = self._home.path / "demo.seeded"
        if mark.exists() and not is_blank(self._api()):
            return
        seed(self._api())
        mark.touch()

    def first_plan_applied(self) -> bool:
        """Whether every demo node lately reported a generation and none is behind the target."""
        try:
            fleet = self._api().fleet()
        except (ApiError, UnreachableError):
            return False
        applied = {node["id"]: node["generation_applied"] for node in fleet["nodes"] if node["up"]}
        generation = fleet["generation"]
        return generation > 0 and all(applied.get(node.name, 0) >= generation for node in NODES)

    def _api(self) -> Client:
        if self._client is None:
            raise InvariantError("tokens come before calls")
        return self._client
