"""A few random lives of a GPU host with real processes (`benchmarks.agent_faults`: many), and a shadow that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import own_ports
from tests.standins.hosts import HostAgent, host_in_process
from tests.standins.hosts.lives import live
from tests.unit.agents.builders import device_target, node_target, replica_target

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_life_ends_as_wanted_without_ever_exceeding_a_device(tmp_path: Path, seed: int) -> None:
    live(tmp_path / "host", seed, own_ports())


def test_a_shadow_that_dies_leaves_the_standing_worker_until_one_lives(tmp_path: Path) -> None:
    with host_in_process(tmp_path / "host") as host:
        agent = HostAgent(host, own_ports())
        uuid = host.uuids[0]
        agent.applier.accept(node_target(1, device_target(uuid, replica_target("r1", share=30, worker=host.worker()))))
        agent.settle()
        (standing,) = host.pids(uuid)
        host.fault("stillborn")
        agent.applier.accept(node_target(2, device_target(uuid, replica_target("r1", share=50, worker=host.worker()))))
        told: list[str] = []

        def twice(settled: bool) -> bool:
            receipt = agent.applier.receipt("boot", 0.0)
            told[:] = receipt.problems if receipt is not None else told
            assert standing in host.pids(uuid)
            assert agent.applier.generation_applied == 1
            return any("2 workers failed" in problem and "goes on" in problem for problem in told)

        agent.until(twice)
        host.heal()
        agent.settle()
        (found,) = agent.devices.workers()
        assert (found.spec.share_pct_sm, found.sm_count, agent.applier.generation_applied) == (50, 54, 2)
        assert standing not in host.pids(uuid)
        agent.die()
