"""One seeded history of the shell: who does what when, what breaks, and whether every promise held at every moment."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg.errors import LockNotAvailable

from app import kinds
from app.api.app import create_app
from app.api.deps import ApiContext
from app.clock import SystemClock
from app.services.beliefs.beliefs import Beliefs
from app.services.declared.fleet import Fleet
from app.services.declared.tokens import Deed, TokenRequest
from app.settings import Settings
from app.store import migrate, targets
from app.store.engine import Database
from app.store.tokens import Purpose, Role
from solvers.domain.codec import digest
from solvers.planners import registry
from tests import builders
from tests.asgi import client_of
from tests.chaos.actors import (
    JUMPS_S,
    LOST,
    STEP_MS,
    Accountant,
    Actor,
    Answer,
    Clock,
    Doubter,
    Forger,
    Guest,
    Housekeeper,
    Planner,
    Poster,
    Promoted,
    Rememberer,
    Reporter,
    Wish,
    Writer,
)
from tests.chaos.checks import broken
from tests.chaos.history import Seen, possible
from tests.chaos.nodes import NODE, RealNode
from tests.chaos.turnstile import EPOCH, NOW_SQL, TIMED, Operation, Turnstile, WatchedDatabase
from tests.integration.api.world import CLUSTER, StoredPlanning, World, build_world
from tests.integration.postgres import Server, embedded_binaries, running
from tests.scratch import put_into_memory

TEMPLATE = "chaos_template"
REPLICAS = 2
WISHES = 70
UNDER_WAY = 3
ODDS = {
    "cut": 0.02, "full": 0.01, "lose": 0.05, "freeze": 0.02, "expire": 0.02, "silence": 0.01, "jump": 0.005,
    "restart": 0.01,
}  # fmt: skip
"""At each step; of a lost answer, at each beginning."""
ZEAL = (0.1, 0.5, 1.0, 1.0, 4.0)
FREEZE_STEPS = 60
GUEST_S = 3600.0
EXPIRED = """
UPDATE leases SET expires_at = to_timestamp(0)
WHERE name IN (SELECT name FROM leases FOR UPDATE SKIP LOCKED)"""
SILENT = """
UPDATE node_states SET joined_at = joined_at - interval '40 seconds',
    last_report_at = last_report_at - interval '40 seconds'
WHERE node_id IN (SELECT node_id FROM node_states FOR UPDATE SKIP LOCKED)"""
TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
DOCUMENTS = ("vision", "speech")
PLANNERS = ("planner-1", "planner-2", "person")


@dataclass(frozen=True, slots=True)
class Stage:
    """A server with a template of a cluster that has tokens and a catalogue."""

    server: Server
    secrets: dict[str, str]


def stage(server: Server) -> Stage:
    url = server.create(TEMPLATE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(NOW_SQL)
        for setting in TIMED:
            connection.execute(f"ALTER DATABASE {TEMPLATE} {setting}".encode())
    migrate.upgrade(url)
    database = Database(url)
    world = build_world(database)
    world.put(kinds.JOB, builders.job())
    with database.transaction() as session:
        targets.ensure_cluster(session, CLUSTER)
    _issue_for_a_time(world)
    world.client.close()
    database.dispose()
    return Stage(server, world.secrets)


def _issue_for_a_time(world: World) -> None:
    """A viewer's token and a join token that end."""
    for request in (
        TokenRequest(name="guest", role=Role.VIEWER, ttl_s=GUEST_S),
        TokenRequest(name="ticket", role=Role.AGENT, purpose=Purpose.JOIN, ttl_s=GUEST_S, uses_max=1),
    ):
        world.secrets[request.name] = world.app.state.services.tokens.issue(request, Deed(actor="test")).secret


class StepTime(SystemClock):
    """Time that passes with the steps of a history; faster where caches forget."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_s(self) -> float:
        return self.now().timestamp()

    def now(self) -> datetime:
        return self._clock.now()

    def elapsed_ms(self) -> float:
        return STEP_MS * self._clock.steps


class Life:
    """One history."""

    def __init__(self, stage: Stage, name: str, seed: int) -> None:
        self.seed = seed
        self._server, self._name, self._url = stage.server, name, (url := stage.server.url(name))
        self.story: list[str] = []
        self.steps: list[str] = []
        """Who was let go from where."""
        self.faults: Counter[str] = Counter()
        self._stream = random.Random(seed)
        self._clock = clock = Clock()
        self._time = StepTime(clock)
        self._turnstile = Turnstile(url)
        self._databases = [WatchedDatabase(url, clock.database_now, pool_size=4) for _ in range(REPLICAS)]
        self._secrets = stage.secrets
        self._worlds = [self._served(database) for database in self._databases]
        self._frozen: dict[str, int] = {}
        self._lost: set[str] = set()
        self._wishes: dict[str, tuple[Actor, Wish, int]] = {}
        self._count = 0
        tags: dict[str, tuple[str, str]] = {}
        self.seen: dict[str, list[Seen]] = {name: [] for name in DOCUMENTS}
        self.promoted = Promoted()
        self.posters = [Poster(number) for number in range(2)]
        self.reporters = [Reporter(node, clock) for node in ("a", "b")]
        self._forger = Forger(clock)
        self._node = RealNode(stage.secrets["join"])
        self._actors: list[Actor] = [
            *(Writer(name, place * 10 + number, clock, self.seen[name], tags)
              for place, name in enumerate(DOCUMENTS, 1) for number in range(3)),
            *self.posters, *map(Doubter, self.posters), *self.reporters, self._node, self._forger, Accountant(),
            Housekeeper(self._time), Guest(clock, EPOCH + timedelta(seconds=GUEST_S)),
            *(Planner(name, place, self.promoted) for place, name in enumerate(PLANNERS, 1)),
        ]  # fmt: skip
        # Each history has its own busy ones and its own troubles: what is rare everywhere is common somewhere.
        self._zeal = {id(actor): self._stream.choice(ZEAL) for actor in self._actors}
        self._odds = {fault: odds * self._stream.choice(ZEAL) for fault, odds in ODDS.items()}
        # In every third history somebody makes a backup, and puts it in place of what stands later.
        self._turns = sorted(self._stream.sample(range(WISHES), 2)) if self._stream.random() < 1 / 3 else []
        self._backup = f"{name}_backup"
        self._backed_up = False

    def live(self) -> None:
        """Raises AssertionError with the story of what broke."""
        try:
            self._calmly(*self.reporters, self._node, self._forger)
            while self._count < WISHES or self._turnstile.under_way:
                self._step()
            self._check_names()
            self._drain()
            self._check_end()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n" + "\n".join(self.story[-60:])) from error

    def broken(self) -> str:
        """What broke, with its story; empty where everything held."""
        try:
            self.live()
        except AssertionError as error:
            return str(error)
        return ""

    def held(self) -> dict[str, list[str]]:
        """All that the database holds, by table."""
        rows = self._turnstile.rows
        tables = [name for (name,) in rows(TABLES)]
        return {name: [row for (row,) in rows(f"SELECT held::text FROM {name} AS held ORDER BY 1")] for name in tables}

    def close(self) -> None:
        self._turnstile.close()
        for database in self._databases:
            database.dispose()
        for world in self._worlds:
            world.client.close()
        self._node.close()
        if self._backed_up:
            self._server.drop(self._backup)

    def _served(self, database: Database) -> World:
        context = ApiContext(
            settings=Settings(cluster=CLUSTER, rate_limit_per_s=0.0),
            database=database,
            clock=self._time,
            planning=StoredPlanning(database),
            beliefs=Beliefs(database),
            propose=registry.propose,
        )
        app = create_app(context)
        return World(app=app, client=client_of(app, raising=True), database=database, secrets=dict(self._secrets))

    def _step(self) -> None:
        if self._turns and self._count >= self._turns[0]:
            self._turn()
            return
        stream = self._stream
        idle = [actor for actor in self._actors if not actor.busy]
        begin = self._count < WISHES and len(self._turnstile.under_way) < UNDER_WAY and idle
        if begin and (not self._turnstile.ready or stream.random() < 0.15):
            self._begin(stream.choices(idle, [self._zeal[id(actor)] for actor in idle])[0])
        elif self._turnstile.ready:
            self._advance(calm=False)
        self._hear()

    def _hear(self) -> None:
        for operation in self._turnstile.ended():
            self._over(operation)

    def _turn(self) -> None:
        """When nothing is under way, the database is backed up, or what was backed up stands again."""
        if self._turnstile.under_way:
            self._advance(calm=False)
            self._hear()
            return
        del self._turns[0]
        self._turnstile.close()
        for database in self._databases:
            database.disconnect()
        if self._backed_up:
            self._restore()
        else:
            self._server.create(self._backup, self._name)
            for actor in self._rememberers():
                actor.back_up()
            self._tell("backup", "of everything")
            self._turnstile, self._backed_up = Turnstile(self._url), True

    def _restore(self) -> None:
        for name, seen in self.seen.items():
            assert possible(seen), f"no order of one register explains what was seen of {name}: {seen}"
        self._server.drop(self._name)
        self._server.create(self._name, self._backup)
        self._turnstile = Turnstile(self._url)
        for place, database in enumerate(self._databases):
            self._worlds[place].client.close()
            self._worlds[place] = self._served(database)
        Fleet(self._databases[0], CLUSTER).begin_epoch(Deed(actor="person"), force=True)
        for actor in self._rememberers():
            actor.restore(self._stream)
        self._tell("restore", "of the backup")

    def _rememberers(self) -> list[Rememberer]:
        return [actor for actor in self._actors if isinstance(actor, Rememberer)]

    def _begin(self, actor: Actor, *, calm: bool = False) -> None:
        wish = actor.wish(self._stream)
        if wish is None:
            return
        self._count += 1
        name, place = f"{self._count} {wish.name}", self._stream.randrange(REPLICAS)
        world = self._worlds[place]
        if not calm and self._strikes("lose"):
            self._lost.add(name)
        actor.busy = True
        self._wishes[name] = (actor, wish, place)
        self.story.append(f"{name} begins at {place}")
        self._turnstile.begin(Operation(name, lambda: wish.work(world), self.seed))

    def _advance(self, *, calm: bool) -> None:
        self._frozen = {name: left - 1 for name, left in self._frozen.items() if left > 1}
        ready = self._turnstile.ready
        awake = [operation for operation in ready if operation.name not in self._frozen]
        operation = self._stream.choice(awake or ready)
        if not calm:
            self._break(operation)
        point = operation.point
        self.steps.append(f"{operation.name} from {point}")
        self._clock.steps += 1
        self._turnstile.advance(operation)
        if operation.has_written and (point == "committed" or operation.over):
            operation.has_written = False
            # Who makes or drops a partition keeps everybody from its table: then the next look is for both.
            with contextlib.suppress(LockNotAvailable):
                found = broken(self._turnstile.rows)
                assert not found, f"after {operation.name}: {found}"

    def _break(self, operation: Operation) -> None:
        if self._strikes("cut") and self._turnstile.cut(operation):
            self._tell("cut", f"{operation.name} at {operation.point}")
        if self._strikes("full"):
            operation.finds_full = True
            self._tell("full", f"for {operation.name} at {operation.point}")
        if self._strikes("freeze"):
            self._frozen[operation.name] = FREEZE_STEPS
            self._tell("freeze", f"{operation.name} at {operation.point}")
        if self._strikes("expire"):
            self._turnstile.change(EXPIRED)
            self._tell("expire", "every lease")
        if self._strikes("silence"):
            self._silence()
            self._tell("silence", "of every node, for 40 s")
        if self._strikes("jump"):
            jump_s = self._clock.jump(self._stream.choice(JUMPS_S) * self._stream.choice((-1, 1)))
            self._tell("jump", f"of the database's clock by {jump_s:.0f} s")
        place = self._stream.randrange(REPLICAS)
        if self._strikes("restart") and all(where != place for _, _, where in self._wishes.values()):
            self._worlds[place].client.close()
            self._worlds[place] = self._served(self._databases[place])
            self._tell("restart", f"API {place}")

    def _strikes(self, fault: str) -> bool:
        return self._stream.random() < self._odds[fault]

    def _silence(self) -> None:
        self._clock.silences += 1
        self._turnstile.change(SILENT)

    def _tell(self, fault: str, whom: str) -> None:
        self.faults[fault] += 1
        self.story.append(f"! {fault}: {whom}")

    def _over(self, operation: Operation) -> None:
        actor, wish, _ = self._wishes.pop(operation.name)
        actor.busy = False
        lost = operation.name in self._lost
        if operation.error is not None:
            raise AssertionError(f"{operation.name} raised {operation.error!r}") from operation.error
        self.faults["lost answer"] += lost
        told = getattr(operation.answer, "status", "")
        self.story.append(f"{operation.name} is over after {operation.steps} steps{' (lost)' if lost else ''} {told}")
        if not lost:
            wish.heard(operation.answer)
        elif isinstance(operation.answer, Answer):
            wish.heard(Answer(LOST))

    def _calmly(self, *actors: Actor) -> None:
        """One after the other, and nothing breaks."""
        for actor in actors:
            self._begin(actor, calm=True)
            while self._turnstile.under_way:
                self._advance(calm=True)
                self._hear()

    def _check_names(self) -> None:
        """Who was never silent still has its name, as an API that remembers nothing sees it."""
        for reporter in self.reporters:
            if reporter.secret is not None:
                world = self._served(self._databases[0])
                world.secrets["mine"] = reporter.secret
                told = world.call("GET", f"/v1/agent/nodes/{reporter.node}/target", "mine")
                world.client.close()
                assert told.status_code in (200, 404), f"{reporter.node} was never silent: {told.status_code}"

    def _drain(self) -> None:
        """Everybody gets the answers that are still owed, on a calm day."""
        self._clock.catch_up()
        for _ in range(400):
            owing = [actor for actor in self._actors if actor.pending()]
            if not owing:
                return
            self._silence()
            self._calmly(*owing)
        raise AssertionError(f"still owed: {[type(actor).__name__ for actor in self._actors if actor.pending()]}")

    def _check_end(self) -> None:
        rows = self._turnstile.rows
        found = broken(rows)
        assert not found, found
        for name, seen in self.seen.items():
            assert possible(seen), f"no order of one register explains what was seen of {name}: {seen}"
        for poster in self.posters:
            for key, identity in poster.answered.items():
                made = [row[0] for row in rows("SELECT id FROM tokens WHERE name = %s", key)]
                assert made == [identity], f"{key} was acknowledged as {identity}, there is {made}"
        owed = {reporter.node: set(reporter.acknowledged) for reporter in self.reporters}
        for node, reports in {**owed, NODE: self._node.owed}.items():
            kept = set(rows("SELECT boot_id, sequence FROM report_log WHERE source = %s", f"node/{node}"))
            assert reports <= kept, f"reports of {node} are gone: {reports - kept}"
        ((speaks, applied, epoch),) = rows(
            "SELECT boot_id, generation_applied, epoch FROM node_states, cluster_state WHERE node_id = %s", NODE
        )
        assert speaks == self._node.boot_id, f"{self._node.boot_id} joined last and reports, but {speaks} speaks"
        said = self._node.applied.get((speaks, epoch), 0)
        assert applied == said, f"{speaks} said that it holds {said} of epoch {epoch}, it is taken for {applied}"
        history = dict(rows("SELECT generation, plan_id FROM target_history"))
        for generation, plan in self.promoted.plans.items():
            assert history.get(generation) == digest(plan), f"generation {generation} was acknowledged and is gone"


@contextmanager
def life_of(stage: Stage, seed: int) -> Iterator[Life]:
    name = f"chaos_{seed}"
    stage.server.create(name, TEMPLATE)
    life = Life(stage, name, seed)
    try:
        yield life
    finally:
        life.close()
        stage.server.drop(name)


@dataclass(frozen=True, slots=True)
class Lived:
    """What became of some histories, in one process with a server of its own."""

    histories: int
    broken: list[int]
    faults: Counter[str]
    spent_s: float


def take_little() -> None:
    """Take from the machine only what histories need: no disk, and no looking for garbage among what stays."""
    put_into_memory()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


def live_all(seeds: range, place: int = 0) -> Lived:
    """Live these one after the other, and let those that break tell; all on one processor, the `place`th, for one
    thread runs at a time, and each that wakes another one on another processor costs a third more.
    """
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[place % len(processors)]})
    faults: Counter[str] = Counter()
    broken, lived, began_s = [], 0, time.process_time()
    with contextlib.suppress(KeyboardInterrupt), running(embedded_binaries()) as server:
        ready = stage(server)
        for seed in seeds:
            with life_of(ready, seed) as life:
                told = life.broken()
            lived += 1
            if told:
                broken.append(seed)
                sys.stdout.write(f"{told}\n")
                sys.stdout.flush()
            faults += life.faults
    return Lived(lived, broken, faults, time.process_time() - began_s)


def missed_after(stage: Stage, seeds: range) -> int | None:
    """The number of the first history in which something breaks."""
    for number, seed in enumerate(seeds, 1):
        with life_of(stage, seed) as life:
            if life.broken():
                return number
    return None
