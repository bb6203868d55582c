"""From telemetry to what is learned: outcomes arrive, lies are turned away, changes are told once, nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from app.services.beliefs.learning import Learning
from app.store import outcomes
from app.store.engine import Database
from app.store.outcomes import POINTS_PER_MODEL_MAX
from solvers.errors import LeaseLostError, TransientError
from solvers.models.online.forecasts import Belief, forecasts, taught
from solvers.models.online.outcomes import begun, with_value
from tests.integration.learning.minutes import LEADER, Always, Running, Story, rows, told
from tests.unit.solvers.models.told import Formula, outcome, suite_of

pytestmark = pytest.mark.integration

A = Running(name="vision/a#0")


def learned(database: Database) -> Learning:
    """One run with a belief that expects what `Formula` says."""
    learning = Learning(database, Always().current)
    learning.learn(LEADER)
    return learning


def test_outcomes_become_points_and_the_view_tells_the_errors(database: Database) -> None:
    """22 ms instead of the 20 expected: a bias of -9.1 %, outside the 80 % interval of 5 %, inside that of 95 %."""
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        for minute in range(8, 0, -1):
            story.minute(minute, "g1", [replace(A, execution_ms=21.9)])
    learned(database)
    with database.reading() as session:
        (point,) = outcomes.all_points(session)
        mark = outcomes.belief_mark(session)
    assert point.latency_ms == pytest.approx(21.9)
    assert (point.outcomes, point.first.batch, point.first.clock_mhz_sm) == (7, 8.0, 1590.0)
    assert mark == "0/1/2"
    found = rows(
        database,
        "SELECT outcomes, admitted, rejected, predicted FROM prediction_error_by_model_hour",
    )
    assert tuple(map(sum, zip(*found, strict=True))) == (8, 7, 1, 7)
    assert all(row.outcomes == row.admitted + row.rejected for row in found)
    view = rows(database, "SELECT * FROM prediction_error_by_model_hour WHERE predicted > 0")
    for row in view:
        assert (row.model, row.gpu_type) == ("resnet50", "t4")
        assert row.bias_pct == pytest.approx(-100 * 1.9 / 21.9)
        assert row.error_pct_mean == row.error_pct_max == pytest.approx(100 * 1.9 / 21.9)
        assert row.error_pct_rms == pytest.approx(row.error_pct_mean)
        assert (row.coverage_80_pct, row.coverage_95_pct) == (0, 100)
    assert rows(database, "SELECT admitted, rejected, rebuilt FROM learning_marks") == [(7, 1, 0)]
    assert told(database) == [("outcome.rejected", "outcomes")]
    facts = rows(database, "SELECT facts FROM events")[0][0]
    assert facts["cold_start"] == 1


def test_the_reader_may_read_the_views(database: Database) -> None:
    with database.reading() as session:
        session.execute(text("SET LOCAL ROLE headroom_reader"))
        for view in ("prediction_error_by_model_hour", "outcome_by_verdict_hour"):
            assert session.execute(text(f"SELECT * FROM {view}")).all() == []


def test_reports_that_lie_teach_nothing(database: Database) -> None:
    """One device for each way of lying, each ten times slower than the truth; the honest one beside them is learned."""
    slow = replace(A, execution_ms=200.0, executions=20.0)
    lies: dict[str, tuple[list[Running], dict[str, object]]] = {
        "throttled": ([slow], {"throttle": "thermal"}),
        "device_unhealthy": ([slow], {"healthy": False}),
        "share_mismatch": ([replace(slow, sm_count=4)], {}),
        "failing": ([replace(slow, dropped=500.0)], {}),
        "too_few_executions": ([replace(slow, executions=1.0)], {}),
        "cold_start": ([slow, replace(A, name="vision/b#0", state="starting", executions=0.0)], {}),
        "beside_training": ([slow, replace(A, name="t/j#0", kind="job", executions=0.0)], {}),
        "implausible": ([replace(slow, executions=100.0)], {}),
        "outlier": ([slow], {}),
        "clock_mismatch": ([slow], {"clock_mhz_sm": 1200}),
    }
    with database.transaction() as session:
        story = Story(session)
        for uuid in ("honest", *lies):
            story.device(uuid)
        session.execute(
            text("INSERT INTO node_targets (node_id, generation, document) VALUES ('n1', 1, CAST(:plain AS jsonb))"),
            {"plain": '{"devices": [{"uuid": "clock_mismatch", "clock_mhz_sm": 1590}]}'},
        )
        for minute in range(4, 0, -1):
            story.minute(minute, "honest", [A])
            for uuid, (running, board) in lies.items():
                story.minute(minute, uuid, running, **board)
    learned(database)
    counts = dict(rows(database, "SELECT verdict, sum(outcomes) FROM outcome_by_verdict_hour GROUP BY 1"))
    # The first minute of every device but the broken ones is cold, and so is everybody beside a starting neighbour.
    assert counts.pop("admitted") == 3
    assert counts.pop("cold_start") == 4 + 8
    assert counts.pop("device_unhealthy") == counts.pop("failing") == 4
    assert counts == {reason: 3 for reason in lies if reason not in ("cold_start", "device_unhealthy", "failing")}
    with database.reading() as session:
        points = [point for point in outcomes.all_points(session) if point.values]
    assert [point.latency_ms for point in points] == [pytest.approx(20.0)]
    assert [name for name, _ in told(database)] == ["outcome.rejected"]


def test_a_failed_process_is_failing(database: Database) -> None:
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        story.minute(2, "g1", [A])
        story.minute(1, "g1", [replace(A, state="failed")])
    learned(database)
    assert ("failing", 1) in [tuple(row) for row in rows(database, "SELECT verdict, outcomes FROM outcome_hours")]


def test_a_lasting_change_is_told_once_and_taught(database: Database) -> None:
    """Everything takes 40 % longer from one minute on: one event of drift, one rebuilding, and the belief follows."""
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        for minute in range(29, 0, -1):
            story.minute(minute, "g1", [replace(A, execution_ms=20.0 if minute > 12 else 28.0)])
    learned(database)
    assert told(database)[:2] == [
        ("belief.drifted", "beliefs/resnet50/t4"),
        ("belief.retrained", "beliefs/resnet50/t4"),
    ]
    assert [name for name, _ in told(database)].count("belief.drifted") == 1
    facts = rows(database, "SELECT facts FROM events WHERE name = 'belief.drifted'")[0][0]
    assert facts["shift_pct"] == pytest.approx(40.0, abs=0.1)
    with database.reading() as session:
        known = outcomes.all_points(session)
    assert known[0].latency_ms == pytest.approx(28.0)
    assert rows(database, "SELECT rebuilt FROM learning_marks") == [(1,)]
    before, after = suite_of(Formula()), taught(suite_of(Formula()), known)
    asked = (outcome(batch=8.0),)
    assert [each.mean_ms for each in forecasts(asked, before) if each] == [pytest.approx(20.0)]
    assert [each.mean_ms for each in forecasts(asked, after) if each] == [pytest.approx(28.0)]


def test_a_slow_device_is_told_once_teaches_nothing_and_is_told_when_well(database: Database) -> None:
    """One of three boards takes half as long again for ten minutes, throttled by heat in the end; then it is well."""
    boards = {"g1": A, "g2": replace(A, name="vision/a#1"), "g3": replace(A, name="vision/a#2")}
    learning = Learning(database, Always().current)

    def minutes(span: range, g3_ms: float, **board: object) -> None:
        with database.transaction() as session:
            story = Story(session)
            for uuid in boards:
                story.device(uuid)
            for minute in span:
                for uuid, running in boards.items():
                    slow = uuid == "g3" and g3_ms > 20.0
                    ms = g3_ms if slow else 20.0
                    story.minute(minute, uuid, [replace(running, execution_ms=ms)], **(board if slow else {}))
            from_here = story.end - timedelta(minutes=span.start)
            session.execute(text("UPDATE learning_marks SET seen_until = :from_here"), {"from_here": from_here})
        learning.learn(LEADER)

    minutes(range(29, 19, -1), 30.0, throttle="hw_thermal")
    (found,) = rows(database, "SELECT uuid, gpu_type, factor FROM slow_devices")
    assert (found.uuid, found.gpu_type, found.factor) == ("g3", "t4", pytest.approx(1.5))
    assert ("device.slow", "devices/g3") in told(database)
    minutes(range(19, 14, -1), 30.0)
    with database.reading() as session:
        assert all(point.latency_ms == pytest.approx(20.0) for point in outcomes.all_points(session))
    counts = dict(rows(database, "SELECT verdict, sum(outcomes) FROM outcome_by_verdict_hour GROUP BY 1"))
    assert counts["slow_device"] >= 5
    minutes(range(14, 1, -1), 20.0)
    assert rows(database, "SELECT uuid FROM slow_devices") == []
    assert [name for name, subject in told(database) if subject == "devices/g3"] == ["device.slow", "device.steady"]


def test_neighbours_and_slices_are_seen(database: Database) -> None:
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        for minute in range(3, 0, -1):
            story.minute(minute, "g1", [A, replace(A, name="vision/b#0", model="bert-base", executions=375.0)])
    learned(database)
    with database.reading() as session:
        points = {point.first.model: point for point in outcomes.all_points(session)}
    (neighbour,) = points["resnet50"].first.neighbours
    assert (neighbour.model, neighbour.share_pct_sm, neighbour.batch) == ("bert-base", 50, 8.0)
    assert neighbour.busy == pytest.approx(0.5)


def test_agents_that_do_not_measure_are_taken_in_and_teach_nothing(database: Database) -> None:
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        for minute in range(3, 0, -1):
            story.minute(minute, "g1", [replace(A, executions=0.0, execution_ms=None)])
    learned(database)
    assert rows(database, "SELECT * FROM outcome_hours") == []
    assert rows(database, "SELECT admitted, rejected FROM learning_marks") == [(0, 0)]


def told_minutes(database: Database) -> None:
    with database.transaction() as session:
        story = Story(session)
        story.device("g1")
        for minute in range(6, 0, -1):
            story.minute(minute, "g1", [A])


def test_a_second_run_finds_nothing_new(database: Database) -> None:
    told_minutes(database)
    learning = learned(database)
    before = rows(database, "SELECT * FROM outcome_hours")
    learning.learn(LEADER)
    assert rows(database, "SELECT * FROM outcome_hours") == before


def test_a_run_that_dies_leaves_nothing_and_is_repeated_whole(database: Database) -> None:
    class Dying:
        def current(self) -> Belief:
            raise TransientError("gone")

    told_minutes(database)
    with pytest.raises(TransientError):
        Learning(database, Dying().current).learn(LEADER)
    assert rows(database, "SELECT * FROM learning_marks") == []
    learned(database)
    assert rows(database, "SELECT admitted FROM learning_marks") == [(5,)]


def test_a_leader_that_was_overtaken_writes_nothing(database: Database) -> None:
    class Overtaken:
        """While it thinks, its successor learns."""

        def current(self) -> Belief:
            Learning(database, Always().current).learn(replace(LEADER, holder="successor", fencing=LEADER.fencing + 1))
            return Formula()

    told_minutes(database)
    with pytest.raises(LeaseLostError):
        Learning(database, Overtaken().current).learn(LEADER)
    assert rows(database, "SELECT admitted, fencing_token FROM learning_marks") == [(5, 8)]
    assert rows(database, "SELECT sum(outcomes) FROM outcome_hours WHERE verdict = 'admitted'") == [(5,)]
    rows_before = rows(database, "SELECT * FROM outcome_points")
    with database.transaction() as session:
        session.execute(text("UPDATE learning_marks SET seen_until = seen_until - INTERVAL '5 minutes'"))
    with pytest.raises(LeaseLostError):
        Learning(database, Always().current).learn(LEADER)
    assert rows(database, "SELECT * FROM outcome_points") == rows_before


def test_points_are_bounded(database: Database) -> None:
    base = outcome()
    many = [
        with_value(begun(replace(base, share_pct_sm=1 + index % 100, batch=2.0 ** (index // 100))), 1.0, 1e9 + index)
        for index in range(POINTS_PER_MODEL_MAX + 50)
    ]
    with database.transaction() as session:
        outcomes.put_points(session, many)
        assert outcomes.trim_points(session, {("resnet50", "t4"), ("other", "t4")}) == 50
    with database.reading() as session:
        left = outcomes.points_of(session, {("resnet50", "t4")})
    assert min(point.seen_s for point in left) == 1e9 + 50
    assert set(left) <= set(many)
