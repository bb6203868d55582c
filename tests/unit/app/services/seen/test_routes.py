"""Which replica processes get traffic while a service changes."""

from __future__ import annotations

from dataclasses import replace

from app.services.seen.routes import ReadyProcess, choose_routes, from_report, speaks
from app.store.nodes import NodeReadBack, ReadBackRow, ReportHead
from app.store.telemetry import ReplicaRow
from solvers.domain.plan import Assignment
from tests.unit.app.services.whatif.small_fleet import assignment

ROW = ReadyProcess(
    replica="vision/labels#0",
    kind="service",
    workload="vision/labels",
    uuid="GPU-a0",
    share_pct_sm=25,
    memory_mib_limit=2000,
    batch=4,
)


def row(ordinal: int = 0, uuid: str = "GPU-a0", *, share_pct_sm: int = 25, kind: str = "service") -> ReadyProcess:
    replica = f"vision/labels#{ordinal}"
    return replace(ROW, replica=replica, uuid=uuid, share_pct_sm=share_pct_sm, kind=kind)


def planned(ordinal: int = 0, uuid: str = "GPU-a0", share_pct_sm: int = 25) -> Assignment:
    return assignment("vision/labels", uuid, ordinal=ordinal, share_pct_sm=share_pct_sm)


def test_what_is_ready_as_planned_gets_traffic() -> None:
    rows = [row(0), row(2, "GPU-b0", kind="job")]
    assert choose_routes(rows, [planned(0), planned(1, "GPU-b0")]) == {row(0): True}


def test_a_replica_that_moves_or_grows_is_used_in_its_old_form_until_the_new_one_is_ready() -> None:
    old, new = row(0), row(0, "GPU-b0", share_pct_sm=50)
    wanted = [planned(0, "GPU-b0", 50)]
    assert choose_routes([old], wanted) == {old: False}
    assert choose_routes([old, new], wanted) == {new: True}


def test_replicas_on_their_way_out_are_used_until_everything_planned_is_ready() -> None:
    small = [row(1), row(2)]
    large = row(0, "GPU-b0", share_pct_sm=100)
    wanted = [planned(0, "GPU-b0", 100)]
    assert choose_routes(small, wanted) == {small[0]: False, small[1]: False}
    assert choose_routes([*small, large], wanted) == {large: True}


def test_a_replica_that_ends_for_good_gets_nothing_from_the_first_moment_on() -> None:
    assert choose_routes([row(0), row(1)], [planned(0)]) == {row(0): True}


def test_what_no_plan_knows_is_not_routed_to() -> None:
    assert choose_routes([row(0)], []) == {}


REPORTED = ReplicaRow(
    replica="vision/labels#0",
    kind="service",
    workload="vision/labels",
    model="resnet50",
    uuid="GPU-a0",
    state="ready",
    share_pct_sm=25,
    memory_mib_limit=2000,
    batch=4,
    interval_s=1.0,
    arrived=0.0,
    completed=0.0,
    violated=0.0,
    dropped=0.0,
    queue_length=0.0,
    batch_mean=0.0,
    latency_ms_p50=None,
    latency_ms_p99=None,
    age_s=1.0,
)
NODE_ENDPOINT = "http://10.0.0.7:9000"


def read_back(*replicas: ReadBackRow, boot_id: str = "one", observed_at_s: float = 100.0) -> NodeReadBack:
    return NodeReadBack(
        node_id="a", boot_id=boot_id, generation=1, observed_at_s=observed_at_s, age_s=1.0, replicas=replicas
    )


def found(port: int | None, *, batch: int = 4, ready: bool = True, replica: str = "vision/labels#0") -> ReadBackRow:
    return ReadBackRow(
        replica=replica,
        uuid="GPU-a0",
        share_pct_sm=25,
        memory_mib_limit=2000,
        batch=batch,
        ready=ready,
        endpoint=None if port is None else f"http://10.0.0.7:{port}",
    )


def test_only_ready_processes_of_a_report_count_and_answer_under_their_node() -> None:
    rows = [REPORTED, *(replace(REPORTED, state=state) for state in ("starting", "draining", "failed"))]
    assert from_report(rows, None, NODE_ENDPOINT) == [replace(ROW, endpoint=NODE_ENDPOINT)]
    assert from_report(rows, read_back(found(None)), NODE_ENDPOINT) == [replace(ROW, endpoint=NODE_ENDPOINT)]
    assert from_report(rows, None, None) == [ROW]


def test_a_reported_process_answers_where_it_was_read_back() -> None:
    twins = read_back(found(9001, batch=8), found(9002, ready=False), found(9003))
    assert from_report([REPORTED], twins, NODE_ENDPOINT) == [replace(ROW, endpoint="http://10.0.0.7:9003")]
    both = [REPORTED, replace(REPORTED, batch=8)]
    assert [process.endpoint for process in from_report(both, twins, NODE_ENDPOINT)] == [
        "http://10.0.0.7:9003",
        "http://10.0.0.7:9001",
    ]


def test_a_process_that_was_not_read_back_yet_has_to_wait_where_processes_answer_for_themselves() -> None:
    other = read_back(found(9001, replica="vision/labels#1"))
    assert from_report([REPORTED], other, NODE_ENDPOINT) == []


def test_the_later_observation_speaks_and_the_living_boot() -> None:
    head = ReportHead(node_id="a", boot_id="one", observed_at_s=100.0)
    assert speaks(read_back(), None, "one")
    assert speaks(read_back(observed_at_s=100.0), head, "one")
    assert not speaks(read_back(observed_at_s=99.0), head, "one")
    assert speaks(read_back(boot_id="two", observed_at_s=1.0), head, "two")
    assert not speaks(read_back(boot_id="zero", observed_at_s=999.0), head, "one")
