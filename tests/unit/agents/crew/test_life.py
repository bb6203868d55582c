"""Lives of workers on a host that is none: starts, readiness, drains, ends, and agents that come and go."""

from __future__ import annotations

import errno
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew.crew import HostCrew
from agents.crew.resources import TASKS_MAX, CgroupLimits
from agents.crew.rounds import KILL_AGAIN_S
from agents.crew.users import ProjectUsers, WorkerUser
from agents.crew.web import WebAnswer
from agents.devices.base import WorkerState
from agents.errors import (
    BusyError,
    DeviceTimeoutError,
    NotFoundError,
    NotSupportedError,
    OutOfRangeError,
    SharingError,
    StateFileError,
    WorkerError,
)
from agents.state import StateDirectory
from agents.wire import WarmUpTarget
from tests.unit.agents.crew.doubles import (
    OK,
    UNREACHABLE,
    FakeProcesses,
    World,
    control_groups,
    only,
    order,
    page,
    spec,
    target,
)

NO = WebAnswer(status=503)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path)


def serving(world: World, **totals: float) -> HostCrew:
    """A crew with one worker that answers."""
    world.pages |= {
        "/health": OK,
        "/metrics": page(**(totals or {"completed": 0, "pending": 0})),
        "/headroom/drain": OK,
    }
    crew = world.crew()
    crew.launch(order())
    world.run(crew, 0.5)
    assert only(crew).answering
    return crew


def ignore(pid: int) -> None:
    """Nothing holds this one."""


def test_a_launch_returns_at_once_and_the_worker_is_starting(world: World) -> None:
    crew = world.crew()
    crew.launch(order())
    found = only(crew)
    assert (found.reading.state, found.answering, found.pids) == (WorkerState.STARTING, False, (100,))
    assert found.reading.endpoint == "http://127.0.0.1:30000"
    assert found.reading.sm_count == 0


def test_it_answers_only_after_readiness_and_warm_up(world: World) -> None:
    crew = world.crew()
    warm_up = WarmUpTarget(path="/infer", body="{}", content_type="text/x", requests=2, timeout_s=9.0)
    crew.launch(order(worker=target(warm_up=warm_up)))
    world.run(crew, 1.0)
    assert "Connection refused" in only(crew).reading.problem
    world.pages["/health"] = NO
    world.run(crew, 1.0)
    assert (only(crew).answering, only(crew).reading.problem) == (False, "readiness: answered 503")
    world.pages["/health"] = OK
    crew.make_round()
    world.web.answer(lambda question: OK)
    asked = []
    for _ in range(2):
        asked += world.web.open
        assert not only(crew).answering
        world.web.answer(lambda question: OK)
    assert [(each.path, each.method, each.body, each.timeout_s) for each, _ in asked] == [
        ("/infer", "POST", b"{}", 9.0)
    ] * 2
    assert world.web.asked() == ["/metrics"]
    world.web.answer(lambda question: page(completed=2, pending=0))
    found = only(crew)
    assert (found.answering, found.reading.state, found.reading.problem) == (True, WorkerState.READY, "")
    assert crew.samples()[0].completed == 0.0, "warm-up requests are nobody's work"


def test_a_warm_up_that_fails_is_tried_again(world: World) -> None:
    crew = world.crew()
    crew.launch(
        order(worker=target(warm_up=WarmUpTarget(path="/x", body="", content_type="", requests=1, timeout_s=1.0)))
    )
    world.pages |= {"/health": OK, "/x": WebAnswer(status=500)}
    world.run(crew, 3.0)
    assert (only(crew).answering, only(crew).reading.problem) == (False, "warm-up: answered 500")
    world.pages["/x"] = OK
    world.run(crew, 3.0)
    assert only(crew).answering


def test_starts_of_one_device_take_turns_and_waiting_does_not_count_as_starting(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1"))
    crew.launch(order("w@2"))
    crew.launch(order("w@3", uuid="GPU-b"))
    world.run(crew, 50.0, step_s=1.0)
    states = {found.reading.worker: found for found in crew.found()}
    assert len(world.processes.started) == 2
    assert (states["w@2"].reading.state, states["w@2"].reading.state_s) == (WorkerState.STARTING, 0.0)
    assert "waits for its turn" in states["w@2"].reading.problem
    world.pages["/health"] = OK
    world.run(crew, 3.0)
    assert len(world.processes.started) == 3
    assert all(found.answering for found in crew.found())


def test_a_worker_that_is_started_again_waits_behind_those_that_wait_already(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1"))
    crew.launch(order("w@2"))
    (process,) = world.processes.living
    world.processes.die(process, 1)
    crew.found()
    crew.launch(order("w@3"))
    assert len(world.processes.started) == 1
    world.run(crew, 1.0)
    waits = {found.reading.worker: "its turn" in found.reading.problem for found in crew.found()}
    assert waits == {"w@1": False, "w@2": False, "w@3": True}


def test_workers_with_their_memory_to_themselves_come_up_together(world: World) -> None:
    crew = world.crew(starts_at_once=2)
    for number in range(3):
        crew.launch(replace(order(f"w@{number}"), apart=True))
    world.run(crew, 2.0)
    assert len(world.processes.started) == 2
    world.pages["/health"] = OK
    world.run(crew, 4.0)
    assert len(world.processes.started) == 3
    assert all(found.answering for found in crew.found())


def test_who_reads_what_is_free_of_the_device_comes_up_alone(world: World) -> None:
    crew = world.crew(starts_at_once=4)
    crew.launch(order("w@1"))
    crew.launch(replace(order("w@2"), apart=True))
    world.run(crew, 5.0)
    assert len(world.processes.started) == 1


def test_a_worker_that_is_never_ready_fails_and_lets_the_next_one_start(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1"))
    crew.launch(order("w@2"))
    (world.folder / "logs" / "w@1.log").write_bytes(b"loading\n\x1b[31mno kernel\x07 image\x1b[0m\n")
    world.run(crew, 62.0, step_s=1.0)
    first = crew.found()[0]
    assert first.reading.state is WorkerState.FAILED
    assert "not ready within 60 s" in first.reading.problem
    assert first.reading.problem.endswith("last lines: loading | no kernel image")
    assert len(world.processes.started) == 2


def test_a_process_that_ends_by_itself_is_failed_until_it_is_ended(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    child = world.processes.spawn(process.pid)
    world.processes.die(process, -9)
    world.run(crew, 1.0)
    found = only(crew)
    assert (found.reading.state, found.answering) == (WorkerState.FAILED, False)
    assert "SIGKILL" in found.reading.problem
    assert found.pids == (child.pid,), "what is left of it still holds its share"
    crew.end(found.reading.worker, ignore)
    world.run(crew, 0.5)
    assert crew.found() == ()
    assert world.processes.living == {}


def test_failure_is_seen_by_reading_alone(world: World) -> None:
    crew = serving(world)
    world.processes.die(next(iter(world.processes.living)), 3)
    assert only(crew).reading.state is WorkerState.FAILED
    assert "with status 3" in only(crew).reading.problem


def test_a_pid_that_came_back_is_another_process(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    world.processes.die(process, 0)
    world.processes.next_pid = process.pid
    world.processes.living[type(process)(pid=process.pid, started_ticks=9999)] = 1
    assert only(crew).reading.state is WorkerState.FAILED


def test_who_does_not_answer_any_more_is_not_ready_and_fails_in_the_end(world: World) -> None:
    crew = serving(world)
    world.run(crew, 100.0, step_s=1.0)
    world.pages["/health"] = WebAnswer(status=0, problem="no answer within 2 s")
    world.run(crew, 1.0)
    assert only(crew).answering, "once is nothing"
    world.run(crew, 3.0, step_s=1.0)
    found = only(crew)
    assert (found.answering, found.reading.state) == (False, WorkerState.STARTING)
    assert found.reading.state_s < 10.0
    world.pages["/health"] = OK
    world.run(crew, 3.0, step_s=1.0)
    assert (only(crew).answering, only(crew).reading.state, only(crew).reading.problem) == (True, WorkerState.READY, "")
    world.pages["/health"] = NO
    world.run(crew, 66.0, step_s=1.0)
    assert only(crew).reading.state is WorkerState.FAILED
    assert "no good answer for 60 s: readiness: answered 503" in only(crew).reading.problem


def test_draining_waits_for_routes_then_for_work_twice(world: World) -> None:
    crew = serving(world)
    worker = only(crew).reading.worker
    crew.drain(worker)
    assert (only(crew).reading.state, only(crew).answering) == (WorkerState.DRAINING, False)
    world.pages["/metrics"] = page(completed=0, pending=0)
    world.run(crew, 1.8)
    assert "/headroom/drain" not in [question.path for question in world.fetched] + world.web.asked()
    assert not only(crew).reading.drained
    world.pages["/metrics"] = page(completed=3, pending=2)
    world.run(crew, 3.0)
    assert not only(crew).reading.drained
    world.pages["/metrics"] = page(completed=5, pending=0)
    crew.make_round()
    world.web.answer(lambda question: world.pages[question.path])
    assert not only(crew).reading.drained, "once is not enough"
    world.run(crew, 1.0)
    assert (only(crew).reading.drained, only(crew).reading.problem) == (True, "")


def test_a_drain_ends_when_its_time_is_over(world: World) -> None:
    crew = serving(world)
    crew.drain(only(crew).reading.worker)
    world.pages["/metrics"] = page(completed=3, pending=1)
    world.run(crew, 31.0, step_s=0.5)
    assert not only(crew).reading.drained
    world.run(crew, 2.0, step_s=0.5)
    assert only(crew).reading.drained
    assert "had not finished within 30 s" in only(crew).reading.problem


def test_servers_that_do_not_tell_are_drained_when_nobody_is_connected(world: World) -> None:
    crew = serving(world, completed=1.0)
    crew.drain(only(crew).reading.worker)
    world.pages["/metrics"] = page(completed=1)
    world.connected = 3
    world.run(crew, 6.0)
    assert not only(crew).reading.drained
    world.connected = 0
    world.run(crew, 1.0)
    assert only(crew).reading.drained


def test_what_still_starts_cannot_drain(world: World) -> None:
    crew = world.crew()
    crew.launch(order())
    with pytest.raises(BusyError):
        crew.drain("shop/search-0@1")


def test_an_end_asks_first_and_takes_clients_off_before_it_kills(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    child = world.processes.spawn(process.pid)
    world.processes.deaf = True
    taken: list[tuple[int, int]] = []
    crew.end(only(crew).reading.worker, lambda pid: taken.append((pid, len(world.processes.sent))))
    assert world.processes.sent == [(process.pid, signal.SIGTERM)]
    world.run(crew, 9.8)
    assert taken == []
    world.run(crew, 1.0)
    assert taken == [(process.pid, 1), (child.pid, 1)], "all clients are off before the first is killed"
    assert world.processes.sent[1:] == [(process.pid, signal.SIGKILL), (child.pid, signal.SIGKILL)]
    assert crew.found() == ()
    assert [sample.gone for sample in crew.samples()] == [True]
    assert crew.samples() == ()


def test_children_that_stay_are_asked_too(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    child = world.processes.spawn(process.pid)
    crew.end(only(crew).reading.worker, ignore)
    world.run(crew, 0.5)
    assert (child.pid, signal.SIGTERM) in world.processes.sent
    assert (child.pid, signal.SIGKILL) not in world.processes.sent
    assert crew.found() == ()


def test_a_child_that_left_the_session_is_found_by_its_mark(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    stray = world.processes.spawn(7)
    world.processes.marks[stray] = world.processes.marks[process]
    crew.end(only(crew).reading.worker, ignore)
    world.run(crew, 2.5)
    assert crew.found() == ()
    assert world.processes.living == {}


def test_a_daemon_that_does_not_answer_keeps_nobody_alive(world: World) -> None:
    crew = serving(world)
    world.processes.deaf = True

    def broken(pid: int) -> None:
        raise SharingError("the daemon is gone")

    crew.end(only(crew).reading.worker, broken)
    world.run(crew, 10.0 + KILL_AGAIN_S, step_s=0.5)
    assert crew.found() == ()


def test_a_daemon_that_hangs_does_not_keep_each_of_many_processes_alive(world: World) -> None:
    crew = serving(world)
    (process,) = world.processes.living
    for _ in range(200):
        world.processes.spawn(process.pid)
    world.processes.deaf = True
    asked: list[int] = []

    def hang(pid: int) -> None:
        asked.append(pid)
        world.now += 3.0
        raise DeviceTimeoutError("the daemon does not answer")

    crew.end(only(crew).reading.worker, hang)
    world.run(crew, 9.9)
    began_s = world.now
    world.run(crew, 1.0)
    assert crew.found() == ()
    assert world.now - began_s < 20.0
    assert len(asked) == 4


def test_ends_are_asked_once(world: World) -> None:
    crew = serving(world)
    world.processes.deaf = True
    for _ in range(5):
        crew.end(only(crew).reading.worker, ignore)
        world.run(crew, 1.0)
    assert [number for _, number in world.processes.sent] == [signal.SIGTERM]


def test_who_waits_for_a_turn_ends_without_a_process(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1"))
    crew.launch(order("w@2"))
    crew.end("w@2", ignore)
    assert [found.reading.worker for found in crew.found()] == ["w@1"]
    assert len(world.processes.started) == 1


def test_another_agent_finds_the_workers_and_their_ports(world: World) -> None:
    first = serving(world)
    told = only(first)
    world.now += 30.0
    second = world.crew()
    found = only(second)
    assert (found.reading.worker, found.pids, found.answering) == (told.reading.worker, told.pids, True)
    assert found.reading.spec == told.reading.spec
    assert found.reading.state_s == pytest.approx(told.reading.state_s + 30.0)
    second.launch(order("w@2"))
    assert second.found()[1].reading.endpoint == "http://127.0.0.1:30001"


def test_another_agent_counts_only_what_it_sees(world: World) -> None:
    first = serving(world)
    world.pages["/metrics"] = page(completed=100, pending=3)
    world.run(first, 1.0)
    second = world.crew()
    second.samples()
    world.run(second, 1.0)
    world.pages["/metrics"] = page(completed=110, pending=5)
    second.samples()
    world.run(second, 1.0)
    (sample,) = second.samples()
    assert (sample.completed, sample.queue_length, sample.arrived) == (10.0, 5.0, 15.0)


def test_a_drain_and_an_end_go_on_under_another_agent(world: World) -> None:
    first = serving(world)
    worker = only(first).reading.worker
    first.drain(worker)
    second = world.crew()
    assert only(second).reading.state is WorkerState.DRAINING
    world.run(second, 4.0)
    assert only(second).reading.drained
    world.processes.deaf = True
    second.end(worker, ignore)
    third = world.crew()
    world.run(third, 30.0, step_s=0.5)
    assert only(third).reading.drained, "nobody has told it how clients are taken off"
    third.end(worker, ignore)
    world.run(third, 12.0, step_s=0.5)
    assert third.found() == ()


def test_a_process_whose_agent_died_before_writing_it_down_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.crew()
    monkeypatch.setattr(type(first._bench), "save", lambda bench, member: None)
    first.launch(order())
    monkeypatch.undo()
    second = world.crew()
    assert only(second).pids == () or only(second).pids == (100,)
    world.pages |= {"/health": OK, "/metrics": OK}
    world.run(second, 1.0)
    assert (only(second).pids, only(second).answering) == ((100,), True)


def test_a_process_whose_agent_died_before_bounding_it_is_bounded_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = control_groups(world.folder / "cgroup", enabled="memory")
    world.limits = CgroupLimits(own, delegated=lambda group: group == own.parent)

    class Killed(BaseException):
        pass

    def die(limits: CgroupLimits, name: str, pid: int) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(CgroupLimits, "enter", die)
        with pytest.raises(Killed):
            world.crew().launch(order("w@1", worker=target(host_memory_mib_max=512)))
    assert only(world.crew()).reading.problem == ""
    assert (own.parent / "headroom-worker-w@1" / "cgroup.procs").read_text() == "100"


def test_a_start_that_its_agent_did_not_live_to_make_leaves_no_control_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = control_groups(world.folder / "cgroup", enabled="memory")
    world.limits = CgroupLimits(own, delegated=lambda group: group == own.parent)
    bounded = target(host_memory_mib_max=512)
    world.crew().launch(order("w@1", worker=bounded))
    crew = world.crew()

    class Killed(BaseException):
        pass

    def die(processes: FakeProcesses, made: object, log: int, ending: object) -> None:
        raise Killed

    monkeypatch.setattr(FakeProcesses, "start", die)
    with pytest.raises(Killed):
        crew.launch(order("w@2", uuid="GPU-b", worker=bounded))
    group = own.parent / "headroom-worker-w@2"
    # Files of a control group do not keep it from being removed.
    (group / "memory.max").unlink()
    assert only(world.crew()).reading.worker == "w@1"
    assert [each.name for each in own.parent.glob("headroom-worker-*")] == ["headroom-worker-w@1"]


def test_a_disk_that_takes_nothing_any_more_keeps_no_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the kernel has mounted it for reading alone."""
    crew = serving(world)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def keep(state: StateDirectory, name: str, text: str) -> None:
        raise StateFileError("Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(StateDirectory, "write_text", keep)
    crew.drain(only(crew).reading.worker)
    crew.end(only(crew).reading.worker, ignore)
    world.run(crew, 3.0)
    assert crew.found() == ()
    assert [sample.gone for sample in crew.samples()] == [True]
    again = world.crew()
    assert only(again).reading.state is WorkerState.FAILED
    again.end(only(again).reading.worker, ignore)
    assert again.found() == ()
    with pytest.raises(WorkerError):
        again.launch(order(name="shop/search-0@2"))


def test_a_start_whose_file_stays_is_nobodys_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    world.processes.refusal = "no such file"
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(WorkerError):
        world.crew().launch(order())
    assert len(list((world.folder / "workers").glob("*.json"))) == 1
    assert world.crew().found() == ()


def test_nothing_survives_a_reboot(world: World) -> None:
    serving(world)
    world.boot_id = "another"
    crew = world.crew()
    assert crew.found() == ()
    assert list((world.folder / "workers").glob("*.json")) == []


def test_a_crew_whose_thread_died_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = world.crew()
    monkeypatch.setattr(threading, "excepthook", lambda found: None)

    def broken() -> float:
        raise RuntimeError("a bug")

    monkeypatch.setattr(crew, "make_round", broken)
    crew.begin()
    assert crew._thread is not None
    crew._thread.join(10.0)
    with pytest.raises(WorkerError, match="nobody looks after"):
        crew.found()
    crew.close()


def test_state_that_cannot_be_read_is_said_and_left(world: World) -> None:
    serving(world)
    path = next((world.folder / "workers").glob("*.json"))
    path.write_text("{", encoding="ascii")
    crew = world.crew()
    assert crew.found() == ()
    assert len(crew.lost) == 1
    assert path.exists()


def test_launches_that_cannot_be_are_refused_and_leave_nothing(world: World) -> None:
    crew = world.crew()
    with pytest.raises(NotSupportedError, match="no adapter"):
        crew.launch(order(worker=target(adapter="nobody")))
    with pytest.raises(OutOfRangeError):
        crew.launch(order(worker=target(command=("/bin/true", "{nobody}"))))
    world.processes.refusal = "no such file"
    with pytest.raises(WorkerError):
        crew.launch(order())
    assert crew.found() == ()
    assert crew.samples() == ()
    assert list((world.folder / "workers").glob("*.json")) == []
    world.processes.refusal = ""
    crew.launch(order())
    with pytest.raises(BusyError):
        crew.launch(order())
    with pytest.raises(NotFoundError):
        crew.end("nobody", ignore)


def test_a_worker_without_a_command_needs_simulated_devices(world: World) -> None:
    given = order()
    bare = type(given)(
        worker=given.worker, uuid=given.uuid, spec=spec(None), environment={}, device_memory_mib=given.device_memory_mib
    )
    with pytest.raises(NotSupportedError):
        world.crew().launch(bare)


def test_a_start_that_fails_when_its_turn_comes_is_failed(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1"))
    crew.launch(order("w@2"))
    world.pages["/health"] = OK
    world.processes.refusal = "no such file"
    world.run(crew, 3.0)
    assert crew.found()[1].reading.state is WorkerState.FAILED
    assert "no such file" in crew.found()[1].reading.problem
    crew.end("w@2", ignore)
    assert len(crew.found()) == 1


def test_jobs_work_without_answering_anybody_and_may_be_done(world: World) -> None:
    crew = world.crew()
    crew.launch(order(kind="job", iterations_total=500, worker=target(metrics_path="/metrics")))
    world.run(crew, 0.5)
    assert (only(crew).answering, only(crew).reading.state) == (True, WorkerState.READY)
    world.pages["/metrics"] = page(iterations=120)
    crew.samples()
    world.run(crew, 1.0)
    assert crew.samples()[0].iterations_done == 120
    world.processes.die(next(iter(world.processes.living)), 0)
    world.run(crew, 1.0)
    assert (only(crew).reading.state, only(crew).pids) == (WorkerState.READY, ())
    assert crew.samples()[0].iterations_done == 380, "a good end means that all was done"
    assert crew.samples()[0].iterations_done == 0


def test_a_job_is_told_done_whole_where_its_agent_died_before_it_told_that(world: World) -> None:
    given = order(kind="job", iterations_total=500, worker=target(ready_path="/ready", metrics_path="/metrics"))
    world.pages |= {"/ready": OK, "/metrics": page(iterations=3)}
    first = world.crew()
    first.launch(given)
    world.run(first, 1.0)
    world.processes.die(next(iter(world.processes.living)), 0)
    world.run(first, 1.0)
    for crew in (first, world.crew()):
        # What it did while it came up is in no sample, and what the first agent told may have reached nobody.
        assert [sample.iterations_done for sample in (*crew.samples(), *crew.samples())] == [500, 0]
        assert only(crew).reading.state is WorkerState.READY


def test_a_job_that_does_nothing_for_long_is_told(world: World) -> None:
    def told(crew: HostCrew, seconds: float) -> str:
        world.now += seconds
        crew.samples()
        world.run(crew, 0.5)
        assert only(crew).reading.state is WorkerState.READY
        return only(crew).reading.stalled

    world.pages["/metrics"] = page(iterations=120)
    crew = world.crew()
    crew.launch(order(kind="job", iterations_total=500, worker=target(metrics_path="/metrics")))
    world.run(crew, 0.5)
    assert (told(crew, 5.0), told(crew, 890.0)) == ("", "")
    line = "no progress for more than 15 min, though its process runs"
    assert told(crew, 20.0) == line
    world.pages["/metrics"] = UNREACHABLE
    assert told(crew, 300.0) == line, "nor does its process tell that it went on"
    world.pages["/metrics"] = page(iterations=121)
    assert told(crew, 300.0) == "", "it goes on"
    # An iteration of such a job may take twenty-five minutes.
    assert told(crew, 3000.0) == ""
    assert told(crew, 2000.0) == "no progress for more than 76 min, though its process runs"
    second = world.crew()
    assert (told(second, 5.0), told(second, 890.0), told(second, 20.0)) == ("", "", line)
    world.processes.die(next(iter(world.processes.living)), 0)
    world.run(second, 1.0)
    assert only(second).reading.stalled == ""


def test_a_job_that_tells_no_iterations_is_not_said_to_do_nothing(world: World) -> None:
    world.pages["/metrics"] = page(completed=4)
    crew = world.crew()
    crew.launch(order(kind="job", worker=target(metrics_path="/metrics")))
    for _ in range(3):
        world.run(crew, 0.5)
        crew.samples()
        world.now += 3600.0
    assert only(crew).reading.stalled == ""


def test_a_job_that_ends_badly_has_failed(world: World) -> None:
    crew = world.crew()
    crew.launch(order(kind="job"))
    world.run(crew, 0.5)
    world.processes.die(next(iter(world.processes.living)), 1)
    assert only(crew).reading.state is WorkerState.FAILED


def test_jobs_drain_at_once(world: World) -> None:
    crew = world.crew()
    crew.launch(order(kind="job"))
    world.run(crew, 0.5)
    crew.drain(only(crew).reading.worker)
    assert only(crew).reading.drained


@pytest.mark.parametrize("told_once", [True, False])
def test_a_job_that_was_done_before_it_drains_has_not_failed(world: World, told_once: bool) -> None:
    crew = world.crew()
    crew.launch(order(kind="job"))
    world.run(crew, 0.5)
    world.processes.die(next(iter(world.processes.living)), 0)
    world.run(crew, 1.0)
    if told_once:
        # As of one without a keeper.
        world.processes.statuses.clear()
    crew.drain(only(crew).reading.worker)
    world.run(crew, 2.0)
    assert (only(crew).reading.state, only(crew).reading.problem) == (WorkerState.DRAINING, "")
    crew.end(only(crew).reading.worker, lambda pid: None)
    world.run(crew, 1.0)
    assert crew.found() == ()


def test_host_memory_that_cannot_be_bounded_is_said_only_when_asked(world: World) -> None:
    crew = world.crew()
    crew.launch(order("w@1", worker=target(host_memory_mib_max=512)))
    crew.launch(order("w@2", uuid="GPU-b"))
    first, second = crew.found()
    assert "host memory is not limited to 512 MiB" in first.reading.problem
    assert second.reading.problem == ""


class OneUser(ProjectUsers):
    """Gives every project the same one, which only root could give."""

    def of(self, project: str) -> WorkerUser:
        return WorkerUser(65534, Path("/"), project)


def test_a_worker_with_a_user_of_its_own_is_in_a_control_group_whatever_it_asks(world: World) -> None:
    own = control_groups(world.folder / "cgroup", enabled="memory pids")
    world.limits = CgroupLimits(own, delegated=lambda group: group == own.parent)
    world.crew().launch(order("w@1"))
    world.users = OneUser(world.folder, range(1))
    world.crew().launch(order("w@2", uuid="GPU-b"))
    (group,) = own.parent.glob("headroom-worker-*")
    assert group.name == "headroom-worker-w@2"
    assert (group / "pids.max").read_text() == str(TASKS_MAX)
    assert (group / "cgroup.procs").read_text() == "101"


def test_metrics_are_read_only_when_somebody_wants_them(world: World) -> None:
    crew = serving(world)
    asked: list[str] = []
    for _ in range(50):
        crew.make_round()
        asked += world.web.asked()
        world.web.answer(lambda question: world.pages[question.path])
        world.now += 1.0
    assert set(asked) == {"/health"}
    crew.samples()
    crew.make_round()
    assert world.web.asked().count("/metrics") == 1


def test_requests_of_a_worker_that_fell_are_dropped_once(world: World) -> None:
    crew = serving(world)
    world.pages["/metrics"] = page(completed=4, pending=3)
    crew.samples()
    world.run(crew, 1.0)
    world.processes.die(next(iter(world.processes.living)), 1)
    assert only(crew).reading.state is WorkerState.FAILED
    (sample,) = crew.samples()
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (7.0, 4.0, 3.0, 0.0)
    (rest,) = crew.samples()
    assert (rest.arrived, rest.dropped) == (0.0, 0.0)
    crew.end(only(crew).reading.worker, ignore)
    assert [(each.gone, each.dropped, each.arrived) for each in crew.samples()] == [(True, 0.0, 0.0)]
