"""A job that comes touches one device; services are tuned beside whoever comes; memory that can wait stands outside."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.evidence import FindingCode, SilentReporter
from solvers.domain.ids import DeviceId, JobId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners.case import Case
from solvers.planners.registry import propose
from solvers.policies.mudi.curves import MudiParameters, Selector
from solvers.policies.mudi.planner import Mudi, Round
from solvers.policies.mudi.selecting import Slack
from solvers.policies.mudi.sizing import CoordinatedReplica, MudiMemory
from solvers.problems.needs import job_memory_mib
from solvers.verify.checks import is_fatal, verify
from tests import builders

DEVICES = tuple(builders.device("a", index, "a100") for index in range(4))


def room(*names: str, rate_rps: float = 100.0, jobs: int = 0, **of_job: int) -> Snapshot:
    services = [builders.service(name, rate_rps_declared=rate_rps) for name in names]
    made = tuple(builders.job(f"train-{number}", **of_job) for number in range(jobs))
    return builders.snapshot(DEVICES, services, jobs=made)


def slack_of(picture: Snapshot, parameters: MudiParameters | None = None) -> Slack:
    request = builders.request(picture)
    made = Round(request, Case.of(request), MudiMemory(), parameters or MudiParameters())
    made.serve()
    return made.slack


def plan_of(picture: Snapshot, host_mib: float = 65_536.0) -> Plan:
    parameters = MudiParameters(host_mib_per_device=host_mib)
    plan = Mudi(parameters=parameters).propose(builders.request(picture), b"", SilentReporter()).plan
    assert plan is not None
    return plan


def by_device(plan: Plan) -> dict[DeviceId, list[Assignment]]:
    found: dict[DeviceId, list[Assignment]] = defaultdict(list)
    for item in plan.assignments:
        found[item.device].append(item)
    return found


def test_placing_jobs_one_by_one_is_what_the_plan_does() -> None:
    picture = room("one", "two", jobs=7)
    slack = slack_of(picture)
    jobs = {job.id: job for job in picture.jobs}
    needs = [need for need in slack.draft.case.needs if need.kind is WorkloadKind.JOB]
    decisions = {need.workload: slack.place(need, jobs[JobId(need.workload)]) for need in needs}
    plan = plan_of(picture)
    names = [device.id for device in slack.draft.fleet.devices]
    planned = {item.workload: item.device for item in plan.assignments if item.kind is WorkloadKind.JOB}
    found = {workload: names[each.device] for workload, each in decisions.items() if each is not None}
    assert found == planned
    last = decisions[needs[-1].workload]
    assert last is not None
    shares = [item.share_pct_sm for item in by_device(plan)[names[last.device]] if item.kind is WorkloadKind.JOB]
    assert sorted(shares) == sorted(share for share, _ in last.sizes)


def test_only_the_device_that_took_a_job_is_looked_at_again() -> None:
    slack = slack_of(room("one", jobs=3))
    need = next(need for need in slack.draft.case.needs if need.kind is WorkloadKind.JOB)
    decision = slack.place(need, slack.draft.case.snapshot.jobs[0])
    assert decision is not None
    assert np.flatnonzero(slack.scores.company < 0).tolist() == [decision.device]


def test_what_runs_stays_then_grows_then_is_tuned_and_then_the_job_goes() -> None:
    slack = slack_of(room("one", jobs=1))
    ((_, (host,)),) = slack.hosts.items()
    coordinator, option = slack.coordinator, host.placed.option
    assert option is not None
    company = (slack.draft.case.snapshot.jobs[0].model,)
    assert coordinator.needed(host, (), 100.0) == option
    found = [coordinator.needed(_faster(host, factor), company, 100.0) for factor in np.geomspace(1.0, 1000.0, 60)]
    assert (found[0], found[-1]) == (option, None)
    able = [item for item in found if item is not None]
    assert found[: len(able)] == able
    grown = next(item for item in able if item != option)
    assert (grown.batch, grown.share_pct > option.share_pct) == (option.batch, True)
    assert any(item.batch != option.batch for item in able)
    factor = float(np.geomspace(1.0, 1000.0, 60)[found.index(grown)])
    assert coordinator.needed(_faster(host, factor), company, grown.share_pct - 1.0) is None


def _faster(host: CoordinatedReplica, factor: float) -> CoordinatedReplica:
    """The same replica, with more to do."""
    return replace(host, need=replace(host.need, rate_rps=host.need.rate_rps * factor))


def test_jobs_that_can_do_without_meet_where_others_cannot() -> None:
    memory_mib = DEVICES[0].memory_mib
    large = {"memory_mib": int(memory_mib * 0.45)}
    stiff = plan_of(room("one", jobs=12, **large))
    paging = plan_of(room("one", jobs=12, memory_mib_resident_min=4000, **large))
    counts = [sum(item.kind is WorkloadKind.JOB for item in plan.assignments) for plan in (stiff, paging)]
    assert counts[0] < counts[1] == 12
    for items in by_device(paging).values():
        assert sum(item.memory_mib_limit for item in items) <= memory_mib


def test_no_more_than_its_part_of_the_host_is_taken() -> None:
    large = {"memory_mib": int(DEVICES[0].memory_mib * 0.45), "memory_mib_resident_min": 4000}
    picture = room(jobs=12, **large)
    for host_mib in (0.0, 10_000.0, 1e6):
        plan = plan_of(picture, host_mib=host_mib)
        for items in by_device(plan).values():
            full = sum(job_memory_mib(picture.jobs[0]) for _ in items)
            assert full - sum(item.memory_mib_limit for item in items) <= host_mib


def test_a_plan_says_what_is_resident_and_the_verifier_holds_it_to_the_owners_least() -> None:
    picture = room(jobs=12, memory_mib=int(DEVICES[0].memory_mib * 0.45), memory_mib_resident_min=4000)
    plan, movable = plan_of(picture), builders.everything_movable(room(jobs=12))
    assert not is_fatal(verify(picture, plan, movable))
    short = [item for item in plan.assignments if item.memory_mib_limit < picture.jobs[0].memory_mib]
    assert short
    less = replace(short[0], memory_mib_limit=3999)
    changed = replace(plan, assignments=tuple(less if item is short[0] else item for item in plan.assignments))
    assert FindingCode.MEMORY_TOO_SMALL in {item.code for item in verify(picture, changed, movable)}


def test_another_planner_gives_a_job_all_its_memory() -> None:
    picture = room("one", jobs=2, memory_mib=9000, memory_mib_resident_min=3000)
    plan = propose("greedy", builders.request(picture)).plan
    assert plan is not None
    held = [item.memory_mib_limit for item in plan.assignments if item.kind is WorkloadKind.JOB]
    assert held
    assert min(held) >= 9000


@pytest.mark.parametrize("selector", list(Selector))
def test_every_selector_keeps_the_rules(selector: Selector) -> None:
    picture = room("one", "two", jobs=14)
    plan = (
        Mudi(parameters=MudiParameters(selector=selector))
        .propose(builders.request(picture), b"", SilentReporter())
        .plan
    )
    assert plan is not None
    assert not is_fatal(verify(picture, plan, builders.everything_movable(picture)))
    counts = [sum(item.kind is WorkloadKind.JOB for item in items) for items in by_device(plan).values()]
    assert sum(counts) == 12
    assert max(counts) == 3


def test_the_exact_selector_is_never_behind_in_what_it_minimises() -> None:
    picture = room("one", "two", rate_rps=300.0, jobs=6)
    times = {}
    for selector in (Selector.OPTIMAL, Selector.SPREAD, Selector.SLOPE):
        plan = (
            Mudi(parameters=MudiParameters(selector=selector))
            .propose(builders.request(picture), b"", SilentReporter())
            .plan
        )
        assert plan is not None
        jobs = [item for item in plan.assignments if item.kind is WorkloadKind.JOB]
        assert len(jobs) == 6
        times[selector] = sum(100.0 / item.share_pct_sm for item in jobs)
    assert times[Selector.OPTIMAL] <= 1.02 * min(times.values())


PRESSED = Interference(pressure=3.0, sensitivity=3.0)


def pressed(picture: Snapshot) -> Snapshot:
    return replace(picture, profiles=tuple(replace(item, interference=PRESSED) for item in picture.profiles))


def test_a_service_grows_beside_the_job_that_comes_and_where_it_cannot_the_job_waits() -> None:
    came = set()
    for rate_rps in range(20, 1000, 20):
        slack = slack_of(pressed(room("one", rate_rps=float(rate_rps), jobs=1)))
        need = next(need for need in slack.draft.case.needs if need.kind is WorkloadKind.JOB)
        if sum(map(len, slack.hosts.values())) != 1:
            continue
        ((device, (host,)),) = ((at, hosts) for at, hosts in slack.hosts.items() if hosts)
        before = host.placed.option
        # The other devices have jobs enough: it must come here.
        slack.jobs_on[[at for at in range(len(DEVICES)) if at != device]] = slack.parameters.jobs_per_device
        job = slack.draft.case.snapshot.jobs[0]
        believed_ms = slack._tried(device, [(need, job)])
        made = slack.place(need, job)
        assert (believed_ms is None) == (made is None)
        if made is None:
            came.add("waits")
            assert slack.hosts[device][0].placed.option == before
            continue
        after = made.hosts[0].placed.option
        assert before is not None
        assert after is not None
        assert made.device == device
        assert slack.coordinator.needed(made.hosts[0], slack.company(device), 100.0) == after
        # What the exact selector believes before: the job has all that the service leaves once it has grown.
        assert believed_ms == pytest.approx(job.iteration_ms_reference * 100.0 / (100.0 - after.share_pct))
        came.add("grows" if after.share_pct > before.share_pct else "stays")
    assert {"grows", "waits"} <= came


def test_services_that_stay_slow_beside_a_job_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    slack = slack_of(room("one", jobs=1))
    slack.fill()
    assert slack.untuned == 0
    ((device, hosts),) = ((at, hosts) for at, hosts in slack.hosts.items() if hosts)
    monkeypatch.setattr(type(slack.coordinator), "needed", lambda *_: None)
    slack._tune(device)
    assert slack.untuned == len(hosts) == 1


def test_services_that_meet_on_a_device_grow_out_of_one_room() -> None:
    """A job comes only where all of them together can be fast enough beside it, not each with all that is left."""
    pressing = {
        "bert": Interference(pressure=0.0, sensitivity=3.0),
        "resnet50": Interference(pressure=1.5, sensitivity=3.0),
    }
    profiles = [replace(builders.profile(name, "a100"), interference=told) for name, told in pressing.items()]
    came = set()
    for rate_rps in range(20, 280, 20):
        services = [builders.service(name, model="bert", rate_rps_declared=float(rate_rps)) for name in ("one", "two")]
        slack = slack_of(builders.snapshot(DEVICES[:1], services, jobs=(builders.job(),), profiles=profiles))
        before = [host.placed.seat.share_pct for host in slack.hosts[0]]
        need = next(need for need in slack.draft.case.needs if need.kind is WorkloadKind.JOB)
        made = slack.place(need, slack.draft.case.snapshot.jobs[0])
        assert len(before) == 2
        if made is None:
            came.add("waits")
            continue
        for host in made.hosts:
            assert slack.coordinator.needed(host, slack.company(0), 100.0) == host.placed.option
        after = [host.placed.seat.share_pct for host in made.hosts]
        came.add("both grow" if min(now - then for now, then in zip(after, before, strict=True)) > 0 else "stays")
    assert came == {"both grow", "stays", "waits"}


def test_a_job_is_not_started_anew_for_a_few_more_percent() -> None:
    picture = room(jobs=1)
    (fresh,) = (item for item in plan_of(picture).assignments if item.kind is WorkloadKind.JOB)
    for share_pct, then_pct in ((95, 95), (80, 100)):
        stands = replace(fresh, share_pct_sm=share_pct)
        (again,) = plan_of(replace(picture, target=builders.target([stands]))).assignments
        assert again.share_pct_sm == then_pct


def test_a_job_that_stands_stays_where_another_would_go_elsewhere() -> None:
    picture = room("one", jobs=1)
    (fresh,) = (item for item in plan_of(picture).assignments if item.kind is WorkloadKind.JOB)
    for device in DEVICES[1:]:
        stands = replace(fresh, device=device.id)
        again = plan_of(replace(picture, target=builders.target([stands])))
        assert [item.device for item in again.assignments if item.kind is WorkloadKind.JOB] == [device.id]
