"""What a tenant's command finds out through a real agent process, as its receipts tell it: the attack, and its end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agents.test_gpu_host import GpuHost, gpu, library

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
