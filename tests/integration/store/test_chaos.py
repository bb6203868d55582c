"""Seeded histories of the shell, and that each promise taken out of the product is missed (`make chaos`: many more)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import func, select

from tests.chaos import turnstile
from tests.chaos.history import ABSENT, Seen, possible
from tests.chaos.life import TEMPLATE, Stage, life_of, missed_after, stage
from tests.chaos.mutants import MUTANTS, Mutant, planted
from tests.chaos.turnstile import EPOCH, Operation, Turnstile, WatchedDatabase
from tests.integration.postgres import Server
from tests.waiting import spend

pytestmark = pytest.mark.integration
SEEDS = (0, 1, 2, 3, 4, 44902, 45124, 83143, 83409)
"""The last: an older life's reports after jumps of the clock; the three before: reports in the midst of which rows move
to a partition of their own.
"""
STORY, DAWDLES, DAWDLE_S = 20026, 0.1, 0.03
"""A history with waits for locks, jumps of the clock and a restore; the part of all moments at which its second telling
dawdles, and for how long.
"""
QUICK, MISSED_WITHIN = 5, 20
"""Mutants that are told soon, and histories in which they must be; the others take minutes."""
BEGIN = {
    "an answer is not kept": 2, "all may be reported": 1, "epochs are not heard of": 18, "two at once under a key": 9,
}  # fmt: skip
"""The first of these histories, where it is not the first of all: the one that tells, so that none is lived for
nothing. After a change that lets it pass by one of the next tells, as long as the promise is missed at all.
"""


@pytest.fixture(scope="module")
def staged(embedded_server: Server) -> Stage:
    return stage(embedded_server)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_at_every_moment(staged: Stage, seed: int) -> None:
    with life_of(staged, seed) as life:
        life.live()
        assert sum(life.faults.values()) > 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_promise_can_still_be_taken_out(mutant: Mutant) -> None:
    """Its text is still in its module: else nobody would notice that it is not tried any more."""
    with planted(mutant):
        pass


def told(staged: Stage, seed: int) -> tuple[list[str], list[str], dict[str, list[str]]]:
    with life_of(staged, seed) as life:
        life.live()
        return life.story, life.steps, life.held()


def test_a_seed_tells_one_story_however_busy_the_machine(staged: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step, and at the end each row with its times and ids; of a quiet machine, and of one on which threads wait
    for their turn anywhere.
    """
    story, steps, held = told(staged, STORY)
    stream = random.Random(STORY)

    def dawdle() -> None:
        if stream.random() < DAWDLES:
            spend(stream.random() * DAWDLE_S)

    def slow(do: Callable[..., None]) -> Callable[..., None]:
        def do_slowly(*arguments: object) -> None:
            dawdle()
            do(*arguments)
            dawdle()

        return do_slowly

    monkeypatch.setattr(Operation, "stop", slow(Operation.stop))
    monkeypatch.setattr(asyncio.Handle, "_run", slow(asyncio.Handle._run))
    slow_story, slow_steps, slow_held = told(staged, STORY)
    assert (slow_story, slow_steps) == (story, steps)
    assert slow_held == held


@pytest.mark.parametrize("mutant", MUTANTS[:QUICK], ids=lambda mutant: mutant.name)
def test_a_promise_that_is_gone_is_missed(staged: Stage, mutant: Mutant) -> None:
    begin = BEGIN.get(mutant.name, 0)
    with planted(mutant):
        assert missed_after(staged, range(begin, begin + MISSED_WITHIN)) is not None


@pytest.fixture
def watched(staged: Stage) -> Iterator[tuple[WatchedDatabase, Turnstile]]:
    url = staged.server.create("chaos_locks", TEMPLATE)
    database, gate = WatchedDatabase(url, lambda: EPOCH, pool_size=4), Turnstile(url)
    yield database, gate
    gate.close()
    database.dispose()
    staged.server.drop("chaos_locks")


def test_who_wait_for_each_other_are_told(
    watched: tuple[WatchedDatabase, Turnstile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last who could still go on has just ended."""
    monkeypatch.setattr(turnstile, "STUCK_LOOKS", 20)
    database, gate = watched

    def locking(*keys: int) -> Operation:
        def work() -> None:
            with database.transaction() as session:
                for key in keys:
                    session.execute(select(func.pg_advisory_xact_lock(key)))

        operation = Operation(f"locks {keys}", work, seed=0)
        gate.begin(operation)
        return operation

    one, other, last = locking(1, 2), locking(2, 1), locking(3)
    while not (one.aside and other.aside):
        for operation in (one, other):
            if operation.point:
                gate.advance(operation)

    def end() -> None:
        while last.point:
            gate.advance(last)

    with pytest.raises(AssertionError, match="all wait for each other"):
        end()


def put(value: str, began: int, ended: int | None, *, expected: str | None = None, done: bool | None = True) -> Seen:
    return Seen(what="put", value=value, expected=expected, began=began, ended=ended, done=done)


def read(value: str, began: int, ended: int) -> Seen:
    return Seen(what="read", value=value, began=began, ended=ended, done=True)


@pytest.mark.parametrize(
    ("seen", "fits"),
    [
        ([put("1", 1, 2), read("1", 3, 4)], True),
        ([put("1", 1, 2), read(ABSENT, 3, 4)], False),
        ([put("1", 1, 4), read(ABSENT, 2, 3)], True),
        ([put("1", 1, 4), read("1", 2, 3), read(ABSENT, 5, 6)], False),
        ([put("1", 1, 2, done=None), read(ABSENT, 3, 4)], True),
        ([put("1", 1, 2, done=None), read("1", 3, 4), read(ABSENT, 5, 6)], False),
        ([put("1", 1, 2), put("2", 3, 6, expected="1"), put("3", 4, 5, expected="1")], False),
        ([put("1", 1, 2), put("2", 3, 6, expected="1"), put("3", 4, 5, expected="1", done=False)], True),
        ([put("1", 1, 2), put("2", 3, 4, expected="1", done=False)], False),
        ([put("1", 1, None, done=None), read(ABSENT, 2, 3), read("1", 4, 5)], True),
    ],
)
def test_histories_are_judged_as_one_register(seen: list[Seen], fits: bool) -> None:
    assert possible(seen) is fits
