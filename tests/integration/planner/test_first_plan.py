"""Never without a plan: planners and APIs that start, restart or take over answer at once with what was learned before,
or with what is built in, however long learning takes; and with everything once it has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app import bootstrap, library
from app.bootstrap import build_api, build_planner
from app.clock import new_id, new_secret
from app.services.beliefs import beliefs
from app.services.beliefs.beliefs import Evidence
from app.services.declared.fleet import Fleet
from app.settings import Settings
from app.store import cycles, profiles, tokens
from app.workers.children import fit_apart
from app.workers.scheduler import PlannerWorker
from app.workers.solve_pool import SolvePool
from solvers.domain.ids import Digest, GpuTypeName, ModelName
from solvers.domain.profile import ProfilePoint
from solvers.domain.workload import Slo
from solvers.models.suite import Suite
from tests.integration.planner.test_worker import NEVER_S, LentPool
from tests.integration.planner.world import CLUSTER, World
from tests.unit.app.services.whatif.small_fleet import PROJECT, SWIFT, device, node, service
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
CELLS = [(batch, share) for batch in (1, 2, 4, 8, 16, 32, 64) for share in range(10, 101, 10)]
"""More than are learned while somebody waits, of few models: each costs learning more than many rows."""
NEWER = [(batch, share) for batch in (5, 10, 20) for share in range(10, 101, 10)]
TAKEN_IN_MAX = 20
"""Fewer than are newer in any test."""
NETS = 1
LIMIT_S = 240.0
"""For learning in a child process that yields to everybody else."""
OWN = [(1, 30), (8, 30), (1, 80), (8, 80)]
"""So little was measured of the service's model that most of it has to be believed."""


def measured(model: str, cells: list[tuple[int, int]], factor: float = 1.0) -> list[ProfilePoint]:
    return [
        ProfilePoint(
            model=ModelName(model),
            gpu_type=GpuTypeName("t4"),
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=1590,
            latency_ms_mean=factor * (1.0 + 0.4 * batch * 100 / share),
        )
        for batch, share in cells
    ]


@pytest.fixture(autouse=True)
def learn_once() -> None:
    """Nothing else stands in its place: what learns is named to the child process."""


_learned: dict[Digest, Suite] = {}


def learned_once(evidence: Evidence) -> Suite:
    """As the real learner learns in its child process, which takes seconds: the same evidence only once."""
    key = evidence.digest()
    if key not in _learned:
        _learned[key] = fit_apart(evidence)
    return _learned[key]


@dataclass
class Held:
    """The real learner, once it is let."""

    let: threading.Event = field(default_factory=threading.Event)
    asked: list[int] = field(default_factory=list)

    def __call__(self, evidence: Evidence) -> Suite:
        self.asked.append(len(evidence))
        assert self.let.wait(120.0)
        return learned_once(evidence)


@dataclass
class Site:
    """A database, and the processes over it, each with a learner of its own that is held."""

    world: World
    settings: Settings
    monkeypatch: pytest.MonkeyPatch
    started: list[PlannerWorker] = field(default_factory=list)
    learners: list[Held] = field(default_factory=list)

    def learner(self) -> Held:
        """The one of the next process."""
        held = Held()
        self.learners.append(held)
        self.monkeypatch.setattr(bootstrap, "fit_apart", held)
        return held

    def planner(self) -> tuple[PlannerWorker, Held]:
        held = self.learner()
        worker = build_planner(self.settings)
        worker.start()
        self.started.append(worker)
        return worker, held

    def import_rows(self, points: list[ProfilePoint]) -> None:
        with self.world.database.transaction() as session:
            profiles.put_points(session, points)

    def cycles(self) -> list[str]:
        return [str(state) for state in self.world.column("SELECT state FROM cycles ORDER BY started_at")]

    def sources(self) -> list[str]:
        """Of every cycle with a plan, the oldest first: where what it believed of the service's model comes from."""
        ids = self.world.column("SELECT id FROM cycles WHERE plan_digest IS NOT NULL ORDER BY started_at")
        with self.world.database.reading() as session:
            pictures = [cycles.load(session, str(each)).snapshot for each in ids]
        return [
            next(point.source for point in profile.points if (point.batch, point.share_pct_sm) == (4, 50))
            for picture in pictures
            for profile in picture.profiles
            if profile.model == "resnet50"
        ]

    def learned(self) -> list[object]:
        return self.world.column("SELECT measurements FROM belief_fits ORDER BY id")


@pytest.fixture
def site(
    world: World, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: SolvePool
) -> Iterator[Site]:
    """A fleet whose one service runs a model of which four configurations were measured, among those of others."""
    monkeypatch.setattr(bootstrap, "_pool", lambda *_: LentPool(pool))
    monkeypatch.setattr(beliefs, "TAKEN_IN_MAX", TAKEN_IN_MAX)
    Fleet(world.database, CLUSTER).prepare()
    types = library.facts().gpu_types
    world.declare(PROJECT, SWIFT, node("a"), device("GPU-a0", "a", types["t4"]), device("GPU-a1", "a", types["t4"], 1))
    world.declare(replace(service("labels", rate_rps=40.0), slo=Slo(latency_ms=400.0)))
    world.join("a")
    world.report("a")
    quiet = Settings(
        database_url=database_url,
        home=tmp_path,
        place_interval_s=NEVER_S,
        tune_interval_s=NEVER_S,
        account_interval_s=NEVER_S,
        lease_ttl_s=9.0,
    )
    made = Site(world=world, settings=quiet, monkeypatch=monkeypatch)
    others = [measured(f"net-{number}", CELLS, 0.5 + 0.1 * number) for number in range(NETS)]
    made.import_rows([*measured("resnet50", OWN), *(point for each in others for point in each)])
    yield made
    for held in made.learners:
        held.let.set()
    wait_until(lambda: "beliefs" not in {each.name for each in threading.enumerate()}, "nothing is learned", LIMIT_S)
    for worker in made.started:
        worker.stop()


ROWS = len(OWN) + NETS * len(CELLS)
assert ROWS > beliefs.AT_ONCE_MAX


def test_the_first_plan_waits_for_no_learning_and_the_next_ones_know_more(site: Site) -> None:
    _, first = site.planner()
    wait_until(site.sources, "the first plan, from what is built in")
    assert first.asked == [ROWS]
    assert site.sources()[0].startswith("scaled from resnet50 on")
    first.let.set()
    wait_until(lambda: site.learned() == [ROWS], "it was learned and stored", LIMIT_S)
    wait_until(lambda: any("fitted to 4 stored points" in each for each in site.sources()), "a plan that knows it")
    assert set(site.cycles()) == {"closed"}


def test_a_planner_that_starts_again_plans_at_once_with_what_was_learned(site: Site) -> None:
    before, learner = site.planner()
    learner.let.set()
    wait_until(lambda: site.learned() == [ROWS], "it was learned and stored", LIMIT_S)
    before.stop()
    site.import_rows([point for number in range(NETS) for point in measured(f"net-{number}", NEWER)])
    plans_before, cycles_before = len(site.sources()), len(site.cycles())
    site.world.declare(replace(service("labels", rate_rps=90.0), slo=Slo(latency_ms=400.0)))
    _, held = site.planner()
    wait_until(lambda: len(site.sources()) > plans_before, "a plan while the learner is held")
    assert site.learned() == [ROWS]
    assert all("fitted to 4 stored points" in each for each in site.sources()[plans_before:])
    assert held.asked == [ROWS + NETS * len(NEWER)]
    held.let.set()
    wait_until(lambda: site.learned() == [ROWS, *held.asked], "what came since was learned", LIMIT_S)
    wait_until(lambda: site.cycles()[cycles_before:].count("closed") >= 2, "it is planned with")
    assert set(site.cycles()) == {"closed"}


def test_a_second_planner_takes_over_with_what_the_first_one_learned(site: Site) -> None:
    first, learner = site.planner()
    learner.let.set()
    wait_until(lambda: site.learned() == [ROWS], "it was learned and stored", LIMIT_S)
    second, held = site.planner()
    learner.let.clear()
    site.import_rows(measured("net-0", NEWER))
    wait_until(lambda: len(learner.asked) == 2, "the leader learns what is new")
    assert held.asked == [], "one learns for all"
    done = len(site.sources())
    site.world.declare(replace(service("labels", rate_rps=90.0), slo=Slo(latency_ms=400.0)))
    first.stop()
    wait_until(second._leader, "the second leads")
    wait_until(lambda: len(site.sources()) > done, "its first plan")
    assert "fitted to 4 stored points" in site.sources()[-1]
    wait_until(lambda: held.asked == [ROWS + len(NEWER)], "now it is the second that learns")
    assert "aborted" not in site.cycles()


def test_the_api_answers_with_what_planners_learned_and_learns_only_in_their_absence(site: Site) -> None:
    secret = new_secret("hr")
    with site.world.database.transaction() as session:
        new = tokens.TokenDraft(id=new_id(), name="test", role=tokens.Role.OPERATOR, created_by="test")
        tokens.create(session, new, secret)
    worker, learner = site.planner()
    wait_until(lambda: learner.asked, "the leader learns")
    idle = site.learner()
    query = [{"model": "resnet50", "gpu_type": "t4", "batch": 4, "share_pct_sm": 50}]
    with TestClient(build_api(site.settings), headers={"Authorization": f"Bearer {secret}"}) as client:

        def told() -> str:
            return client.post("/v1/predictions", json=query).headers["Headroom-Belief"]

        picture = client.get("/v1/snapshot")
        assert picture.status_code == 200, picture.text
        assert told() == "learning"
        words = f"beliefs are what is built in; newer measurements, being learned: {ROWS}"
        assert client.get("/v1/fleet").json()["beliefs"] == words
        assert f"headroom_measurements_unlearned {float(ROWS)}" in client.get("/metrics").text
        learner.let.set()
        wait_until(lambda: told() == "learned", "what the planner learned is loaded", LIMIT_S)
        assert client.get("/v1/snapshot").status_code == 200
        assert client.get("/v1/fleet").json()["beliefs"] is None
        assert idle.asked == []
        worker.stop()
        site.import_rows(measured("net-0", NEWER))
        assert told() == "learning"
        assert idle.asked == [], "a planner may come back soon"
        site.monkeypatch.setattr(bootstrap, "LEADERLESS_S", 0.0)
        wait_until(lambda: told() == "learning" and idle.asked, "nobody leads")
        idle.let.set()
        wait_until(lambda: told() == "learned", "then it learns itself", LIMIT_S)
        assert site.learned()[-1] == ROWS + len(NEWER)
