"""The crew's workers as clients of MPS: their limits are proved, and none is killed while it is on a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import CrewOptions, HostCrew, open_crew
from agents.devices.base import WorkerState
from agents.devices.parts import CrewOrder
from agents.mps import MpsSharing
from tests.integration.agents.crew.test_crew import alive, found, impatient, order
from tests.integration.agents.mps.bench import Bench, part
from tests.ports import own_ports
from tests.standins.mps import GPUS
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
UUID = GPUS[0].uuid
WORKER = "shop/search-0@1"
SHARE = part(UUID, WORKER, share=25, memory=4000, processes_max=2)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "2")
    yield made
    made.close()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[HostCrew]:
    made = open_crew(
        CrewOptions(state_dir=tmp_path / "crew", ports=own_ports(), route_grace_s=0.1, workers_as_agent=True),
        time.monotonic,
    )
    yield made
    for each in made.found():
        made.end(each.reading.worker, _nobody)
    wait_until(lambda: made.found() == (), "all are gone")
    made.close()


def _nobody(pid: int) -> None:
    """A test that failed takes nobody off."""


def ordered(bench: Bench, sharing: MpsSharing, term: str) -> CrewOrder:
    sharing.open(UUID)
    environment = {**sharing.grant(SHARE), "HEADROOM_STANDIN_CUDA": bench.host.library}
    return replace(order(WORKER, uuid=UUID, term=term, children=1), environment=environment)


def off_the_server(sharing: MpsSharing) -> Callable[[int], None]:
    return lambda pid: sharing.end_client(SHARE, pid)


@pytest.mark.parametrize("term", ["drain", "ignore"])
def test_a_worker_is_proved_bound_and_never_killed_on_its_server(bench: Bench, crew: HostCrew, term: str) -> None:
    sharing = bench.sharing
    crew.launch(impatient(ordered(bench, sharing, term), 0.3))
    wait_until(lambda: found(crew).answering and len(found(crew).pids) == 2, "it answers, and its child is there")
    pids = found(crew).pids
    bench.await_clients(UUID, 2)
    assert set(bench.host.clients(UUID)) == set(pids)

    def proved() -> bool:
        check = sharing.check(SHARE, pids)
        assert check.problem == ""
        return not check.pending and check.sm_count > 0

    wait_until(proved, "its limits are proved")
    crew.drain(WORKER)
    wait_until(lambda: found(crew).reading.drained, "drained")
    assert found(crew).reading.state is WorkerState.DRAINING
    crew.end(WORKER, off_the_server(sharing))
    wait_until(lambda: crew.found() == (), "gone")
    assert alive(pids) == ()
    bench.await_clients(UUID, 0)
    ended_otherwise = set(bench.host.abrupt()) & set(pids)
    assert term != "ignore" or ended_otherwise == set(), "killed while on the server"
