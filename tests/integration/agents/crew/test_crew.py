"""The crew with real processes: every adapter, drains under load, ends of the deaf, agents that are killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agents.crew import CrewOptions, HostCrew, open_crew
from agents.crew.adapters import ADAPTERS, batch_change_of
from agents.devices.base import WorkerSample, WorkerSpec, WorkerState
from agents.devices.parts import CrewOrder, CrewReading
from agents.errors import BusyError, NotSupportedError
from agents.processes import HostProcesses
from agents.wire import WarmUpTarget, WorkerTarget
from tests.ports import own_ports
from tests.standins.servers import command, metrics_port_offset
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0
WARM_UP = WarmUpTarget(path="/infer", body="{}", content_type="application/json", requests=2, timeout_s=5.0)
ROOT = Path(__file__).resolve().parents[4]


@dataclass(slots=True)
class Place:
    """A state directory, and the agents that come and go over it."""

    folder: Path
    ports: range = field(default_factory=own_ports)
    crews: list[HostCrew] = field(default_factory=list)
    log_bytes_max: int = 65536

    def open(self) -> HostCrew:
        """Another agent."""
        options = CrewOptions(
            state_dir=self.folder,
            ports=self.ports,
            route_grace_s=0.1,
            workers_as_agent=True,
            log_bytes_max=self.log_bytes_max,
        )
        self.crews.append(open_crew(options, time.monotonic))
        return self.crews[-1]

    def close(self) -> None:
        """End everything, whatever the test left."""
        for crew in self.crews:
            crew.close()
        left = HostProcesses()
        for path in (self.folder / "workers").glob("*.json"):
            plain = json.loads(path.read_text(encoding="utf-8"))
            for process in left.marked(plain["mark"]):
                left.send(process, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def order(name: str = "shop/search-0@1", uuid: str = "GPU-a", adapter: str = "http", **options: object) -> CrewOrder:
    worker = WorkerTarget(
        command=command(adapter, **options),
        adapter=adapter,
        metrics_port_offset=metrics_port_offset(adapter),
        warm_up=WARM_UP,
        drain_s=10.0,
        stop_s=5.0,
    )
    spec = WorkerSpec(
        replica="shop/search-0",
        kind="service",
        workload="shop/search",
        project="shop",
        model="bert",
        share_pct_sm=50,
        memory_mib_limit=4000,
        batch=4,
        latency_ms_limit=1000.0,
        launch_s=0.1,
        worker=worker,
    )
    return CrewOrder(worker=name, uuid=uuid, spec=spec, environment={}, device_memory_mib=16000)


def impatient(given: CrewOrder, stop_s: float) -> CrewOrder:
    assert given.spec.worker is not None
    return replace(given, spec=replace(given.spec, worker=replace(given.spec.worker, stop_s=stop_s)))


def found(crew: HostCrew, name: str = "shop/search-0@1") -> CrewReading:
    return {each.reading.worker: each for each in crew.found()}[name]


def up(crew: HostCrew, *orders: CrewOrder) -> None:
    for each in orders:
        crew.launch(each)
    wait_until(lambda: all(each.answering for each in crew.found()), "all answer")


def ask(endpoint: str | None, path: str = "/infer", body: bytes = b"{}") -> int:
    """Status of an answer; 0 when there was none."""
    assert endpoint is not None
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint + path, data=body), timeout=10.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host whose processes somebody has used up."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_where_no_thread_is_left_workers_are_ended_all_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    crew, given = place.open(), order()
    deaf = WorkerTarget(command=("/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"), stop_s=0.1)
    crew.launch(replace(given, spec=replace(given.spec, kind="job", worker=deaf)))
    wait_until(lambda: crew.read_log(given.spec.replica, 1, None).lines == ("deaf",), "it does not listen")
    with monkeypatch.context() as patched:
        no_threads(patched)
        crew.end(given.worker, lambda _: None)
        wait_until(lambda: crew.found() == (), "it was killed")
    crew.launch(given)
    wait_until(lambda: found(crew).answering, "the crew goes on")


def alive(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Which of these pids run; zombies of ours do not."""
    return tuple(each.pid for each in HostProcesses().identify(pids))


def ended(crew: HostCrew, name: str = "shop/search-0@1") -> list[int]:
    """End a worker and wait until it is gone; the clients taken off its server."""
    taken: list[int] = []
    crew.end(name, taken.append)
    wait_until(lambda: name not in {each.reading.worker for each in crew.found()}, f"{name} is gone")
    return taken


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_a_worker_lives_under_every_adapter(place: Place, adapter: str) -> None:
    crew = place.open()
    given = order(adapter=adapter, children=1)
    up(crew, given)
    first = found(crew)
    assert first.reading.state is WorkerState.READY
    wait_until(lambda: len(found(crew).pids) == 2, "its child is counted")
    assert all(sample.completed == 0.0 for sample in crew.samples()), "warm-up is nobody's work"
    assert [ask(first.reading.endpoint) for _ in range(7)] == [200] * 7
    (sample,) = crew.samples()
    assert (sample.arrived, sample.completed, sample.dropped, sample.queue_length) == (7.0, 7.0, 0.0, 0.0)
    if adapter in ("http", "vllm", "tensorflow_serving"):
        assert sample.latency_ms_p50 is not None
        assert sample.latency_ms_p99 is not None
        assert 1.0 <= sample.latency_ms_p50 <= sample.latency_ms_p99
    if adapter in ("http", "triton", "vllm"):
        assert (sample.executions, sample.batch_mean) == (7.0, 1.0)
        assert sample.execution_ms_mean is not None
        assert sample.execution_ms_mean >= 1.0
    wanted = replace(given.spec, batch=8)
    assert given.spec.worker is not None
    if batch_change_of(given.spec.worker) == "restart":
        with pytest.raises(NotSupportedError):
            crew.tune("shop/search-0@1", wanted)
    else:
        crew.tune("shop/search-0@1", wanted)
        assert found(crew).reading.spec == wanted
        with urllib.request.urlopen(f"{first.reading.endpoint}/standin/state", timeout=LIMIT_S) as answer:
            assert json.load(answer)["batch"] == 8
    pids = found(crew).pids
    crew.drain("shop/search-0@1")
    wait_until(lambda: found(crew).reading.drained, "drained")
    assert found(crew).reading.problem == ""
    assert ended(crew) == [], "nobody had to be killed"
    assert alive(pids) == ()
    assert [sample.gone for sample in crew.samples()] == [True]
    assert list((place.folder / "workers").iterdir()) == []


def test_a_drain_answers_what_is_in_flight(place: Place) -> None:
    crew = place.open()
    up(crew, order(step_ms=150, term="abort"))
    endpoint = found(crew).reading.endpoint
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(ask(endpoint))) for _ in range(12)]
    for thread in threads:
        thread.start()

    def pending() -> int:
        with urllib.request.urlopen(f"{endpoint}/standin/state", timeout=LIMIT_S) as answer:
            return int(json.load(answer)["pending"])

    wait_until(lambda: pending() >= 8, "requests wait")
    crew.drain("shop/search-0@1")
    assert not found(crew).answering
    assert not found(crew).reading.drained
    wait_until(lambda: found(crew).reading.drained, "drained")
    for thread in threads:
        thread.join(DEADLINE_S)
    assert statuses == [200] * 12
    assert ended(crew) == []
    (last,) = crew.samples()
    assert (last.completed, last.dropped) == (12.0, 0.0)


def test_the_deaf_are_taken_off_their_server_before_they_are_killed(place: Place) -> None:
    crew = place.open()
    up(crew, impatient(order(term="ignore", children=2), 0.3))
    wait_until(lambda: len(found(crew).pids) == 3, "its children are counted")
    pids = found(crew).pids
    seen: list[tuple[int, int]] = []
    crew.end("shop/search-0@1", lambda pid: seen.append((pid, len(alive(pids)))))
    wait_until(lambda: crew.found() == (), "gone")
    assert sorted(pid for pid, _ in seen) == sorted(pids)
    assert {living for _, living in seen} == {3}, "all clients were off before the first was killed"
    assert alive(pids) == ()


def test_a_crash_is_told_with_its_last_words_and_what_is_left_of_it_is_ended(place: Place) -> None:
    crew = place.open()
    up(crew, order(children=1))
    wait_until(lambda: len(found(crew).pids) == 2, "its child is counted")
    leader, child = found(crew).pids
    ask(found(crew).reading.endpoint, "/standin/crash?status=7")
    wait_until(lambda: found(crew).reading.state is WorkerState.FAILED, "failed")
    assert "ended by itself with status 7; last lines: serving bert on 127.0.0.1" in found(crew).reading.problem
    wait_until(lambda: found(crew).pids == (child,), "only its child is left")
    assert ended(crew) == []
    assert alive((leader, child)) == ()


def test_one_that_never_serves_says_what_it_wrote(place: Place) -> None:
    crew = place.open()
    crew.launch(order(crash_s=0.05, exit_status=3))
    wait_until(lambda: found(crew).reading.state is WorkerState.FAILED, "failed")
    assert "with status 3" in found(crew).reading.problem
    assert found(crew).reading.problem.endswith("fatal: out of everything")
    ended(crew)


def test_starts_on_one_device_take_turns(place: Place) -> None:
    crew = place.open()
    names = [f"w@{number}" for number in range(3)]
    for name in names:
        crew.launch(order(name, start_s=0.2))
    crew.launch(order("other@1", uuid="GPU-b", start_s=0.2))
    together = [0]

    def all_answer() -> bool:
        found = crew.found()
        together.append(sum(bool(each.pids) and not each.answering and each.reading.uuid == "GPU-a" for each in found))
        return all(each.answering for each in found)

    wait_until(all_answer, "answers of all")
    assert max(together) == 1
    endpoints = {each.reading.endpoint for each in crew.found()}
    assert len(endpoints) == 4
    for name in [*names, "other@1"]:
        crew.end(name, lambda pid: None)
    wait_until(lambda: crew.found() == (), "gone")


def test_one_that_hangs_keeps_nobody_elses_numbers(place: Place) -> None:
    crew = place.open()
    up(crew, order("a@1"), order("b@1", uuid="GPU-b"))
    first, second = found(crew, "a@1"), found(crew, "b@1")
    ask(first.reading.endpoint, "/standin/hang")
    assert ask(second.reading.endpoint) == 200
    for _ in range(2):
        samples: dict[str, WorkerSample] = {each.reading.worker: each for each in crew.samples()}
        assert (samples["a@1"].completed, samples["b@1"].completed) == (0.0, 1.0)
        assert ask(second.reading.endpoint) == 200
    wait_until(lambda: not found(crew, "a@1").answering, "silence is noticed")
    assert "no answer within" in found(crew, "a@1").reading.problem
    assert found(crew, "b@1").answering
    for name in ("a@1", "b@1"):
        ended(crew, name)


def test_logs_stay_within_their_bounds(place: Place) -> None:
    crew = place.open()
    up(crew, order())
    endpoint = found(crew).reading.endpoint
    for _ in range(8):
        assert ask(endpoint, "/standin/log?bytes=60000") == 200

    def size() -> int:
        return sum(path.stat().st_size for path in (place.folder / "logs").iterdir())

    wait_until(lambda: 0 < size() <= place.log_bytes_max, "cut")
    assert ask(endpoint, "/standin/log?bytes=800") == 200
    wait_until(lambda: any(path.stat().st_size == 800 for path in (place.folder / "logs").glob("*.log")), "goes on")
    ended(crew)


AGENT = """
import os, pickle, sys, time
from agents.crew import CrewOptions, open_crew
from tests.waiting import LIMIT_S, wait_until
order, options = pickle.loads(bytes.fromhex(sys.stdin.read()))
crew = open_crew(options, time.monotonic)
for each in order:
    crew.launch(each)
wait_until(lambda: all(found.answering for found in crew.found()))
print(*[pid for found in crew.found() for pid in found.pids], flush=True)
os.kill(os.getpid(), 9)
"""


def pids_of_a_killed_agent(orders: Sequence[CrewOrder], options: CrewOptions) -> tuple[int, ...]:
    """What an agent of its own started before it died."""
    agent = subprocess.run(
        [sys.executable, "-c", AGENT],
        input=pickle.dumps((orders, options)).hex(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert agent.returncode == -signal.SIGKILL, agent.stderr
    return tuple(map(int, agent.stdout.split()))


def test_workers_outlive_a_killed_agent_and_the_next_one_takes_over(place: Place) -> None:
    options = CrewOptions(state_dir=place.folder, ports=place.ports, route_grace_s=0.1, workers_as_agent=True)
    given = [order("a@1"), impatient(order("b@1", uuid="GPU-b", term="ignore"), 0.3)]
    pids = pids_of_a_killed_agent(given, options)
    assert alive(pids) == pids
    crew = place.open()
    assert {each.reading.worker: each.answering for each in crew.found()} == {"a@1": True, "b@1": True}
    assert tuple(pid for each in crew.found() for pid in each.pids) == pids
    assert ask(found(crew, "a@1").reading.endpoint) == 200
    crew.launch(order("c@1", uuid="GPU-c"))
    assert len({each.reading.endpoint for each in crew.found()}) == 3
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: found(crew, "a@1").reading.state is WorkerState.FAILED, "its end is noticed")
    assert "ended by itself" in found(crew, "a@1").reading.problem
    assert ended(crew, "a@1") == []
    assert ended(crew, "b@1") == [pids[1]]
    ended(crew, "c@1")
    assert alive(pids) == ()


def test_a_worker_whose_agent_was_killed_before_it_wrote_its_process_down_is_taken_over_once(place: Place) -> None:
    options = CrewOptions(state_dir=place.folder, ports=place.ports, workers_as_agent=True)
    killed = "from agents.crew.member import CrewBench\nCrewBench.save = lambda *_: os.kill(os.getpid(), 9)\n"
    agent = subprocess.run(
        [sys.executable, "-c", AGENT.replace("crew = open_crew", killed + "crew = open_crew")],
        input=pickle.dumps(([order()], options)).hex(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (agent.returncode, agent.stdout) == (-signal.SIGKILL, ""), agent.stderr
    (file,) = (place.folder / "workers").glob("*.json")
    plain = json.loads(file.read_text(encoding="utf-8"))
    assert plain["process"] is None
    (left,) = HostProcesses().marked(plain["mark"])
    crew = place.open()
    with pytest.raises(BusyError):
        crew.launch(order())
    wait_until(lambda: found(crew).answering, "it answers")
    assert (found(crew).pids, HostProcesses().marked(plain["mark"])) == ((left.pid,), (left,))
    ended(crew)
    assert not left.lives


def test_a_crew_leaves_no_thread_and_no_file_open(place: Place) -> None:

    def held() -> tuple[int, int]:
        return len(tuple(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = held()
    crew = place.open()
    up(crew, order())
    ended(crew)
    crew.close()
    place.crews.clear()
    assert held() == before


def test_a_job_that_has_done_all_idles(place: Place) -> None:
    crew = place.open()
    given = order(iteration_ms=5, iterations=20)
    assert given.spec.worker is not None
    described = replace(given.spec.worker, metrics_path="/metrics", warm_up=None)
    spec = replace(given.spec, kind="job", iterations_total=20, worker=described)
    crew.launch(replace(given, spec=spec))
    wait_until(lambda: found(crew).pids == () and found(crew).answering, "done")
    assert found(crew).reading.state is WorkerState.READY
    # On a busy machine its metrics may be late once.
    wait_until(lambda: crew.samples()[0].iterations_done == 20, "told")
    ended(crew)


def job(name: str, *command: str, total: int | None = None) -> CrewOrder:
    given = order(name, name)
    worker = WorkerTarget(command=command, stop_s=0.2)
    return replace(given, spec=replace(given.spec, kind="job", iterations_total=total, worker=worker))


@pytest.mark.parametrize("while_nobody_looks", [True, False])
def test_how_a_job_ended_is_known_to_whichever_agent_lives_then(
    place: Place, tmp_path: Path, while_nobody_looks: bool
) -> None:
    options = CrewOptions(state_dir=place.folder, ports=place.ports, workers_as_agent=True)
    end, script = tmp_path / "end", 'until [ -e "$0" ]; do sleep 0.05; done; '
    ways = {"well": "exit 0", "badly": "exit 7", "killed": "kill -KILL $$"}
    orders = [job(name, "/bin/sh", "-c", script + way, str(end), total=500) for name, way in ways.items()]
    pids = pids_of_a_killed_agent(orders, options)
    if while_nobody_looks:
        end.touch()
        wait_until(lambda: not alive(pids), "all have ended")
    crew = place.open()
    end.touch()
    done = dict.fromkeys(ways, 0)

    def all_told() -> bool:
        for each in crew.samples():
            done[each.reading.worker] += each.iterations_done or 0
        failed = {each.reading.worker for each in crew.found() if each.reading.state is WorkerState.FAILED}
        return done["well"] > 0 and failed == {"badly", "killed"}

    wait_until(all_told, lambda: f"the end of all: {done}, {crew.found()}")
    assert done == {"well": 500, "badly": 0, "killed": 0}
    assert found(crew, "well").reading.state is WorkerState.READY
    assert found(crew, "badly").reading.problem == "ended by itself with status 7"
    assert found(crew, "killed").reading.problem == "ended by SIGKILL, perhaps out of host memory"
    for name in ways:
        ended(crew, name)
    assert [*(place.folder / "workers").iterdir()] == []


def test_a_job_whose_keeper_was_killed_too_is_not_said_to_have_ended_well(place: Place, tmp_path: Path) -> None:
    crew = place.open()
    crew.launch(job("a@1", "/bin/sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done', str(tmp_path / "end")))
    pid = found(crew, "a@1").pids[0]
    keeper = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    assert keeper != os.getpid()
    os.kill(keeper, signal.SIGKILL)
    (tmp_path / "end").touch()
    wait_until(lambda: found(crew, "a@1").reading.state is WorkerState.FAILED, "its end is noticed")
    assert found(crew, "a@1").reading.problem == "ended by itself; its status went to nobody who could tell"
    ended(crew, "a@1")


def test_nobody_reaches_a_worker_through_a_port_that_was_its_predecessors(place: Place) -> None:
    crew = place.open()
    seen = []
    for number in range(4):
        name = f"w@{number}"
        up(crew, order(name))
        seen.append(found(crew, name).reading.endpoint)
        ended(crew, name)
    assert len(set(seen)) == 4


@pytest.mark.parametrize("adapter", ["triton", "torchserve"])
def test_a_server_whose_command_does_not_say_its_batch_is_told_before_its_first_request(
    place: Place, adapter: str
) -> None:
    crew = place.open()
    given = order(adapter=adapter, batch="1")
    given = replace(given, spec=replace(given.spec, batch=6))
    crew.launch(given)
    wait_until(lambda: found(crew).answering, "it answers")
    with urllib.request.urlopen(f"{found(crew).reading.endpoint}/standin/state", timeout=LIMIT_S) as answer:
        assert json.load(answer)["batch"] == 6
    assert crew.samples()[0].completed == 0.0
