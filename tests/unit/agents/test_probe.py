"""`python -m agents.probe` on the stand-in library, and where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import probe
from tests.standins.mps import GPUS, MpsStandIn


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpsStandIn]:
    """A host with GPUs."""
    with MpsStandIn(tmp_path_factory.mktemp("probe")) as found:
        yield found


def run(host: MpsStandIn, environment: dict[str, str]) -> tuple[int, dict[str, object], str]:
    """Exit status, answer, what it complained of."""
    done = subprocess.run(
        list(host.probe_command), env=environment, capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_whole_device_is_told_by_uuid_sms_and_memory(host: MpsStandIn) -> None:
    gpu = GPUS[1]
    assert run(host, {"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}) == (
        0,
        {
            "ok": True,
            "uuid": gpu.uuid,
            "sm_count": gpu.sms,
            "memory_mib_free": float(gpu.memory_mib),
            "memory_mib_total": float(gpu.memory_mib),
        },
        "",
    )


def test_no_device_and_no_library_are_answers_without_a_traceback(
    host: MpsStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(host, {"CUDA_VISIBLE_DEVICES": ""}) == (
        1,
        {"ok": False, "error": "cuInit returned 100", "code": 100},
        "",
    )
    assert probe.main(["--library", "/nowhere/libcuda.so.1"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["error"].startswith("cannot load /nowhere/libcuda.so.1")


def test_a_library_without_the_calls_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--library", "libc.so.6"]) == 1
    assert json.loads(capsys.readouterr().out) == {"ok": False, "error": "the driver has no cuInit", "code": 0}


def test_a_device_that_others_hold_alone_is_an_answer(host: MpsStandIn) -> None:
    host.exclusive(GPUS[0].uuid, True)
    status, answer, complaint = run(host, {"CUDA_VISIBLE_DEVICES": GPUS[0].uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
    assert (status, answer["error"], complaint) == (1, "cuDevicePrimaryCtxRetain returned 46", "")


def test_the_probe_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; import agents.probe; print(sorted(m for m in sys.modules if m.split('.')[0] == 'agents'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "['agents', 'agents.probe']"
