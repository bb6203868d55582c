"""Learning beside answering: little at once, much in the background, and what answers until that is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.services.beliefs import beliefs as module
from app.services.beliefs.beliefs import Belief, Beliefs, Evidence, Progress
from app.services.declared.fleet import Fleet
from app.services.seen.status import StatusReader
from app.store import profiles, telemetry
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import PairPoint, ProfilePoint
from solvers.errors import TransientError
from solvers.models.base import Facts, Origin, Queries
from solvers.models.suite import Suite
from tests import builders
from tests.integration.learned import fitted_once
from tests.integration.planner.world import CLUSTER, World
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
MODEL, GPU_TYPE = ModelName("resnet50"), GpuTypeName("t4")
GRID = [(batch, share) for batch in (1, 4, 16) for share in (20, 50, 80, 100)]
AT_ONCE_MAX, TAKEN_IN_MAX = 4, 8
REALLY_AT_ONCE = module.AT_ONCE_MAX


def points(cells: Sequence[tuple[int, int]], factor: float = 1.0) -> list[ProfilePoint]:
    return [
        ProfilePoint(
            model=MODEL,
            gpu_type=GPU_TYPE,
            batch=batch,
            share_pct_sm=share,
            clock_mhz_sm=1590,
            latency_ms_mean=factor * (1 + 40.0 * batch / share),
        )
        for batch, share in cells
    ]


@dataclass
class Slow:
    """Learns when it is let, and only then; what it was given is remembered."""

    asked: list[Evidence] = field(default_factory=list)
    let: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def __call__(self, evidence: Evidence) -> Suite:
        self.asked.append(evidence)
        assert self.let.wait(30.0)
        if self.fails:
            raise ValueError("the numbers make no sense")
        return fitted_once(evidence)


def idle() -> bool:
    """Whether nobody learns."""
    return "beliefs" not in {each.name for each in threading.enumerate()}


@dataclass
class House:
    """A control plane's store and what is believed of it."""

    world: World
    slow: Slow
    beliefs: Beliefs

    def store(self, found: Sequence[ProfilePoint]) -> None:
        with self.world.database.transaction() as session:
            profiles.put_points(session, found)

    def learned(self) -> Belief:
        """What is believed once there is nothing left to learn."""
        self.slow.let.set()
        # To ask costs more than to see that somebody learns.
        wait_until(lambda: idle() and self.beliefs.belief().progress is Progress.LEARNED, "everything is learned")
        self.slow.let.clear()
        return self.beliefs.belief()


@pytest.fixture
def house(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(module, "AT_ONCE_MAX", AT_ONCE_MAX)
    monkeypatch.setattr(module, "TAKEN_IN_MAX", TAKEN_IN_MAX)
    Fleet(world.database, CLUSTER).prepare()
    slow = Slow()
    yield House(world=world, slow=slow, beliefs=Beliefs(world.database, slow))
    slow.let.set()
    wait_until(idle, "nothing is learned any more")


def latency_ms(belief: Belief, batch: int = 4, share: int = 50) -> tuple[float, Origin]:
    answer = belief.suite.predict(Queries.of(MODEL, GPU_TYPE, batch, share))
    return float(answer.mean[0]), Origin(int(answer.origin[0]))


def test_little_is_learned_at_once(house: House) -> None:
    house.store(points(GRID[:AT_ONCE_MAX]))
    assert house.beliefs.belief().progress is Progress.LEARNED
    assert house.beliefs.belief().suite is house.beliefs.current()
    assert house.slow.asked == []


def test_much_is_learned_in_the_background_and_the_library_answers_until_then(house: House) -> None:
    house.store(points(GRID))
    first = house.beliefs.belief()
    assert first.progress is Progress.LEARNING
    assert latency_ms(first)[1] is not Origin.MEASURED
    assert house.beliefs.belief() is first
    wait_until(lambda: house.slow.asked, "learning began")
    with pytest.raises(TransientError, match="not learned yet"):
        house.beliefs.current()
    then = house.learned()
    assert latency_ms(then) == (pytest.approx(1 + 40 * 4 / 50, rel=0.1), Origin.MEASURED)
    assert then.evidence.points_of(MODEL, GPU_TYPE) == len(GRID)
    assert house.beliefs.current() is then.suite
    assert len(house.slow.asked) == 1


def test_a_few_new_measurements_are_taken_in_before_all_are_learned_again(house: House) -> None:
    house.store(points(GRID[:8]))
    before = house.learned()
    house.store(points(GRID[8:], factor=1.2))
    meanwhile = house.beliefs.belief()
    assert meanwhile.progress is Progress.LEARNING
    assert meanwhile.evidence.points_of(MODEL, GPU_TYPE) == len(GRID)
    cell = GRID[-2]
    assert latency_ms(meanwhile, *cell)[0] > 1.04 * latency_ms(before, *cell)[0]
    assert house.beliefs.current() is meanwhile.suite, "outcomes may be held against what was learned once"
    assert house.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID)


def test_what_was_believed_answers_while_many_new_measurements_are_learned(house: House) -> None:
    house.store(points(GRID[:6]))
    before = house.learned()
    house.store([*points(GRID[6:]), *points([(batch, 37) for batch in (1, 2, 4, 8)])])
    meanwhile = house.beliefs.belief()
    assert meanwhile.progress is Progress.LEARNING
    assert latency_ms(meanwhile) == latency_ms(before)
    assert meanwhile.evidence.points_of(MODEL, GPU_TYPE) == 6
    assert meanwhile.about({(MODEL, GPU_TYPE)}) is meanwhile, "so much is not taken in while somebody waits"
    assert house.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID) + 4


def test_what_is_asked_about_is_taken_in_of_many_new_measurements(house: House) -> None:
    others = [replace(point, model=ModelName("bert-base")) for point in points(GRID)]
    house.store([*points(GRID[:TAKEN_IN_MAX]), *others])
    first = house.beliefs.belief()
    assert latency_ms(first)[1] is not Origin.MEASURED
    about = first.about({(MODEL, GPU_TYPE), (MODEL, "a100")})
    assert about.progress is Progress.LEARNING
    assert latency_ms(about) == (pytest.approx(1 + 40 * 4 / 50, rel=0.2), Origin.MEASURED)
    assert about.evidence.points_of(MODEL, GPU_TYPE) == TAKEN_IN_MAX
    assert first.about({("bert-base", "a100")}) is first
    then = house.learned()
    assert then.about({(MODEL, GPU_TYPE)}) is then


def test_what_was_learned_while_the_database_was_away_is_stored_when_it_is_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, away = profiles.put_fit, threading.Event()

    def put_fit(session: Session, fit: Any) -> None:
        if away.is_set():
            raise TransientError("database: connection refused")
        put(session, fit)

    monkeypatch.setattr(profiles, "put_fit", put_fit)
    other = Beliefs(house.world.database, learns=lambda: False)
    house.store(points(GRID))
    away.set()
    house.learned()
    away.clear()
    assert other.belief().progress is Progress.LEARNING
    house.beliefs.belief()
    assert other.belief().progress is Progress.LEARNED
    assert len(house.slow.asked) == 1


def test_what_is_stored_while_learning_is_learned_next(house: House) -> None:
    house.store(points(GRID[:6]))
    house.beliefs.belief()
    wait_until(lambda: house.slow.asked, "learning began")
    house.store(points(GRID[6:]))
    assert house.beliefs.belief().progress is Progress.LEARNING
    then = house.learned()
    assert then.evidence.points_of(MODEL, GPU_TYPE) == len(GRID)
    assert [len(evidence) for evidence in house.slow.asked] == [6, len(GRID)]


def test_what_is_deleted_while_it_is_learned_is_not_believed(house: House) -> None:
    house.store(points(GRID))
    house.beliefs.belief()
    wait_until(lambda: house.slow.asked, "learning began")
    with house.world.database.transaction() as session:
        profiles.delete_profile(session, MODEL, GPU_TYPE)
    then = house.beliefs.belief()
    assert (then.progress, then.evidence.points_of(MODEL, GPU_TYPE)) == (Progress.LEARNED, 0)
    house.slow.let.set()
    wait_until(idle, "the late answer came")
    assert house.beliefs.belief() is then
    assert house.world.column("SELECT count(*) FROM belief_fits") == [0]


def test_a_model_that_cannot_learn_leaves_what_was_believed(house: House) -> None:
    house.store(points(GRID[:8]))
    before = house.learned()
    house.slow.fails = True
    house.slow.let.set()
    house.store(points([(batch, 37) for batch in range(1, 12)]))
    wait_until(lambda: idle() and house.beliefs.belief().progress is Progress.FAILED, "learning failed")
    assert latency_ms(house.beliefs.belief()) == latency_ms(before)
    house.slow.fails = False
    house.store(points(GRID[8:]))
    assert house.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID) + 11


@pytest.mark.parametrize("count", [AT_ONCE_MAX, len(GRID)])
def test_what_is_built_in_answers_where_nothing_can_be_learned(
    house: House, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    house.slow.fails = True
    house.slow.let.set()
    monkeypatch.setattr(module, "fitted", house.slow)
    house.store(points(GRID[:count]))
    wait_until(lambda: idle() and house.beliefs.belief().progress is Progress.FAILED, "learning failed")
    with pytest.raises(TransientError):
        house.beliefs.current()
    assert latency_ms(house.beliefs.belief())[0] > 0


def test_a_declared_model_is_known_at_once_and_nothing_is_learned_again(house: House) -> None:
    house.store(points(GRID))
    house.learned()
    house.world.declare(replace(builders.model("shelf-scanner"), parameters_million=21.0))
    found = house.beliefs.belief()
    assert found.progress is Progress.LEARNED
    assert "shelf-scanner" in found.evidence.facts.models
    assert latency_ms(found)[1] is Origin.MEASURED
    assert len(house.slow.asked) == 1


def test_pairs_are_learned_and_taken_in_like_points(house: House) -> None:
    house.store(points(GRID))
    before = house.learned()
    pairs = [
        PairPoint(
            gpu_type=GPU_TYPE, model_a=MODEL, batch_a=batch, share_pct_a=50.0, latency_ms_a=3 * (1 + 0.8 * batch),
            model_b=MODEL, batch_b=16, share_pct_b=50.0, latency_ms_b=3 * 13.8,
        )
        for batch in (1, 2, 4, 8)
    ]  # fmt: skip
    with house.world.database.transaction() as session:
        profiles.put_pairs(session, pairs)
    meanwhile = house.beliefs.belief()
    assert meanwhile.progress is Progress.LEARNING
    assert len(meanwhile.evidence) == len(before.evidence) + len(pairs)
    assert len(house.learned().evidence) == len(before.evidence) + len(pairs)


def test_many_may_ask_while_others_store(house: House) -> None:
    house.slow.let.set()

    def ask(_: int) -> float:
        return latency_ms(house.beliefs.belief())[0]

    def keep(row: int) -> float:
        house.store(points(GRID[row : row + 1]))
        return ask(row)

    works: list[tuple[Callable[[int], float], int]] = [(ask, 0) if n % 2 else (keep, n // 2) for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda work: work[0](work[1]), works))
    assert all(latency > 0 for latency in found)
    assert house.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID)


# --- What was learned is kept for whoever comes after


def successor(house: House, learns: Callable[[], bool] = lambda: True) -> House:
    """Another process over the same store, whose learner is held."""
    slow = Slow()
    return replace(house, slow=slow, beliefs=Beliefs(house.world.database, slow, learns))


def test_who_starts_later_knows_what_was_learned_before(house: House) -> None:
    house.store(points(GRID))
    before = house.learned()
    later = successor(house)
    found = later.beliefs.belief()
    assert found.progress is Progress.LEARNED
    queries = Queries.of(MODEL, GPU_TYPE, [1, 3, 16, 64], [15, 50, 77, 100])
    mine, theirs = found.suite.predict(queries), before.suite.predict(queries)
    assert (mine.mean.tolist(), mine.std.tolist()) == (theirs.mean.tolist(), theirs.std.tolist())
    assert later.slow.asked == []


def test_what_was_kept_answers_while_what_came_since_is_learned(house: House) -> None:
    house.store(points(GRID[:8]))
    before = house.learned()
    house.store([*points(GRID[8:]), *points([(batch, 37) for batch in range(1, 12)])])
    later = successor(house)
    found = later.beliefs.belief()
    assert found.progress is Progress.LEARNING
    assert latency_ms(found) == latency_ms(before)
    assert found.evidence.points_of(MODEL, GPU_TYPE) == 8
    assert later.beliefs.current() is found.suite, "outcomes are held against what was kept"
    assert later.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID) + 11


def test_one_learns_and_the_others_load_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    other = successor(house, learns=lambda: False)
    load, waiting = Suite.load, "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"

    def looked_at(state: Any, facts: Facts) -> Suite:
        with house.world.database.raw() as connection:
            assert connection.execute(waiting).fetchall() == [], "no transaction waits for what takes seconds"
        return load(state, facts)

    patience: set[tuple[bool, str]] = set()

    def read(session: Session, *until: datetime) -> Evidence:
        shown = session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        patience.add((bool(until), shown))
        return read_evidence(session, *until)

    read_evidence = module.read_evidence
    monkeypatch.setattr(module, "read_evidence", read)
    monkeypatch.setattr(Suite, "load", looked_at)
    house.store(points(GRID))
    assert house.beliefs.belief().progress is other.beliefs.belief().progress is Progress.LEARNING
    then = house.learned()
    found = other.beliefs.belief()
    assert found.progress is Progress.LEARNED
    assert latency_ms(found) == latency_ms(then)
    assert (other.slow.asked, other.beliefs.belief().evidence.facts == then.evidence.facts) == ([], True)
    assert patience == {(False, "15min"), (True, "15min")}, "who reads much may be slow to take it in"


def test_who_has_to_learn_begins_where_another_died(house: House) -> None:
    leads = threading.Event()
    other = successor(house, leads.is_set)
    house.store(points(GRID))
    other.beliefs.belief()
    assert other.beliefs.belief().progress is Progress.LEARNING
    assert other.slow.asked == []
    leads.set()
    assert other.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID)
    assert len(other.slow.asked) == 1


def test_a_failure_is_known_to_all_and_tried_again_by_who_comes_after(house: House) -> None:
    house.store(points(GRID[:8]))
    before = house.learned()
    house.store(points([(batch, 37) for batch in range(1, 12)]))
    house.slow.fails = True
    house.slow.let.set()
    wait_until(lambda: idle() and house.beliefs.belief().progress is Progress.FAILED, "learning failed")
    watcher = successor(house, learns=lambda: False)
    assert watcher.beliefs.belief().progress is Progress.FAILED
    assert latency_ms(watcher.beliefs.belief()) == latency_ms(before)
    asked = len(house.slow.asked)
    house.world.declare(builders.model("shelf-scanner"))
    assert house.beliefs.belief().progress is Progress.FAILED
    assert len(house.slow.asked) == asked, "who failed does not try the same again"
    assert successor(house).learned().evidence.points_of(MODEL, GPU_TYPE) == 8 + 11


DAMAGE = {
    "nothing": "'{}'",
    "a list": "'[1, 2]'",
    "a word": "'\"suite\"'",
    "another format of suites": "jsonb_set(state, '{format}', '99')",
    "an unknown suite": "jsonb_set(state, '{name}', '\"someone-elses\"')",
    "another version of a model": "jsonb_set(state, '{solo,version}', '\"0\"')",
    "half a model": "state #- '{solo,state,known}'",
    "half of what a model knows": "state #- '{solo,state,known,curves}'",
    "words for numbers": "jsonb_set(state, '{interference,state,shared,mean}', '[\"x\"]')",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_read_is_told_and_the_one_before_answers(
    house: House, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    house.store(points(GRID[:6]))
    before = house.learned()
    house.store([*points(GRID[6:]), *points([(batch, 37) for batch in (1, 2, 4, 8)])])
    house.learned()
    newest = "id = (SELECT max(id) FROM belief_fits)"
    assert len(house.world.rows(f"UPDATE belief_fits SET state = {damage} WHERE {newest} RETURNING 1")) == 1
    later = successor(house)
    found = later.beliefs.belief()
    assert found.progress is Progress.LEARNING
    assert latency_ms(found) == latency_ms(before)
    assert "beliefs.unreadable" in caplog.messages
    assert later.learned().evidence.points_of(MODEL, GPU_TYPE) == len(GRID) + 4
    assert successor(house).beliefs.belief().progress is Progress.LEARNED


def test_old_fits_go_and_the_last_good_one_never_does(house: House) -> None:
    for count in range(6, 12):
        house.store(points(GRID[:count]))
        house.learned()
    counts = "SELECT measurements FROM belief_fits ORDER BY id"
    assert house.world.column(counts) == [9, 10, 11]
    house.slow.fails = True
    house.slow.let.set()
    for share in (33, 34):
        house.store(points([(batch, share) for batch in range(1, 12)]))
        wait_until(lambda: idle() and house.beliefs.belief().progress is Progress.FAILED, "learning failed")
    assert house.world.column(counts) == [10, 11, 33]


def test_measurements_stored_again_are_no_news(house: House) -> None:
    house.store(points(GRID))
    house.learned()
    ((first,),) = house.world.rows("SELECT as_of FROM belief_fits")
    house.store(points(GRID))
    assert house.beliefs.belief().progress is Progress.LEARNED
    ((then,),) = house.world.rows("SELECT as_of FROM belief_fits")
    assert cast("datetime", then) > cast("datetime", first)
    assert len(house.slow.asked) == 1


def test_the_status_says_what_plans_do_not_know_yet(house: House) -> None:
    def said() -> tuple[str, int]:
        reader = StatusReader(house.world.database, CLUSTER)
        counts = house.world.database.read(telemetry.counts, CLUSTER, 15.0)
        return str(reader.fleet(None).beliefs), counts.measurements_unlearned

    cells = [(batch, share) for batch in range(1, 6) for share in range(10, 100, 5)]
    house.store(points(cells[:REALLY_AT_ONCE]))
    assert said() == ("None", 0), "so few are learned before the next answer"
    house.store(points(cells[: REALLY_AT_ONCE + 1]))
    assert said() == ("beliefs are what is built in; newer measurements, being learned: 65", 65)
    house.learned()
    assert said() == ("None", 0)
    with house.world.database.reading() as session:
        (fit,) = profiles.fits_since(session, datetime.min.replace(tzinfo=UTC))
    of = f"beliefs are of {fit.as_of:%Y-%m-%d %H:%M UTC}; newer measurements,"
    house.store(points(cells[:3], 1.1))
    assert said() == (f"{of} being learned: 3", 3)
    house.slow.fails = True
    house.slow.let.set()
    wait_until(lambda: idle() and house.beliefs.belief().progress is Progress.FAILED, "learning failed")
    assert said() == (f"{of} which cannot be learned: 3", 3)
    with house.world.database.transaction() as session:
        profiles.delete_profile(session, MODEL, GPU_TYPE)
    assert said() == ("None", 0)
