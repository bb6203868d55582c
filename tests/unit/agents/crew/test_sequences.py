"""Any sequence of orders, deaths, silences and restarts of the agent: what must hold at every moment."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.devices.base import WorkerSample, WorkerState
from agents.errors import DeviceError
from tests.unit.agents.crew.doubles import OK, UNREACHABLE, World, order, page

NAMES = ("a@1", "b@1", "c@1")
VERBS = (
    "launch",
    "drain",
    "end",
    "time",
    "long",
    "die",
    "child",
    "deaf",
    "silence",
    "speak",
    "work",
    "sample",
    "agent",
)


class Trial:
    """A world, its agents, and what was seen."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder=folder, pages={"/health": OK, "/headroom/drain": OK, "/metrics": page(pending=0)})
        self.crew = self.world.crew()
        self.off_server: set[int] = set()
        self.queues: dict[str, float] = {}
        self.completed = 0.0
        self.came_up: set[str | None] = set()
        """Endpoints of workers that have answered once."""

    def do(self, verb: str, name: str) -> None:
        """One step; what is refused changes nothing."""
        known = {found.reading.worker for found in self.crew.found()}
        processes = self.world.processes
        match verb:
            case "launch" if name not in known:
                self.try_to(lambda: self.crew.launch(order(name, uuid="GPU-b" if name == "c@1" else "GPU-a")))
            case "drain":
                self.try_to(lambda: self.crew.drain(name))
            case "end":
                self.try_to(lambda: self.crew.end(name, self.off_server.add))
            case "time" | "long":
                self.world.run(self.crew, 0.5 if verb == "time" else 70.0, step_s=0.1 if verb == "time" else 1.0)
            case "die" if processes.living:
                processes.die(min(processes.living, key=lambda each: each.pid), 1)
            case "child" if processes.living:
                processes.spawn(processes.living[max(processes.living, key=lambda each: each.pid)])
            case "deaf":
                processes.deaf = not processes.deaf
            case "silence":
                self.world.pages["/health"] = UNREACHABLE
            case "speak":
                self.world.pages["/health"] = OK
            case "work":
                self.completed += 3.0
                self.world.pages["/metrics"] = page(completed=self.completed, pending=self.completed % 4)
            case "sample":
                self.conserve(self.crew.samples())
            case "agent":
                self.queues.clear()
                self.world.web.close()
                self.crew = self.world.crew()

    @staticmethod
    def try_to(verb: Callable[[], None]) -> None:
        try:
            verb()
        except DeviceError:
            return

    def conserve(self, samples: tuple[WorkerSample, ...]) -> None:
        """Requests before and after are the same, as long as one agent counts."""
        for sample in samples:
            name = sample.reading.worker
            assert min(sample.arrived, sample.completed, sample.dropped, sample.queue_length) >= 0.0
            if name in self.queues:
                left = sample.completed + sample.dropped + sample.queue_length
                assert self.queues[name] + sample.arrived == pytest.approx(left)
            self.queues[name] = sample.queue_length
            if sample.gone:
                del self.queues[name]

    def check(self) -> None:
        """What holds at every moment."""
        processes, found = self.world.processes, self.crew.found()
        endpoints = [each.reading.endpoint for each in found]
        assert len(set(endpoints)) == len(endpoints)
        self.came_up |= {each.reading.endpoint for each in found if each.answering}
        self.came_up &= set(endpoints)
        for uuid in ("GPU-a", "GPU-b"):
            starting = [
                each
                for each in found
                if each.reading.uuid == uuid
                and each.reading.state in (WorkerState.STARTING, WorkerState.DRAINING)
                and each.pids
                and each.reading.endpoint not in self.came_up
            ]
            assert len(starting) <= 1, "servers that start together misread the memory"
        killed = {pid for pid, number in processes.sent if number is signal.SIGKILL}
        assert killed <= self.off_server, "killed without having been taken off its server"
        assert all(not each.answering or each.reading.state is WorkerState.READY for each in found)

    def finish(self) -> None:
        """Everything can be ended, and nothing stays."""
        self.world.processes.deaf = False
        for each in self.crew.found():
            self.crew.end(each.reading.worker, self.off_server.add)
        self.world.run(self.crew, 15.0, step_s=0.5)
        assert self.crew.found() == ()
        assert self.world.processes.living == {}
        assert list((self.world.folder / "workers").iterdir()) == []
        assert self.crew._bench.ports.owned() == {}
        self.conserve(self.crew.samples())
        assert self.queues == {}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from(NAMES)), max_size=25))
def test_whatever_happens_nothing_is_shared_leaked_or_killed_too_early(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        for verb, name in steps:
            trial.do(verb, name)
            trial.check()
        trial.finish()
