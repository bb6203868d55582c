"""What a plan leaves short, told to people: who, how much, and why."""

from __future__ import annotations

from dataclasses import replace

from app.services.explaining.explaining import gaps
from app.services.explaining.short import short_lines
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Unplaced
from solvers.domain.workload import WorkloadKind
from tests import builders

FULL = Reason(code=ReasonCode.NO_SHARE_LEFT, subject="t4")


def unplaced(workload: str, short: float = 0.0, kind: WorkloadKind = WorkloadKind.SERVICE) -> Unplaced:
    reasons = (Reason(code=ReasonCode.NO_PROFILE, subject="a100"), FULL)
    return Unplaced(kind=kind, workload=WorkloadId(workload), rate_rps_short=short, reasons=reasons)


def test_who_is_short_is_told_of_how_much_and_why_the_worst_first() -> None:
    on = builders.device("a", 0, "t4")
    standing = [builders.assignment(f"demo/some#{number}", on, capacity_rps=150.0) for number in range(2)]
    standing.append(builders.assignment("demo/dust#0", on, capacity_rps=100.0))
    job = replace(builders.assignment("demo/job#0", on, capacity_rps=0.0), kind=WorkloadKind.JOB)
    items = [
        unplaced("demo/job", kind=WorkloadKind.JOB),
        unplaced("demo/few"),
        unplaced("demo/dust", 1e-6),
        unplaced("demo/some", 100.0),
        unplaced("demo/none", 26.0),
    ]
    found = short_lines([*standing, job], gaps(items, None))
    why = "t4 has too little SM share left"
    assert [(item.id, item.told) for item in found] == [
        ("demo/none", f"100 % of 26 requests/s unserved: {why}"),
        ("demo/some", f"25 % of 400 requests/s unserved: {why}"),
        ("demo/dust", f"less than 0.1 % of 100 requests/s unserved: {why}"),
        ("demo/few", f"too little place: {why}"),
        ("demo/job", f"no place: {why}"),
    ]
    assert [item.part_short for item in found[:2]] == [1.0, 0.25]
    assert found[3].part_short is None


def test_who_is_served_without_a_promise_kept_is_told_once_and_after_who_lacks() -> None:
    on = builders.device("a", 0, "t4")
    facts = (Fact(name="latency_ms_best", value=35.71), Fact(name="latency_ms_limit", value=30.0))
    near = Reason(code=ReasonCode.NEAREST_KNOWN, subject="t4", facts=facts)
    standing = [builders.assignment(f"demo/late#{number}", on, reasons=(near,)) for number in range(2)]
    standing.append(builders.assignment("demo/some#0", on, reasons=(near,)))
    found = short_lines(standing, gaps([unplaced("demo/some", 100.0)], None))
    assert [item.id for item in found] == ["demo/some", "demo/late"]
    assert found[1].told == "served, but nothing known keeps its SLO (latency best 35.71 ms, latency limit 30 ms)"


def test_who_is_served_whole_in_too_few_failure_domains_is_told_of_them() -> None:
    """As when all nodes of one zone are drained: more share on those that are left would not help."""
    facts = (Fact(name="failure_domains_min", value=2.0),)
    spread = Reason(code=ReasonCode.ANTI_AFFINITY, subject="demo/a", facts=facts)
    gap = replace(unplaced("demo/a"), reasons=(FULL, spread))
    on = builders.assignment("demo/a#0", builders.device("a", 0, "t4"))
    (line,) = short_lines([on], gaps([gap], None))
    assert line.told == "too little place: demo/a is barred by neighbour rules (failure domains min 2)"
    (line,) = short_lines([on], gaps([replace(gap, rate_rps_short=10.0)], None))
    assert line.told.endswith("t4 has too little SM share left")


def test_where_no_type_has_a_usable_device_all_are_named() -> None:
    """As when every node is drained; one alone would seem to be what is wanted."""
    types = [Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=name) for name in ("a100", "l4", "t4")]
    missing = Reason(code=ReasonCode.REPLICAS_MIN, subject="demo/a")
    gap = replace(unplaced("demo/a", 10.0), reasons=(*types, missing))
    (line,) = short_lines((), gaps((gap,), None, {WorkloadId("demo/a"): "edge"}))
    assert line.told.endswith("unserved: the pool of policy edge has no usable device of type a100, l4, t4")
    (line,) = short_lines((), gaps((replace(gap, reasons=(types[1], missing)),), None, {}))
    assert line.told.endswith("unserved: the fleet has no usable device of type l4")
