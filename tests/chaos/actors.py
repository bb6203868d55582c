"""Who uses the control plane in a simulated history: writers of documents, senders of work under a key, nodes that
report, forgers, planners that take turns, a person, an accountant, housekeeping and guests with tokens that end.
Each knows what was acknowledged to it.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from agents.wire import NodeReceipt, ReplicaReadBack, encode
from app.api.auth import CACHE_TTL_MS
from app.clock import SystemClock
from app.settings import Settings
from app.store import targets
from app.store.ledger import account
from app.workers import scheduler
from solvers.domain.plan import Plan
from solvers.errors import LeaseLostError, StateError, SupersededError, TransientError
from tests import builders
from tests.chaos.history import ABSENT, Seen
from tests.chaos.turnstile import EPOCH
from tests.integration.api.world import CLUSTER, OWN, World, join_message, spec
from tests.integration.store import plans as stored
from tests.integration.store.samples import device_report, replica_report, report

LOST = 0
"""The status of an answer that never came."""
UNKNOWN = (LOST, 429, 503)
"""Nobody said whether it was done; 429: lanes close while somebody in them stands still."""
TTL_S = 30.0
STEP_MS = 50.0
STEP = timedelta(milliseconds=1)
"""By which it gets later for the database: nobody falls silent in the thousand steps of a history."""
JUMPS_S = (10, 60, 7_200, 10_000_000)
"""By which the database's clock jumps, forwards or backwards: the last is longer than anything is kept."""
BEHIND_MAX = timedelta(hours=12)
"""No further behind: what is written further back than it is kept is old once that clock is right again, and dropped.
Nobody promises that it stays.
"""
SURE_S = 10.0
"""So far from its end, nothing ends while somebody asks."""
REMEMBERED_STEPS = round(CACHE_TTL_MS / STEP_MS)
VISION = f"{OWN}/vision#0"
FORGED = 2_000_000.0
OTHERS = "http://127.0.0.1:9"


@dataclass(slots=True)
class Answer:
    """What came back; `status` 0: nothing did."""

    status: int
    plain: Any = None
    etag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something that somebody does now: where, and what becomes of its answer."""

    name: str
    work: Callable[[World], Any]
    heard: Callable[[Any], None]
    """Called when it is over, with the answer, or with an Answer that was lost."""


class Clock:
    """Tells the time, counts moments and steps, and how often all nodes were silent for so long that a name may be
    taken. The database's clock may stand elsewhere than everybody else's.
    """

    def __init__(self) -> None:
        self._ahead = self._ahead_max = timedelta()
        self.moment = 0
        self.silences = 0
        self.steps = 0
        self.jumped_step = -REMEMBERED_STEPS
        self.takings = 0
        """Joins under way that may have found a name free ..."""
        self.taken_step = -REMEMBERED_STEPS
        """... and when the last one was over: an API remembers the token of who had the name for some seconds."""

    @property
    def unsure(self) -> bool:
        """Whether somebody may just have taken a name, so that an answer proves nothing."""
        return self.takings > 0 or self.steps < self.taken_step + REMEMBERED_STEPS

    def now(self) -> datetime:
        return EPOCH + self.steps * STEP

    def database_now(self) -> datetime:
        return self.now() + self._ahead

    def jump(self, seconds: float) -> float:
        """The database's clock jumps by so much, backwards by less where that would be too far; forwards, all fall
        silent.
        """
        before, self.jumped_step = self._ahead, self.steps
        self._ahead = max(before + timedelta(seconds=seconds), -BEHIND_MAX)
        self._ahead_max = max(self._ahead_max, self._ahead)
        self.silences += self._ahead > before
        return (self._ahead - before).total_seconds()

    def catch_up(self) -> None:
        """No row of the database is of a time to come any more."""
        self.jump((self._ahead_max - self._ahead).total_seconds())

    def tick(self) -> int:
        self.moment += 1
        return self.moment


class Actor(ABC):
    """Does one thing at a time."""

    busy = False

    @abstractmethod
    def wish(self, stream: random.Random) -> Wish | None:
        """What it does next; None: nothing now."""

    def pending(self) -> bool:
        """Whether it has still to do something for which it needs an answer."""
        return False


class Rememberer(Actor):
    """One that knows what the database must hold."""

    @abstractmethod
    def back_up(self) -> None:
        """What stands now is what a backup holds."""

    @abstractmethod
    def restore(self, stream: random.Random) -> None:
        """What came after the backup never happened. It still has what it heard of it."""


def asked(world: World, method: str, path: str, who: str, **more: Any) -> Answer:
    found = world.call(method, path, who, **more)
    plain = found.json() if found.content and "json" in found.headers.get("content-type", "") else None
    return Answer(found.status_code, plain, found.headers.get("etag", ""))


def expect(what: str, answer: Answer, *statuses: int) -> None:
    assert answer.status in (*statuses, *UNKNOWN), f"{what}: {answer.status} {answer.plain}"


Tags = dict[str, tuple[str, str]]
"""What was read last of each document, and its version: all writers tell each other, so that they meet."""


class Writer(Rememberer):
    """Puts, deletes and reads one document, on conditions or without."""

    def __init__(self, name: str, number: int, clock: Clock, seen: list[Seen], tags: Tags) -> None:
        self._path = f"/v1/services/{OWN}/{name}"
        self._name, self._number, self._clock, self._seen = name, number, clock, seen
        self._writes = 0
        self._tags = tags
        self._kept = 0

    def wish(self, stream: random.Random) -> Wish:
        what = stream.choice(("put", "put", "put", "create", "delete", "read", "read"))
        if what == "read":
            return Wish(name=f"read {self._name}", work=self._read, heard=self._heard_read(self._clock.tick()))
        on = self._tags.get(self._name) if what != "create" and stream.random() < 0.8 else None
        value, body = "", None
        if what != "delete":
            self._writes += 1
            value = str(self._number * 1000 + self._writes)
            body = spec(builders.service(self._name, rate_rps_declared=float(value)))
        headers = {"If-None-Match": "*"} if what == "create" else {} if on is None else {"If-Match": on[1]}
        method = "DELETE" if what == "delete" else "PUT"
        began = self._clock.tick()

        def heard(answer: Answer) -> None:
            expect(f"{method} {self._path}", answer, 200, 201, 204, 404, 412)
            done = None if answer.status in UNKNOWN else answer.status < 300
            expected = None if on is None else on[0]
            self._see(what, value, expected, began, done)
            if done:
                self._learn(value if method == "PUT" else ABSENT, answer.etag)

        return Wish(
            name=f"{what} {self._name} {value}{'' if on is None else f' on {on[0]}'}",
            work=lambda world: asked(world, method, self._path, "admin", plain=body, headers=headers),
            heard=heard,
        )

    def back_up(self) -> None:
        self._kept = len(self._seen)

    def restore(self, stream: random.Random) -> None:
        del self._seen[self._kept :]

    def _read(self, world: World) -> Answer:
        return asked(world, "GET", self._path, "admin")

    def _heard_read(self, began: int) -> Callable[[Answer], None]:
        def heard(answer: Answer) -> None:
            expect(f"GET {self._path}", answer, 200, 404)
            if answer.status in UNKNOWN:
                return
            value = ABSENT if answer.status == 404 else str(round(answer.plain["rate_rps_declared"]))
            self._see("read", value, None, began, True)
            self._learn(value, answer.etag)

        return heard

    def _learn(self, value: str, etag: str) -> None:
        if value == ABSENT:
            self._tags.pop(self._name, None)
        else:
            self._tags[self._name] = (value, etag)

    def _see(self, what: str, value: str, expected: str | None, began: int, done: bool | None) -> None:
        self._seen.append(
            Seen(what=what, value=value, expected=expected, began=began, ended=self._clock.tick(), done=done)
        )


class Poster(Rememberer):
    """Sends work under keys, each until it is answered, sometimes again thereafter."""

    def __init__(self, number: int) -> None:
        self._number, self._made = number, 0
        self.answered: dict[str, str] = {}
        """The id of what was made, by key."""
        self.open: str | None = None
        self._kept: dict[str, str] = {}

    def wish(self, stream: random.Random) -> Wish:
        if self.open is None and self.answered and stream.random() < 0.3:
            return self.again(stream.choice(sorted(self.answered)))
        if self.open is None:
            self._made += 1
            self.open = f"post-{self._number}-{self._made}"
        return self.again(self.open)

    def again(self, key: str) -> Wish:
        more = {"plain": {"name": key, "role": "viewer"}, "headers": {"Idempotency-Key": key}}

        def heard(answer: Answer) -> None:
            expect(f"POST under {key}", answer, 201, 409)
            if answer.status != 201:
                return
            if self.open == key:
                self.open = None
            first = self.answered.setdefault(key, answer.plain["id"])
            assert first == answer.plain["id"], f"{key} was answered with {first}, then with {answer.plain['id']}"

        return Wish(
            name=f"post {key}",
            work=lambda world: asked(world, "POST", "/v1/tokens", "admin", **more),
            heard=heard,
        )

    def pending(self) -> bool:
        return self.open is not None

    def back_up(self) -> None:
        self._kept = dict(self.answered)

    def restore(self, stream: random.Random) -> None:
        self.answered = dict(self._kept)


class Doubter(Actor):
    """Sends what another one has under way a second time."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster

    def wish(self, stream: random.Random) -> Wish | None:
        return None if self._poster.open is None else self._poster.again(self._poster.open)


class Reporter(Rememberer):
    """An agent: joins until it is let in, and sends numbered reports in order, each until it is acknowledged."""

    def __init__(self, node: str, clock: Clock) -> None:
        self.node, self._clock = node, clock
        self._silences = -1
        """How many there had been when something of it was taken last."""
        self._secret: str | None = None
        self._boots, self._sequence = 1, 0
        self._unsent: list[Any] = []
        self._sent: list[Any] = []
        self._joined = False
        self._observed_s = EPOCH.timestamp() - 240.0
        self.acknowledged: list[tuple[str, int]] = []
        self._kept, self._boots_kept = 0, 1
        self._is_known = True
        """Whether its boot has joined what stands; a backup that is older takes its reports for no sign of life."""
        self.refused = 0
        """How often it was told that its name is taken."""

    @property
    def secret(self) -> str | None:
        """Its token, which must be good: it has one, and was never silent since something of it was taken."""
        return self._secret if self._clock.silences == self._silences else None

    @property
    def boot(self) -> str:
        return f"boot-{self.node}-{self._boots}"

    def wish(self, stream: random.Random) -> Wish:
        if self._joined and not self._unsent and stream.random() < 0.1:
            self._boots, self._sequence, self._joined, self._sent = self._boots + 1, 0, False, []
        if not self._joined:
            return Wish(name=f"join {self.boot}", work=self._join, heard=self._heard_join)
        if self._sent and stream.random() < 0.15:
            old = stream.choice(self._sent)
            return Wish(name=f"repeat {self.boot}", work=lambda world: self._send(world, [old]), heard=self._heard_old)
        if not self._unsent or stream.random() < 0.5:
            self._sequence += 1
            self._unsent.append(self._report(stream))
        batch = self._unsent[: stream.randint(1, 3)]
        return Wish(
            name=f"report {self.boot} {[each.sequence for each in batch]}",
            work=lambda world: self._send(world, batch),
            heard=partial(self._heard, batch, -1 if self._clock.unsure else self._clock.silences),
        )

    def pending(self) -> bool:
        return bool(self._unsent) or not self._joined

    def back_up(self) -> None:
        self._kept, self._boots_kept = len(self.acknowledged), self._boots

    def restore(self, stream: random.Random) -> None:
        """It hears of another epoch, and joins again; at once, or after it has sent what it still had to say."""
        del self.acknowledged[self._kept :]
        self._silences = -1
        self._is_known = self._boots == self._boots_kept
        self._joined = self._joined and stream.random() < 0.5

    def _report(self, stream: random.Random) -> Any:
        self._observed_s += stream.choice((1.0, 2.0, 5.0))
        replicas = []
        if self.node == "a" and stream.random() < 0.7:
            replicas.append(replica_report(VISION, "GPU-a-0", model="resnet50", memory_mib_limit=2000, held_s=1.0))
        return replace(
            report(
                self.node,
                self._sequence,
                boot_id=self.boot,
                observed_at_s=self._observed_s,
                devices=[device_report(f"GPU-{self.node}-0")],
                replicas=replicas,
            ),
            interval_s=1.0,
        )

    def _join(self, world: World) -> Answer:
        who = "join"
        if self._secret is not None:
            who = world.secrets[self._secret] = self._secret
        return asked(world, "POST", "/v1/agent/join", who, plain=encode(join_message(self.node, self.boot)))

    def _heard_join(self, answer: Answer) -> None:
        expect(f"join {self.node}", answer, 200, 401, 409)
        self._turned_away(answer)
        self.refused += answer.status == 409
        if answer.status == 200:
            self._secret = answer.plain.get("token") or self._secret
            self._joined = self._is_known = True

    def _send(self, world: World, batch: list[Any]) -> Answer:
        assert self._secret is not None
        world.secrets[self._secret] = self._secret
        body = [encode(each) for each in batch]
        return asked(world, "POST", "/v1/agent/reports", self._secret, plain=body if len(body) > 1 else body[0])

    def _heard(self, batch: list[Any], silences: int, answer: Answer) -> None:
        expect(f"report of {self.boot}", answer, 200, 401)
        self._turned_away(answer)
        if answer.status == 200:
            # A repeat of what was stored before a silence ends no silence.
            heard = answer.plain["accepted"] and self._is_known and not self._clock.unsure
            self._silences = max(self._silences, silences) if heard else self._silences
            del self._unsent[: len(batch)]
            self._sent += batch
            self.acknowledged += [(each.boot_id, each.sequence) for each in batch]

    def _heard_old(self, answer: Answer) -> None:
        expect(f"repeat of {self.boot}", answer, 200, 401)
        self._turned_away(answer)

    def _turned_away(self, answer: Answer) -> None:
        if answer.status == 401:
            assert self._clock.silences > self._silences, f"{self.node} was never silent, and its name was taken"
            self._secret, self._joined = None, False


class Forger(Actor):
    """A node of its own that speaks of others, takes their names and claims what it was never told."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sequence = 0
        self._joined = False

    def wish(self, stream: random.Random) -> Wish:
        if not self._joined:
            return Wish(name="the forger joins", work=self._join, heard=self._heard_join)
        self._sequence += 1
        name, work = stream.choice((
            ("a job done for others", self._done),
            ("the report of another node", self._other),
            ("the name of another node", self._take),
            ("a foreign endpoint", self._route),
        ))  # fmt: skip
        taking = work == self._take
        self._clock.takings += taking

        def heard(answer: Answer) -> None:
            if taking:
                self._clock.takings, self._clock.taken_step = self._clock.takings - 1, self._clock.steps
            expect(name, answer, 200, 401, 403, 409, 422)
            self._joined = answer.status != 401

        return Wish(name=f"forge {name}", work=work, heard=heard)

    def _join(self, world: World) -> Answer:
        return asked(world, "POST", "/v1/agent/join", "join", plain=encode(join_message("rogue", "boot-rogue")))

    def _heard_join(self, answer: Answer) -> None:
        expect("the forger's join", answer, 200, 409)
        if answer.status == 200:
            self._joined, self.secret = True, answer.plain["token"]

    def _call(self, world: World, path: str, plain: Any) -> Answer:
        world.secrets["rogue"] = self.secret
        return asked(world, "POST", path, "rogue", plain=plain)

    def _done(self, world: World) -> Answer:
        claimed = replica_report(f"{OWN}/train#0", "GPU-rogue-0", kind="job", iterations_done=FORGED)
        foreign = replica_report(VISION, "GPU-rogue-0", model="resnet50")
        found = report(
            "rogue", self._sequence, boot_id="boot-rogue", observed_at_s=self._clock.now().timestamp(),
            generation=9 * 10**15, devices=[device_report("GPU-rogue-0")], replicas=[claimed, foreign],
        )  # fmt: skip
        return self._call(world, "/v1/agent/reports", encode(found))

    def _other(self, world: World) -> Answer:
        found = report("a", 10**6 + self._sequence, boot_id="boot-forged", observed_at_s=self._clock.now().timestamp())
        answer = self._call(world, "/v1/agent/reports", encode(found))
        assert answer.status != 200, "a node reported as another one"
        return answer

    def _take(self, world: World) -> Answer:
        return asked(world, "POST", "/v1/agent/join", "join", plain=encode(join_message("a", "boot-forged")))

    def _route(self, world: World) -> Answer:
        claimed = ReplicaReadBack(
            replica=VISION, uuid="GPU-rogue-0", share_pct_sm=30, sm_count=12, memory_mib_limit=2000, batch=8,
            ready=True, endpoint=OTHERS,
        )  # fmt: skip
        receipt = NodeReceipt(
            node="rogue", boot_id="boot-rogue", generation=9 * 10**15, plan=None, outcome="applied",
            observed_at_s=self._clock.now().timestamp(), elapsed_ms=1.0, devices=(), replicas=(claimed,),
        )  # fmt: skip
        return self._call(world, "/v1/agent/receipts", encode(receipt))


@dataclass(slots=True)
class Promoted:
    """What was acknowledged to planners."""

    plans: dict[int, Plan] = field(default_factory=dict)
    kept: dict[int, Plan] = field(default_factory=dict)


class Planner(Rememberer):
    """Takes the lease, looks, and promotes a plan under its token; a person promotes without one."""

    def __init__(self, name: str, seed: int, promoted: Promoted) -> None:
        self._name, self._seed, self._promoted = name, seed, promoted
        self._made = 0
        self._token: int | None = None
        self._person = name == "person"

    def back_up(self) -> None:
        self._promoted.kept = dict(self._promoted.plans)

    def restore(self, stream: random.Random) -> None:
        """It froze: what it holds is of before, and it may go on without a look."""
        self._promoted.plans = dict(self._promoted.kept)

    def wish(self, stream: random.Random) -> Wish:
        self._made += 1
        chosen, trusting = stream.choice((("a", "b"), ("a",))), stream.random() < 0.5
        return Wish(
            name=f"{self._name} plans{' as before' if trusting else ''}",
            work=lambda world: self._cycle(world, chosen, trusting),
            heard=self._heard,
        )

    def _cycle(self, world: World, nodes: tuple[str, ...], trusting: bool) -> Plan | None:
        """`trusting`: without a look at the lease, as one who froze for long after its last look."""
        database = world.database
        try:
            if not self._person and (self._token is None or not trusting):
                with database.transaction() as session:
                    lease = targets.acquire_lease(session, targets.PLANNER, self._name, TTL_S)
                    others = targets.read_lease(session, targets.PLANNER) if lease is None else None
                assert others is None or others.left_s <= TTL_S, f"{others} outlasts what anybody asked for"
                self._token = None if lease is None else lease.token
                if lease is None:
                    return None
            with database.transaction() as session:
                parent = targets.generation(session, stored.CLUSTER)
            plan = stored.plan(parent=parent, seed=self._seed * 1000 + self._made)
            with database.transaction() as session:
                stored.promote(session, plan, token=self._token, nodes=nodes)
            return plan
        except (LeaseLostError, SupersededError, StateError, TransientError):
            return None

    def _heard(self, plan: Plan | None) -> None:
        if isinstance(plan, Plan):
            generation = plan.parent + 1
            assert generation not in self._promoted.plans, f"generation {generation} was acknowledged twice"
            self._promoted.plans[generation] = plan


class Guest(Actor):
    """Comes with what is good for a time by the database's clock, a viewer's token and a join token: before its end, no
    more after it, and again where that clock is set back.
    """

    def __init__(self, clock: Clock, until: datetime) -> None:
        self._clock, self._until = clock, until

    def wish(self, stream: random.Random) -> Wish | None:
        came, jumped = self._clock.database_now(), self._clock.jumped_step
        with_what = stream.choice(("guest", "ticket"))
        left_s = (self._until - came).total_seconds()
        is_sure = abs(left_s) > SURE_S and self._clock.steps >= jumped + REMEMBERED_STEPS

        def heard(answer: Answer) -> None:
            statuses = (200, 409) if left_s > 0 else (401,)
            expect(f"{with_what} with {left_s:.0f} s left", answer, 200, 401, 409)
            if is_sure and jumped == self._clock.jumped_step:
                expect(f"{with_what} with {left_s:.0f} s left", answer, *statuses)

        return Wish(name=f"guest with {with_what}", work=lambda world: self._come(world, with_what), heard=heard)

    def _come(self, world: World, with_what: str) -> Answer:
        if with_what == "ticket":
            return asked(world, "POST", "/v1/agent/join", "ticket", plain=encode(join_message("guest", "boot-guest")))
        return asked(world, "GET", "/v1/services", with_what)


class Housekeeper(Actor):
    """Drops what was kept for long enough, which is nothing here, however late the database's clock makes it."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def wish(self, stream: random.Random) -> Wish | None:
        return None if stream.random() < 0.4 else Wish(name="retain", work=self._retain, heard=lambda _: None)

    def _retain(self, world: World) -> None:
        with suppress(TransientError, StateError):
            scheduler.Housekeeping(world.database, Settings(cluster=CLUSTER), self._clock).retain(lambda: None)


class Accountant(Actor):
    """Closes minutes, as of later, so that there is something to close."""

    def __init__(self) -> None:
        self._later_s = 0.0

    def wish(self, stream: random.Random) -> Wish:
        self._later_s += stream.choice((0.0, 60.0, 600.0))
        later = self._later_s

        def work(world: World) -> None:
            try:
                with world.database.transaction() as session:
                    account(session, EPOCH + timedelta(seconds=later))
            except (TransientError, StateError):
                return

        return Wish(name=f"account as of {later:.0f} s later", work=work, heard=lambda _: None)
