"""Commands and environments of workers: what is filled in, what is inherited, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.crew import launching
from agents.crew.launching import Invocation, check_allowed, fill, invocation, placed
from agents.devices.parts import CrewOrder
from agents.errors import NotSupportedError, OutOfRangeError, WorkerError
from solvers.domain import worker as declared
from tests.unit.agents.crew.doubles import order, target


def built(
    environment: tuple[tuple[str, str], ...] = (), *command: str, sharing: dict[str, str] | None = None
) -> Invocation:
    made = order(worker=target(command=command or ("/bin/true",), environment=environment))
    made = CrewOrder(
        worker=made.worker,
        uuid=made.uuid,
        spec=made.spec,
        environment=sharing or {},
        device_memory_mib=made.device_memory_mib,
    )
    assert made.spec.worker is not None
    return invocation(made, made.spec.worker, placed(made, "127.0.0.1", 8000), "name/1")


def test_placeholders_and_reserved_names_are_those_of_workload_descriptions() -> None:
    assert launching.PLACEHOLDERS == declared.PLACEHOLDERS
    assert set(placed(order(), "h", 1)) == declared.PLACEHOLDERS
    for name in launching.RESERVED:
        with pytest.raises(ValueError, match="set by the agent"):
            declared.EnvironmentVariable(name=name, value="x")


def test_a_command_is_filled_without_a_shell() -> None:
    made = built(
        (),
        "/bin/echo",
        "--port={port}{port_2}",
        "{{literal}}",
        "$HOME;ls",
        "{gpu_uuid}/{share_pct_sm}",
        "{memory_fraction}",
    )
    assert made.arguments == ("/bin/echo", "--port=80008002", "{literal}", "$HOME;ls", "GPU-a/50", "0.2500")


def test_the_memory_fraction_never_exceeds_the_limit() -> None:
    made = placed(order(memory_mib_limit=1000, device_memory_mib=3000), "h", 1)
    assert made["memory_fraction"] == "0.3333"
    assert placed(order(memory_mib_limit=9000, device_memory_mib=3000), "h", 1)["memory_fraction"] == "1.0000"


@pytest.mark.parametrize("text", ["{nothing}", "{", "}", "{port!r}", "{port:>9}", "{0}", "{port.real}"])
def test_what_nobody_fills_is_refused(text: str) -> None:
    with pytest.raises(OutOfRangeError):
        fill(text, {"port": "1"})


def test_nul_is_refused() -> None:
    with pytest.raises(OutOfRangeError):
        fill("{model}", {"model": "a\0b"})


def test_only_listed_variables_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("HOME", "/somewhere")
    made = built((("BATCH", "{batch}"),), sharing={"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert "HEADROOM_TOKEN" not in made.environment
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert (made.environment["HOME"], made.environment["BATCH"]) == ("/somewhere", "4")
    assert made.environment["HEADROOM_WORKER"] == "name/1"
    assert made.environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("name", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "no name", ""])
def test_a_workload_cannot_set_what_its_limits_hang_on(name: str) -> None:
    with pytest.raises(OutOfRangeError):
        built(((name, "x"),))


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(WorkerError, match="no such program"):
        built((), "/no/such/program")


def test_programs_may_be_listed(tmp_path: Path) -> None:
    link = tmp_path / "true"
    link.symlink_to("/bin/true")
    check_allowed("/bin/true", None)
    check_allowed(str(link), ("/bin/true",))
    with pytest.raises(NotSupportedError):
        check_allowed("/bin/true", ("/bin/false",))
    other = tmp_path / "sh"
    other.symlink_to("/bin/sh")
    with pytest.raises(NotSupportedError):
        check_allowed(str(other), (str(tmp_path / "true"),))
