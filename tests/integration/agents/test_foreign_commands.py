"""What a tenant's command finds out through a real agent process, as its receipts tell it: the attack, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agents.test_gpu_host import GpuHost, gpu, library
from tests.standins.hosts import worker_program

pytestmark = pytest.mark.integration
__all__ = ["gpu", "library"]


@pytest.fixture
def homes() -> Iterator[Path]:
    assert os.geteuid() == 0, "users of projects are given by root: run these tests as root"
    found = Path(tempfile.mkdtemp(prefix="hr-homes-"))
    found.chmod(0o755)
    yield found / "homes"
    shutil.rmtree(found)


@pytest.mark.parametrize("apart", [False, True])
def test_the_nodes_token_in_the_receipt(gpu: GpuHost, homes: Path, *, apart: bool) -> None:
    token = gpu.host.state_dir / "token"
    if apart:
        gpu.host.whose = ("--worker-homes", str(homes))
    gpu.start()
    command = ["/bin/sh", "-c", f"id -u; cat {token}; exit 3"]
    target = {"uuid": gpu.uuid, "mode": "dedicated", "clock_mhz_sm": None, "power_limit_w": None}
    replicas = [gpu.replica("r0", 100, command=command, environment=[])]
    gpu.plane.promote({"node": "node-1", "generation": 1, "plan": None, "devices": [target | {"replicas": replicas}]})
    problems: list[str] = []

    def told() -> bool:
        problems[:] = [text for each in gpu.plane.receipts for text in each["problems"] if "status 3" in text]
        return bool(problems)

    gpu.plane.wait_for(told, 40.0)
    secret = token.read_text(encoding="utf-8").strip()
    assert secret
    assert (secret in problems[0]) is not apart, problems
    assert ("Permission denied" in problems[0]) is apart, problems
    if apart:
        assert (homes / "team").stat().st_uid >= 1_900_000_000


def test_two_projects_share_a_gpu_as_users_of_their_own(homes: Path, library: Path) -> None:
    """By the pipes that the agent chooses where workers have users of their own, below their homes."""
    found = GpuHost(homes.parent, library)
    found.host.mps.pipe_base = homes / ".mps"
    found.host.whose = ("--worker-homes", str(homes))
    worker_program().parent.chmod(0o755)
    # Where the stand-in of the driver keeps who is on a device; the real one needs no file for that.
    (found.host.nvml.root / "processes" / found.uuid).chmod(0o777)
    try:
        found.start()
        found.hold(30)
        device = {"uuid": found.uuid, "mode": "mps", "clock_mhz_sm": None, "power_limit_w": None}
        replicas = [found.replica("r0", 30), found.replica("r1", 20) | {"project": "other", "workload": "other/svc"}]
        found.generation += 1
        target = {"node": "node-1", "generation": 2, "plan": None, "devices": [device | {"replicas": replicas}]}
        found.plane.promote(target)
        found.plane.wait_for(lambda: found.receipt("applied", 2) is not None, 40.0)
        receipt = found.receipt("applied", 2)
        assert receipt is not None
        assert [each["sm_count"] for each in receipt["replicas"]] == [32, 20]
        uids = {Path(f"/proc/{pid}").stat().st_uid for pid in found.host.pids(found.uuid)}
        assert uids == {(homes / project).stat().st_uid for project in ("team", "other")}
        assert len(uids) == 2
        # Another agent takes up both, and ends the one that is not wanted any more.
        found.end(signal.SIGKILL)
        found.start()
        found.hold(30)
        assert [Path(f"/proc/{pid}").stat().st_uid for pid in found.host.pids(found.uuid)] == [
            (homes / "team").stat().st_uid
        ]
    finally:
        found.close()
