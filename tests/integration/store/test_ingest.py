"""Reports are stored exactly once, whatever order, repetition, rivalry or nonsense they come in."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from agents.wire import DeviceReport, EdgeReport, RateSample, ReplicaReport, Report
from app import kinds
from app.store import ingest, nodes, tasks
from app.store.engine import Database
from app.store.ingest import OutcomeKind, RefusalCode, ReportOutcome
from app.store.tables import rate_samples, report_heads, report_log
from solvers.domain.workload import WorkloadKind
from tests.integration.store.samples import (
    count,
    device_report,
    edge_report,
    job,
    joining,
    progress_of,
    put,
    put_node,
    put_project,
    replica_report,
    report,
    task,
)

pytestmark = pytest.mark.integration
ACCEPTED = ReportOutcome(kind=OutcomeKind.ACCEPTED)
DUPLICATE = ReportOutcome(kind=OutcomeKind.DUPLICATE)


def _refused(code: RefusalCode) -> ReportOutcome:
    return ReportOutcome(kind=OutcomeKind.REFUSED, code=code)


@pytest.fixture
def fleet(database: Database) -> Database:
    """Two nodes that have joined."""
    with database.transaction() as session:
        put_node(session, "n1")
        put_node(session, "n2")
    return database


def _send(database: Database, *reports: Report) -> tuple[ReportOutcome, ...]:
    with database.raw() as connection:
        return ingest.ingest(connection, reports)


def _join(database: Database, boot_id: str) -> None:
    with database.transaction() as session:
        nodes.join(session, joining("n1", boot_id))


def _head(database: Database) -> tuple[str, int]:
    """Who speaks for the first node, and how far that one got."""
    with database.reading() as session:
        state = nodes.get(session, "n1")
        found = session.execute(select(report_heads.c.boot_id).where(report_heads.c.source == "node/n1")).scalar_one()
        return found, state.generation_applied


def _stored(database: Database, table: str) -> int:
    with database.raw() as connection:
        return count(connection, table)


def _samples(session: Session, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in session.execute(text(f"SELECT * FROM {table} ORDER BY 1, 7")).mappings()]


SOUND = device_report("GPU-1")
SICK = replace(SOUND, uuid="GPU-2", temperature_c=None, throttle="thermal", healthy=False, share_pct_sm_total=7)
SERVING = replica_report("vision/a#0", "GPU-1", executions=3.0, execution_ms_mean=4.5)
SILENT = replica_report("vision/b#0", "GPU-2", latency_ms_p50=None, latency_ms_p95=None, latency_ms_p99=None)
TRAINING = replace(SILENT, replica="vision/c#0", kind="job", workload="vision/c", iterations_done=12)


@pytest.mark.parametrize("devices", [(SOUND,), (SICK,), (SOUND, SICK), (SICK, SOUND)])
@pytest.mark.parametrize("replicas", [(SERVING,), (SILENT,), (SERVING, SILENT, TRAINING), (TRAINING, SERVING)])
def test_every_field_is_stored(
    fleet: Database, devices: tuple[DeviceReport, ...], replicas: tuple[ReplicaReport, ...]
) -> None:
    sent = report("n1", 7, generation=3, devices=devices, replicas=replicas)
    assert _send(fleet, sent) == (ACCEPTED,)
    with fleet.reading() as session:
        boards, processes = _samples(session, "device_samples"), _samples(session, "replica_samples")
        for said, row in zip(sorted(devices, key=lambda each: each.uuid), boards, strict=True):
            assert asdict(said).items() <= row.items()
        for process, row in zip(sorted(replicas, key=lambda each: each.replica), processes, strict=True):
            assert asdict(process).items() <= row.items()
        for row in (*boards, *processes):
            assert (row["node_id"], row["boot_id"], row["sequence"], row["interval_s"]) == ("n1", "boot-a", 7, 5.0)
            assert row["observed_at"].timestamp() == sent.observed_at_s
        log = session.execute(select(report_log)).mappings().one()
        assert (log["source"], log["sequence"], log["rows"]) == ("node/n1", 7, len(devices) + len(replicas))
        assert log["received_at"] == boards[0]["received_at"] == processes[0]["received_at"]
        state = nodes.get(session, "n1")
        assert (state.last_report_at, state.generation_applied) == (log["received_at"], 3)
        assert nodes.get(session, "n2").last_report_at is None


def test_a_report_that_fills_more_than_a_page_is_stored_whole(fleet: Database) -> None:
    """Sixty-four slices with eight processes on each, whose readings cannot be compressed."""
    devices = [replace(SOUND, uuid=f"MIG-{index:02}", energy_j=math.sqrt(2 + index)) for index in range(64)]
    replicas = [
        replace(
            SERVING, replica=f"vision/a#{index:03}", uuid=f"MIG-{index // 8:02}", iterations_done=index or None,
            **{name: math.sqrt(index + 1 / len(name)) for name in ("held_s", "energy_j", "queue_length", "batch_mean")},
        )
        for index in range(512)
    ]  # fmt: skip
    assert _send(fleet, report("n1", 1, devices=devices, replicas=replicas)) == (ACCEPTED,)
    with fleet.reading() as session:
        boards, processes = _samples(session, "device_samples"), _samples(session, "replica_samples")
    for said, row in zip((*devices, *replicas), (*boards, *processes), strict=True):
        assert asdict(said).items() <= row.items()


def test_what_reports_name_alike_stands_once_in_three_hours(fleet: Database) -> None:
    said = [report("n1", sequence, devices=[SOUND], replicas=[SERVING]) for sequence in range(1, 7)]
    assert _send(fleet, *said[:2]) == (ACCEPTED, ACCEPTED)
    assert _send(fleet, said[2]) == (ACCEPTED,)
    assert _stored(fleet, "sample_shapes") == 1
    failed = replace(SERVING, state="failed", share_pct_sm=9)
    assert _send(fleet, replace(said[3], replicas=(replace(SERVING, state="failed"),))) == (ACCEPTED,)
    assert _stored(fleet, "sample_shapes") == 1
    assert _send(fleet, replace(said[4], replicas=(failed,))) == (ACCEPTED,)
    assert _send(fleet, report("n2", 1, devices=[SOUND], replicas=[SERVING])) == (ACCEPTED,)
    assert _stored(fleet, "sample_shapes") == 3
    # The next three hours begin.
    with fleet.transaction() as session:
        for table, column in (("sample_shapes", "received_at"), ("node_samples", "shaped_at")):
            session.execute(text(f"UPDATE {table} SET {column} = {column} - INTERVAL '3 hours'"))
    assert _send(fleet, said[5]) == (ACCEPTED,)
    assert _stored(fleet, "sample_shapes") == 4
    with fleet.reading() as session:
        rows = _samples(session, "replica_samples")
    found = [(row["node_id"], row["sequence"], row["state"], row["share_pct_sm"]) for row in rows]
    share = SERVING.share_pct_sm
    assert sorted(found) == [
        *(("n1", sequence, "ready", share) for sequence in (1, 2, 3)),
        ("n1", 4, "failed", share),
        ("n1", 5, "failed", 9),
        ("n1", 6, "ready", share),
        ("n2", 1, "ready", share),
    ]


def test_what_was_given_up_named_nothing(fleet: Database) -> None:
    said = report("n1", 1, devices=[SOUND], replicas=[SERVING])
    with fleet.raw() as connection, connection.transaction(force_rollback=True):
        assert ingest.ingest(connection, [said]) == (ACCEPTED,)
    assert _stored(fleet, "sample_shapes") == 0
    assert _send(fleet, said) == (ACCEPTED,)
    assert _stored(fleet, "replica_samples") == 1


def test_a_release_before_writes_rows_and_reads_what_this_one_writes(fleet: Database) -> None:
    """Both run side by side while one is put in the place of the other; it copied into tables of these names."""
    said = report("n1", 1, devices=[SOUND, SICK], replicas=[SERVING, TRAINING])
    assert _send(fleet, said) == (ACCEPTED,)
    with fleet.reading() as session:
        ours = {table: _samples(session, table) for table in ("device_samples", "replica_samples")}
    with fleet.raw() as connection:
        connection.execute("DELETE FROM node_samples")
        for table, before in ours.items():
            names = [name for name in before[0] if name != "received_at"]
            with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN") as stream:
                for row in before:
                    stream.write_row([row[name] for name in names])
    with fleet.reading() as session:
        for table, before in ours.items():
            rows = _samples(session, table)
            assert [row | {"received_at": None} for row in rows] == [row | {"received_at": None} for row in before]
            assert rows[0]["received_at"] > before[0]["received_at"]


def test_a_repeat_is_acknowledged_and_stored_once(fleet: Database) -> None:
    sent = report("n1", 1, devices=[device_report("GPU-1")])
    assert _send(fleet, sent) == (ACCEPTED,)
    assert _send(fleet, sent, sent) == (DUPLICATE, DUPLICATE)
    assert _stored(fleet, "device_samples") == _stored(fleet, "report_log") == 1


def test_a_repeat_inside_a_batch_is_stored_once(fleet: Database) -> None:
    sent = report("n1", 1, devices=[device_report("GPU-1")])
    assert _send(fleet, sent, sent, replace(sent, sequence=2), sent) == (ACCEPTED, DUPLICATE, ACCEPTED, DUPLICATE)
    assert _stored(fleet, "device_samples") == 2


def test_gaps_are_fine_and_late_ones_are_kept_without_moving_the_head(fleet: Database) -> None:
    assert _send(fleet, report("n1", 1), report("n1", 5, generation=4)) == (ACCEPTED, ACCEPTED)
    late = report("n1", 3, generation=2)
    assert _send(fleet, late) == (ACCEPTED,)
    assert _send(fleet, late) == (DUPLICATE,)
    with fleet.reading() as session:
        head = session.execute(select(report_heads)).one()
        assert (head.sequence, nodes.get(session, "n1").generation_applied) == (5, 4)


def test_a_clock_that_runs_backwards_is_refused(fleet: Database) -> None:
    assert _send(fleet, report("n1", 1, observed_at_s=1_000.0)) == (ACCEPTED,)
    back = report("n1", 2, observed_at_s=990.0, devices=[device_report("GPU-1")])
    assert _send(fleet, back) == (_refused(RefusalCode.CLOCK_WENT_BACKWARDS),)
    assert _stored(fleet, "device_samples") == 0
    assert _send(fleet, replace(back, observed_at_s=1_000.0)) == (ACCEPTED,)


@pytest.mark.parametrize("together", [True, False])
def test_a_clock_that_was_ahead_is_followed_once_it_is_right(fleet: Database, *, together: bool) -> None:
    """However far ahead, and though this host's own was, too: nobody waits until that time has come."""
    now_s = time.time() - 10.0
    times = (now_s, now_s + 2 * 86_400.0, now_s + 5.0, now_s - 5.0)
    said = [report("n1", number, observed_at_s=at_s) for number, at_s in enumerate(times, 1)]
    batches = [said] if together else [[each] for each in said]
    told = [outcome for batch in batches for outcome in _send(fleet, *batch)]
    assert told == [ACCEPTED, ACCEPTED, ACCEPTED, _refused(RefusalCode.CLOCK_WENT_BACKWARDS)]
    late = report("n1", 0, observed_at_s=now_s - 60.0)
    assert _send(fleet, report("n1", 9, observed_at_s=times[1]), late) == (ACCEPTED, ACCEPTED)


def test_a_new_boot_may_start_over_in_number_and_time(fleet: Database) -> None:
    assert _send(fleet, report("n1", 90, observed_at_s=2_000.0, generation=9)) == (ACCEPTED,)
    _join(fleet, "boot-b")
    assert _send(fleet, report("n1", 1, boot_id="boot-b", observed_at_s=1_000.0, generation=2)) == (ACCEPTED,)
    with fleet.reading() as session:
        state = nodes.get(session, "n1")
        assert (state.boot_id, state.generation_applied) == ("boot-b", 2)


def test_a_straggler_of_an_older_boot_is_kept_once_and_changes_nothing_else(fleet: Database) -> None:
    old = report("n1", 1)
    _join(fleet, "boot-b")
    assert _send(fleet, old, report("n1", 1, boot_id="boot-b")) == (ACCEPTED, ACCEPTED)
    assert _send(fleet, old) == (DUPLICATE,)
    straggler = report("n1", 2, generation=99)
    assert _send(fleet, straggler, straggler) == (ACCEPTED, DUPLICATE)
    with fleet.reading() as session:
        state = nodes.get(session, "n1")
        assert (state.boot_id, state.generation_applied) == ("boot-b", 0)


def test_a_foreign_boot_displaces_nobody(fleet: Database) -> None:
    """Neither one that never joined, nor an older one, however new its reports are; nobody takes them for life."""
    _join(fleet, "boot-b")
    for boot in ("boot-c", "boot-a"):
        assert _send(fleet, report("n1", 1, boot_id="boot-b" if boot == "boot-c" else boot)) == (ACCEPTED,)
        assert _send(fleet, report("n1", 9, boot_id=boot, generation=7)) == (ACCEPTED,)
        assert _head(fleet) == ("boot-b", 0)
    assert _send(fleet, report("n1", 2, boot_id="boot-b", generation=1)) == (ACCEPTED,)
    assert _head(fleet) == ("boot-b", 1)
    unjoined = report("n2", 1, boot_id="boot-x")
    assert _send(fleet, unjoined, unjoined) == (ACCEPTED, DUPLICATE)
    with fleet.reading() as session:
        assert nodes.get(session, "n2").last_report_at is None


@pytest.mark.parametrize("begun_s", [1_000_000.0, 4_000_000_000.0], ids=["past", "clock behind"])
def test_a_copy_that_came_and_died_leaves_the_living_one_alive(fleet: Database, begun_s: float) -> None:
    """Also where this server's clock is so far behind that all of it is still to come."""
    _send(fleet, report("n1", 1, observed_at_s=begun_s + 1.0))
    _join(fleet, "copy")
    _send(fleet, report("n1", 1, boot_id="copy", observed_at_s=begun_s + 7.0))
    _send(fleet, report("n1", 2, observed_at_s=begun_s + 2.0))
    assert _head(fleet) == ("copy", 0)
    with fleet.raw() as connection:
        connection.execute("UPDATE report_heads SET received_at = now() - interval '31 seconds'")
        connection.execute("UPDATE node_states SET last_report_at = now() - interval '31 seconds'")
    # What it said before the copy did says nothing of now.
    _send(fleet, report("n1", 3, observed_at_s=begun_s + 6.0))
    assert _head(fleet) == ("copy", 0)
    _send(fleet, report("n1", 4, observed_at_s=begun_s + 20.0, generation=2))
    assert _head(fleet) == ("boot-a", 2)
    with fleet.reading() as session:
        age_s = nodes.get(session, "n1").age_s
        assert age_s is not None
        assert age_s < 30.0


def test_repeats_older_than_the_log_are_not_stored_again(fleet: Database) -> None:
    _send(fleet, report("n1", 1), report("n1", 2, observed_at_s=1_000_000.0 + ingest.LATE_S_MAX + 60.0))
    with fleet.raw() as connection:
        connection.execute("DELETE FROM report_log")
    _join(fleet, "boot-b")
    assert _send(fleet, report("n1", 1), report("n1", 1, boot_id="older")) == (DUPLICATE, DUPLICATE)
    assert _head(fleet)[0] == "boot-a"


def test_the_applied_generation_never_falls_within_a_boot(fleet: Database) -> None:
    _send(fleet, report("n1", 1, generation=5))
    _send(fleet, report("n1", 2, generation=4))
    with fleet.reading() as session:
        assert nodes.get(session, "n1").generation_applied == 5


def test_unknown_nodes_are_refused_beside_known_ones(fleet: Database) -> None:
    outcomes = _send(fleet, report("n1", 1), report("stranger", 1), report("n2", 1))
    assert outcomes == (ACCEPTED, _refused(RefusalCode.UNKNOWN_NODE), ACCEPTED)
    assert _stored(fleet, "report_heads") == 2


@pytest.mark.parametrize(
    "spoiled",
    [
        report("n1", 1, devices=[device_report("GPU-\x00")]),
        report("n1", 1, devices=[device_report("GPU-\ud800")]),
        report("n1", 1, devices=[replace(device_report("GPU-1"), clock_mhz_sm=2**40)]),
        report("n1", 2**70),
        report("n1", 1, observed_at_s=math.nan),
        report("n1", 1, observed_at_s=-1.0),
        report("n1", 1, observed_at_s=1e18),
        report("n1", 1, generation=2**65),
    ],
    ids=["nul", "surrogate", "int4", "sequence", "nan", "negative", "future", "generation"],
)
def test_one_unstorable_report_costs_only_itself(fleet: Database, spoiled: Report) -> None:
    good = report("n2", 1, devices=[device_report("GPU-2")])
    assert _send(fleet, spoiled, good) == (_refused(RefusalCode.DATA_INVALID), ACCEPTED)
    assert _stored(fleet, "device_samples") == _stored(fleet, "report_log") == 1
    assert _send(fleet, report("n1", 1)) == (ACCEPTED,)


def test_a_caller_that_fails_afterwards_leaves_nothing(fleet: Database) -> None:
    def fail() -> None:
        with fleet.raw() as connection:
            ingest.ingest(connection, [report("n1", 1, devices=[device_report("GPU-1")])])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert _stored(fleet, "device_samples") == _stored(fleet, "report_heads") == 0
    assert _send(fleet, report("n1", 1)) == (ACCEPTED,)


def test_work_done_adds_up_and_repeats_do_not_count(fleet: Database) -> None:
    with fleet.transaction() as session:
        put_project(session)
        put(session, kinds.JOB, job("train"))
        put(session, kinds.TASK, task("embed"))
        for table in ("jobs", "tasks"):
            session.execute(text(f"UPDATE {table} SET created_at = now() - interval '1 minute'"))
    embedding = replica_report("vision/embed#0", "GPU-1", kind="task", iterations_done=7, completed=7.0)
    training = replica_report("vision/train#0", "GPU-1", kind="job", iterations_done=12, arrived=0.0, completed=0.0)
    ghost = replica_report("vision/ghost#0", "GPU-1", kind="job", iterations_done=3)
    first = report("n1", 1, replicas=[training, ghost, embedding])
    _send(fleet, first, report("n1", 2, replicas=[training]), report("n2", 1, replicas=[training]))
    _send(fleet, first)
    with fleet.reading() as session:
        found = progress_of(session, WorkloadKind.JOB, "train")
        assert found is not None
        assert found.done == 36
        embedded = progress_of(session, WorkloadKind.TASK, "embed")
        assert embedded is not None
        assert embedded.done == 7
        assert progress_of(session, WorkloadKind.JOB, "ghost") is None


def _training(sequence: int, done: int, observed_at_s: float, boot_id: str = "boot-a") -> Report:
    training = replica_report("vision/train#0", "GPU-1", kind="job", iterations_done=done)
    return report("n1", sequence, boot_id=boot_id, observed_at_s=observed_at_s, replicas=[training])


def _age_head(database: Database, ago: str = "40 minutes") -> None:
    """Nothing was heard of anybody for so long."""
    with database.raw() as connection:
        connection.execute(
            f"UPDATE report_heads SET (received_at, observed_at) =\
            (received_at - interval '{ago}', observed_at - interval '{ago}')".encode()
        )


def _declare(database: Database, *, declared_s: float) -> None:
    """The job anew, so long ago."""
    with database.transaction() as session:
        session.execute(text("DELETE FROM jobs"))
        tasks.forget(session, WorkloadKind.JOB, "vision", "train")
        put(session, kinds.JOB, job("train"))
        session.execute(
            text("UPDATE jobs SET created_at = now() - make_interval(secs => :age_s)"), {"age_s": declared_s}
        )


@pytest.mark.parametrize("clock_s", [0.0, -300.0, 300.0], ids=["right", "slow", "fast"])
def test_what_a_predecessor_did_is_not_its_successors(fleet: Database, clock_s: float) -> None:
    """Cut off for forty minutes, a node sends the oldest first; the job was declared anew ten minutes ago."""
    now_s = time.time() + clock_s
    with fleet.transaction() as session:
        put_project(session)
        put(session, kinds.JOB, job("train"))
    _send(fleet, _training(1, 1, now_s))
    _age_head(fleet)
    _declare(fleet, declared_s=600.0)
    # Three boots: one that died meanwhile, the one that speaks, in two requests, and the same again.
    _join(fleet, "boot-b")
    _send(fleet, _training(1, 10, now_s - 1.0, "boot-b"))
    _send(fleet, _training(2, 100, now_s - 2_300.0), _training(3, 200, now_s - 2_200.0))
    _send(fleet, _training(4, 400, now_s - 900.0), _training(5, 20, now_s - 300.0))
    with fleet.reading() as session:
        found = progress_of(session, WorkloadKind.JOB, "train")
        assert found is not None
        assert found.done == 30
        age_s = (found.updated_at - found.begun_at).total_seconds()
        assert age_s == pytest.approx(300.0, abs=120.0)


def test_work_that_was_done_in_time_ended_in_time(fleet: Database) -> None:
    """However late the report of it came; and what an agent that goes on has kept, it sends the oldest first."""
    now_s = time.time()
    _send(fleet, report("n1", 1, observed_at_s=now_s))
    _age_head(fleet)
    with fleet.transaction() as session:
        put_project(session)
        put(session, kinds.JOB, job("train"))
        session.execute(text("UPDATE jobs SET created_at = now() - interval '20 minutes'"))
    _send(fleet, _training(2, 5_000, now_s - 1_800.0), _training(3, 400, now_s - 900.0))
    _send(fleet, _training(4, 600, now_s - 610.0), _training(5, 1, now_s - 600.0))
    _send(fleet, _training(6, 1, now_s))
    with fleet.reading() as session:
        found = progress_of(session, WorkloadKind.JOB, "train")
        assert found is not None
        assert found.done == 1_000
        ages_s = [(found.updated_at - at).total_seconds() for at in (found.begun_at, found.finished_at)]
        assert ages_s == pytest.approx([900.0, 600.0], abs=120.0)


def test_a_clock_that_is_set_right_is_believed_again(fleet: Database) -> None:
    """The database's stood ten hours back for a while; reports that come as they are made tell."""
    now_s, found = time.time(), []
    told = [(now_s + 36_000.0, "0 s"), (now_s, "36005 s"), (now_s + 1.0, "2 s")]
    for sequence, (observed_at_s, ago) in enumerate(told, 1):
        _age_head(fleet, ago)
        _send(fleet, report("n1", sequence, observed_at_s=observed_at_s))
        with fleet.reading() as session:
            found.append(session.execute(select(report_heads.c.behind_s)).scalar_one())
    assert found == pytest.approx([-36_000.0, -36_000.0, 0.0], abs=600.0)


def test_rivals_sending_the_same_reports_store_them_once(fleet: Database) -> None:
    batches = [
        [report(node, sequence, devices=[device_report(f"GPU-{node}")]) for node in order]
        for sequence in range(1, 21)
        for order in (("n1", "n2"), ("n2", "n1"))
    ]
    with ThreadPoolExecutor(4) as pool:
        outcomes = [outcome for sent in pool.map(lambda batch: _send(fleet, *batch), batches) for outcome in sent]
    assert outcomes.count(ACCEPTED) == outcomes.count(DUPLICATE) == 40
    assert _stored(fleet, "device_samples") == _stored(fleet, "report_log") == 40


def test_offered_load_is_stored_once_per_gateway(database: Database) -> None:
    sent = edge_report(1, {"vision/a": 10.0, "vision/b": 0.0})
    with database.raw() as connection:
        assert ingest.ingest(connection, [sent, sent]) == (ACCEPTED, DUPLICATE)
        assert ingest.ingest(connection, [edge_report(1, {"vision/a": 4.0}, gateway="other")]) == (ACCEPTED,)
    with database.reading() as session:
        rows = session.execute(select(rate_samples).order_by(rate_samples.c.arrived)).all()
        assert [(row.gateway, row.service, row.project, row.arrived) for row in rows] == [
            ("edge", "vision/b", "vision", 0.0),
            ("other", "vision/a", "vision", 4.0),
            ("edge", "vision/a", "vision", 10.0),
        ]


def test_a_bad_edge_report_costs_only_itself(database: Database) -> None:
    bad = EdgeReport(
        gateway="edge",
        boot_id="b",
        sequence=1,
        observed_at_s=5.0,
        samples=(RateSample(service="\x00", arrived=1.0, interval_s=1.0),),
    )
    with database.raw() as connection:
        outcomes = ingest.ingest(connection, [bad, edge_report(1, {"vision/a": 1.0}, gateway="other")])
    assert outcomes == (_refused(RefusalCode.DATA_INVALID), ACCEPTED)


def test_a_gateway_and_a_node_of_one_name_do_not_meet(fleet: Database) -> None:
    _send(fleet, report("n1", 5, boot_id="boot-a"))
    with fleet.raw() as connection:
        assert ingest.ingest(connection, [edge_report(5, {"vision/a": 1.0}, gateway="n1")]) == (ACCEPTED,)
