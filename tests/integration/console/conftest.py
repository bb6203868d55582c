"""A control plane that serves a small fleet, and Debian's browser in front of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from app import kinds
from app.store import plans
from app.store.engine import Database
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import Lane
from solvers.domain.ids import PolicyName
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from tests import builders
from tests.integration.api.filled import FOREIGN_REPLICA, OWN_REPLICA, fill
from tests.integration.api.provider import CLIENT, ROLES, SECRET, Provider
from tests.integration.api.world import CLUSTER, DEVICE, FOREIGN, NODE, OWN, build_world
from tests.integration.api.writing import Written, writing
from tests.integration.console.visitor import Entrance
from tests.integration.faults.house import House, Postgres

WORK = (f"{OWN}/{builders.job().name}", f"{FOREIGN}/{builders.task().name}")
REPLICAS = {OWN_REPLICA: "service", FOREIGN_REPLICA: "service", f"{WORK[0]}#0": "job", f"{WORK[1]}#0": "task"}
LONG = "recommendations-for-customers-who-come-back-2"
UNUSED = (
    # What Playwright switches off, for there is one such list.
    *("AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay"),
    *("MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch"),
    "ThirdPartyStoragePartitioning",
    # A process that waits for the next window, which is another site's or another visitor's as often as not.
    "SpareRendererForSitePerProcess",
    # Two pages of the browser's own address bar behind every window: a third of what it costs.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),
)


@dataclass(frozen=True, slots=True)
class Served:
    """A console that runs in a process of its own, and everybody's tokens."""

    house: House
    tokens: dict[str, str]
    provider: Provider
    written: Written
    """By the node's workers."""
    database: Database
    made: list[Plan] = field(default_factory=list)

    def waits(self) -> str:
        """The id of a plan that waits for approval: another one each time, as a planner would find it anew."""
        with self.database.transaction() as session:
            if not self.made:
                with self.house.client(self.tokens["operator"]) as client:
                    self.made.append(plans.load(session, client.plan({"lane": "act"})["id"]))
            self.made.append(replace(self.made[0], seed=self.made[-1].seed + 1))
            new = NewPlan(
                plan=self.made[-1], lane=Lane.APPROVE, state=PlanState.AWAITING_APPROVAL, created_by="planner",
                matter=f"matter {len(self.made)}", waits_s=900.0,
            )  # fmt: skip
            return plans.put(session, new).id


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The API as `headroom serve` starts it, over a fleet that stays as it is for as long as the tests take."""
    postgres = Postgres()
    # Another site than the console: browsers keep cookies apart as they do between organisations.
    provider = Provider("localhost")
    try:
        with closing(House(postgres, {"HEADROOM_CLUSTER": CLUSTER})) as house:
            tokens = _filled(house.url)
            secret = house.home / "oidc"
            secret.write_text(SECRET)
            house.start_api(
                oidc_issuer=provider.issuer, oidc_client=CLIENT, oidc_secret_file=str(secret), oidc_roles=ROLES,
                public_url=house.address,
            )  # fmt: skip
            house.change(f"INSERT INTO told_replicas VALUES {', '.join(map(_told, REPLICAS.items()))}")
            with writing(house.address, tokens[NODE]) as written:
                written.lines = ["started", "ready"]
                database = Database(house.url, pool_size=1)
                yield Served(house, tokens, provider, written, database)
                database.dispose()
    finally:
        provider.end()
        postgres.end()


def _told(item: tuple[str, str]) -> str:
    replica, kind = item
    workload = replica.partition("#")[0]
    return f"('{NODE}', '{DEVICE}', '{replica}', '{kind}', '{workload}', 'm', 9, 9, NULL)"


def _filled(url: str) -> dict[str, str]:
    database = Database(url, pool_size=4)
    world = build_world(database)
    world.put(kinds.POLICY, Policy(name=PolicyName("default"), planners=("greedy",), device_silent_after_s=3600.0))
    fill(world)
    world.put(kinds.SERVICE, builders.service(LONG, project=OWN))
    world.client.close()
    database.dispose()
    return world.secrets


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven from here: nothing is downloaded."""
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("no chromium on the path: run `apt-get install chromium`, for the console is tested by it", False)
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        terms = [f"--disable-features={','.join(UNUSED)}"]
        opened = playwright.chromium.launch(executable_path=program, timeout=120_000, args=terms)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def known() -> dict[str, BrowserContext]:
    """Who is signed in, by token."""
    return {}


@pytest.fixture
def entrance(browser: Browser, served: Served, known: dict[str, BrowserContext]) -> Iterator[Entrance]:
    """Windows to the console; nothing may go wrong in any of them."""
    opened = Entrance(browser, served.house.address, known)
    yield opened
    opened.close()
