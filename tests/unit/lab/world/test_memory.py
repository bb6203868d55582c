"""Training memory moves between device and host: in place, at a price, and never beyond what a device has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.world.device import DeviceLoad, Trainee, settle
from lab.world.nodes import WorldNodes
from lab.world.scenario import JobEntry
from lab.world.state import Process, TargetByDevice, swapped_mib
from lab.world.world import state_of
from solvers.domain.change import Target
from solvers.domain.ids import DeviceId, Generation, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.workload import WorkloadKind
from solvers.errors import FieldError
from solvers.sim.truth.catalogue import GPUS
from solvers.sim.truth.truth import swap_s
from tests import builders
from tests.simulation.small_world import FIRST, replica, scenario

LAUNCH_S = 5.0
JOBS = {
    "pages": builders.job("pages", memory_mib=8000, memory_mib_resident_min=2000),
    "slow": builders.job("slow", memory_mib=4000, memory_mib_resident_min=1000, iteration_ms_reference=900.0),
    "stiff": builders.job("stiff", memory_mib=8000),
}


def on_device(name: str, memory_mib: int) -> Assignment:
    workload = WorkloadId(f"demo/{name}")
    item = replica(device=FIRST, share_pct_sm=20, memory_mib_limit=memory_mib)
    return replace(item, replica=ReplicaId(f"{workload}#0"), kind=WorkloadKind.JOB, workload=workload)


class Fleet:
    """Nodes with jobs, told by hand."""

    def __init__(self) -> None:
        world = scenario(jobs=tuple(JobEntry(job=job) for job in JOBS.values()))
        self.state = state_of(world, world.policy)
        self.nodes = WorldNodes(
            state=self.state,
            launch_s=lambda model, cell: LAUNCH_S,
            memory_mib=lambda model, batch: 1500.0,
            queue_of=lambda process: process.queue,
            on_change=lambda cell: None,
        )
        self.cell = self.state.cells[DeviceId(FIRST)]

    def tell(self, *items: Assignment, instantly: bool = False) -> None:
        target = Target(generation=Generation(self.state.target.generation + 1), assignments=items)
        self.state.wish = TargetByDevice.of(target)
        for host in self.state.hosts.values():
            self.nodes.hear(host, self.state.wish, instantly=instantly)
        self.state.kernel.happen()

    def wait(self, seconds: float) -> None:
        kernel, until_s = self.state.kernel, self.state.now_s + seconds
        while kernel.now_s < until_s:
            kernel.move(min(until_s, kernel.next_s()))
            kernel.happen()

    def process(self, name: str) -> Process:
        (found,) = (each for each in self.cell.processes if each.item.workload == f"demo/{name}")
        return found


def test_a_job_that_pages_keeps_its_process_and_waits_for_the_way() -> None:
    fleet = Fleet()
    fleet.tell(on_device("pages", 8000), instantly=True)
    before = fleet.process("pages")
    fleet.tell(on_device("pages", 3000))
    assert fleet.process("pages") is before
    assert before.item.memory_mib_limit == 3000
    assert before.pause_s == pytest.approx(swap_s(fleet.cell.truth, 5000.0))
    assert (fleet.nodes.memory.taken(), fleet.nodes.memory.taken(), fleet.nodes.stops) == (5000.0, 0.0, 0)


def test_another_job_starts_anew_with_another_limit() -> None:
    fleet = Fleet()
    fleet.tell(on_device("stiff", 8000), instantly=True)
    before = fleet.process("stiff")
    fleet.tell(on_device("stiff", 9000))
    assert fleet.process("stiff") is not before
    assert (fleet.nodes.memory.taken(), fleet.nodes.stops) == (0.0, 1)


def test_memory_comes_back_only_when_there_is_room() -> None:
    fleet = Fleet()
    room = fleet.cell.device.memory_mib
    service = replica(device=FIRST, share_pct_sm=40, memory_mib_limit=room - 6000)
    fleet.tell(on_device("pages", 3000), service, instantly=True)
    fleet.tell(on_device("pages", 8000), service)
    assert fleet.process("pages").item.memory_mib_limit == 3000
    fleet.tell(on_device("pages", 8000))
    fleet.wait(30.0)
    assert fleet.process("pages").item.memory_mib_limit == 8000
    assert fleet.cell.memory_mib_held <= room


def test_a_shadow_takes_memory_from_the_coldest_job_and_gives_it_back() -> None:
    fleet = Fleet()
    room = fleet.cell.device.memory_mib
    service = replica(device=FIRST, share_pct_sm=20, memory_mib_limit=room - 12_000)
    jobs = (on_device("pages", 8000), on_device("slow", 4000))
    small = replace(service, memory_mib_limit=2500)
    fleet.tell(*jobs, small, instantly=True)
    filling = replace(service, share_pct_sm=30, memory_mib_limit=room - 12_000)
    assert small.memory_mib_limit + filling.memory_mib_limit + 12_000 - room == 2500
    fleet.tell(*jobs, filling)
    states = sorted(each.state.value for each in fleet.cell.processes if each.item.kind is WorkloadKind.SERVICE)
    assert states == ["ready", "starting"]
    assert (fleet.process("slow").item.memory_mib_limit, fleet.process("pages").item.memory_mib_limit) == (1500, 8000)
    assert fleet.cell.memory_mib_held <= room
    fleet.wait(LAUNCH_S + 1.0)
    assert fleet.process("slow").item.memory_mib_limit == 4000


def test_an_iteration_waits_for_what_is_on_the_host_over_one_link() -> None:
    gpu = GPUS["a100"]

    def iterations(*swapped: float) -> tuple[float, ...]:
        trainees = tuple(
            Trainee(
                model="resnet50", share_pct_sm=30, iteration_ms_reference=200.0, gpu_reference=gpu, swapped_mib=each
            )
            for each in swapped
        )
        return settle(DeviceLoad(gpu=gpu, clock_mhz_sm=1410, power_limit_w=400.0, trainees=trainees)).iteration_ms

    alone, paging, both = iterations(0.0, 0.0), iterations(2000.0, 0.0), iterations(2000.0, 1000.0)
    way_ms = 1000.0 * swap_s(gpu, 2000.0)
    assert paging[0] == pytest.approx(alone[0] + 2 * way_ms)
    assert paging[1] == alone[1]
    assert both[0] == pytest.approx(alone[0] + 4 * way_ms)


def test_only_jobs_that_say_so_have_memory_on_their_host() -> None:
    assert swapped_mib(JOBS["pages"], 3000) == 5000.0
    assert swapped_mib(JOBS["pages"], 9000) == 0.0
    assert swapped_mib(JOBS["stiff"], 3000) == 0.0
    with pytest.raises(FieldError):
        builders.job(memory_mib=1000, memory_mib_resident_min=1001)
