"""What looking at a large fleet costs one API and its viewers: pages, a real browser's first paint and keys, and
streams while nothing changes and while a rate does.

    python -m benchmarks.viewing [--nodes 625] [--services 500] [--viewers 20] [--seconds 60]

The fleet stands still: every device and replica has reported once, and half of the devices hold two replicas of a plan
that was promoted. Processor time is the API process's, all of its threads, where nothing else is named; the browser's
is its main thread's. Bytes are those of bodies. A key lasts until what it changed is painted, as Chromium counts it, in
steps of 8 ms.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import httpx
import psycopg
from playwright.sync_api import sync_playwright

from app import kinds
from app.services.declared.documents import put_audited
from app.services.declared.sign_ins import SignIns
from app.services.declared.tokens import Deed, Tokens
from app.store import ingest, plans, targets
from app.store.documents import Precondition
from app.store.engine import Database, libpq_url
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from app.store.tokens import Role
from benchmarks.nodes import DEVICES, GPU_TYPE, report_of
from benchmarks.overload import make_nodes
from benchmarks.stack import Stack, processor_s, running_stack
from headroom_client import Client
from solvers.cycle.record import Lane
from solvers.domain.codec import digest
from solvers.domain.device import Device
from solvers.domain.ids import DeviceId, GpuTypeName, NodeId, PolicyName
from solvers.domain.policy import Policy
from tests import builders
from tests.integration.store import plans as stored

CLUSTER = "default"
TOPICS = ("fleet,services,cycles", "services", "devices,nodes", "services,cycles")
"""Of the pages that people leave open."""
PAGES = (
    "/", "/services", "/services/default/service-1", "/plans", "/fleet", "/nodes/bench-1", "/costs", "/what-if",
    "/docs",
)  # fmt: skip
TIMES = 3
STATIC = Path(str(files("app.api.console").joinpath("static")))
KEYS = ("Tab",) * 6 + ("ArrowDown", "ArrowUp", "Escape")
TYPED = "service-1"
_WATCH = """() => { window.worst = 0; new PerformanceObserver((seen) => {
  for (const one of seen.getEntries()) { if (one.name.startsWith("key") && one.duration > worst) worst = one.duration; }
}).observe({type: "event", durationThreshold: 16}); }"""
_PAINT = """() => new Promise((done) => new PerformanceObserver((seen) => {
  for (const one of seen.getEntriesByName("first-contentful-paint")) done(one.startTime);
}).observe({type: "paint", buffered: true}))"""


def fill(stack: Stack, nodes: int, services: int) -> None:
    """A fleet that reported once, with a plan that stands."""
    with Client(stack.server, stack.admin_token) as client:
        client.put("gpu-type", GPU_TYPE)
    make_nodes(stack, nodes)
    database = Database(stack.url)
    deed = Deed(actor="benchmark")
    with database.transaction() as session:
        policy = Policy(name=PolicyName("default"), device_silent_after_s=36_000.0)
        put_audited(session, kinds.POLICY, policy, Precondition(), deed)
        for number in range(services):
            service = builders.service(f"service-{number}", project="default")
            put_audited(session, kinds.SERVICE, service, Precondition(), deed)
    assignments = []
    for number in range(1, nodes + 1):
        node = f"bench-{number}"
        report = report_of(node, 1, time.time())
        own = []
        for at, item in enumerate(report.replicas):
            device, slot = divmod(at, len(report.replicas) // DEVICES)
            name = f"default/service-{(number * DEVICES + device * 2 + slot) % services}"
            if slot < 2 and device % 2 == 0:
                own.append(replace(item, replica=f"{name}#{number}-{device}", workload=name))
                on = Device(
                    id=DeviceId(item.uuid), node=NodeId(node), gpu_type=GpuTypeName("t4"), index=device,
                    memory_mib=15360, sm_count=40,
                )  # fmt: skip
                assignments.append(builders.assignment(own[-1].replica, on, share_pct_sm=item.share_pct_sm))
        with database.raw() as connection:
            ingest.ingest(connection, [replace(report, replicas=tuple(own))])
    plan = replace(stored.plan(), assignments=tuple(assignments))
    with database.transaction() as session:
        plans.put(session, NewPlan(plan=plan, lane=Lane.ACT, state=PlanState.PROPOSED, created_by="benchmark"))
        wish = Promotion(
            cluster=CLUSTER, plan_id=digest(plan), parent_generation=0, promoted_by="benchmark", node_documents={}
        )
        targets.promote(session, wish)
    database.dispose()
    with psycopg.connect(libpq_url(stack.url), autocommit=True) as connection:
        connection.execute("ANALYZE")


class Viewer(threading.Thread):
    """One stream that is read to its end."""

    def __init__(self, stack: Stack, token: str, topics: str) -> None:
        super().__init__(daemon=True)
        self._where = f"{stack.server}/v1/events/stream?topics={topics}", {"Authorization": f"Bearer {token}"}
        self.received = 0
        self.heard: dict[str, float] = {}
        """When a rate was heard of first."""
        self.begun = self.ended = False

    def run(self) -> None:
        """Read until told to end."""
        address, headers = self._where
        with httpx.stream("GET", address, headers=headers, timeout=None) as answer:
            for line in answer.iter_lines():
                self.received += len(line) + 1
                if self.ended:
                    return
                self.begun = self.begun or line.startswith("data: ")
                if line.startswith("data: ") and '"rate_rps"' in line and '"whole"' not in line:
                    for fields in json.loads(line[6:])["set"].values():
                        self.heard.setdefault(f"{fields.get('rate_rps')}", time.monotonic())


def watched(stack: Stack, viewers: int, seconds: float) -> Iterator[str]:
    """What viewers cost while nothing changes, and how soon they hear of a rate."""
    made = [stack.token(Role.VIEWER) for _ in range(1 + viewers // 16)]
    open_ = [Viewer(stack, made[at % len(made)], TOPICS[at % len(TOPICS)]) for at in range(viewers)]
    for viewer in open_:
        viewer.start()
    deadline_s = time.monotonic() + 120
    while not all(viewer.begun for viewer in open_) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    whole = sum(viewer.received for viewer in open_)
    before_s, begun_s = processor_s(stack.api_pid), time.monotonic()
    received = [viewer.received for viewer in open_]
    time.sleep(seconds)
    wall_s = time.monotonic() - begun_s
    busy = (processor_s(stack.api_pid) - before_s) / wall_s
    most = max(viewer.received - was for viewer, was in zip(open_, received, strict=True)) / wall_s / 1000
    yield (
        f"{viewers} viewers, nothing changes: {100 * busy:.1f} % of a core, {most:.2f} kB/s each at most"
        f" (first {whole / viewers / 1000:.0f} kB)"
    )
    waits = []
    with psycopg.connect(libpq_url(stack.url), autocommit=True) as connection:
        for turn in range(1, 6):
            rate = 100.0 * turn
            connection.execute("DELETE FROM rate_samples")
            connection.execute(
                "INSERT INTO rate_samples"
                " VALUES (now(), now(), 'edge', 'b', %s, 'default/service-1', 'default', %s, 5, 0)",
                (turn, 5 * rate),
            )
            told_s = time.monotonic()
            listening = [viewer for at, viewer in enumerate(open_) if "services" in TOPICS[at % len(TOPICS)]]
            while not all(f"{rate}" in viewer.heard for viewer in listening) and time.monotonic() < told_s + 60:
                time.sleep(0.02)
            waits.append(max(viewer.heard.get(f"{rate}", told_s + 60) for viewer in listening) - told_s)
    yield "a rate that changed was heard by all after " + ", ".join(f"{wait:.2f}" for wait in waits) + " s"
    for viewer in open_:
        viewer.ended = True


def signed_in(stack: Stack) -> str:
    """A cookie of somebody who may look at everything."""
    database = Database(stack.url)
    actor = Tokens(database).actors_of([stack.token(Role.OPERATOR)])[0]
    assert actor is not None
    cookie = SignIns(database).begin(actor, "benchmark", None).secret
    database.dispose()
    return cookie


def painted(stack: Stack, cookie: str) -> Iterator[str]:
    """What Chromium makes of each page: the first paint and the slowest key of the best of some visits."""
    scripts = sum(len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.rglob("*.js"))
    yield f"scripts: {scripts} bytes gzipped"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), timeout=120_000)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.add_cookies([{"name": "headroom_session", "value": cookie, "url": stack.server}])
        for path in PAGES:
            paints, spent, worst_ms = [], [], []
            for _ in range(TIMES):
                page = context.new_page()
                told = context.new_cdp_session(page)
                told.send("Performance.enable", {"timeDomain": "threadTicks"})
                page.goto(stack.server + path)
                paints.append(page.evaluate(_PAINT) / 1000)
                metrics = {each["name"]: each["value"] for each in told.send("Performance.getMetrics")["metrics"]}
                spent.append(metrics["TaskDuration"])
                page.evaluate(_WATCH)
                for key in KEYS:
                    page.keyboard.press(key)
                if page.locator("#find").count():
                    page.locator("#find").press_sequentially(TYPED)
                for choice in page.locator("main select").all():
                    choice.press("ArrowDown")
                page.wait_for_timeout(500)
                worst_ms.append(page.evaluate("worst"))
                page.close()
            keys = f"slowest key {min(worst_ms):.0f} ms"
            yield f"{path}: first paint {min(paints):.2f} s, browser {min(spent):.2f} s of processor, {keys}"
        browser.close()


def pages(stack: Stack, cookie: str) -> Iterator[str]:
    """What each page costs, after a while in which nobody looked."""
    with httpx.Client(base_url=stack.server, cookies={"headroom_session": cookie}, timeout=60) as client:
        for path in PAGES:
            spent, stored, wall, size = [], [], [], 0
            for _ in range(TIMES):
                time.sleep(1.5)
                before_s, stored_s = processor_s(stack.api_pid), processor_s(stack.postgres_pid)
                begun_s = time.monotonic()
                answer = client.get(path, headers={"accept": "text/html"})
                answer.raise_for_status()
                wall.append(time.monotonic() - begun_s)
                spent.append(processor_s(stack.api_pid) - before_s)
                stored.append(processor_s(stack.postgres_pid) - stored_s)
                size = int(answer.headers.get("content-length", 0))
            cost = f"{min(spent):.2f} s of processor, PostgreSQL {min(stored):.2f} s"
            yield f"{path}: {cost}, {min(wall):.2f} s, {size / 1000:.0f} kB"


def main() -> None:
    """Fill, look, and tell."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--nodes", type=int, default=625)
    asked.add_argument("--services", type=int, default=500)
    asked.add_argument("--viewers", type=int, default=20)
    asked.add_argument("--seconds", type=float, default=60.0)
    given = asked.parse_args()
    with running_stack(rate_limit_per_s="100000") as stack:
        fill(stack, given.nodes, given.services)
        cookie = signed_in(stack)
        for line in itertools.chain(
            pages(stack, cookie), painted(stack, cookie), watched(stack, given.viewers, given.seconds)
        ):
            print(line, file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
