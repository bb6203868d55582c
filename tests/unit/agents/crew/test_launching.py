"""Commands and environments of workers: what is filled in, what is inherited, what is refused."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import launching
from agents.crew.launching import Invocation, as_allowed, fill, invocation, placed
from agents.crew.member import CrewOptions
from agents.errors import NotSupportedError, OutOfRangeError, WorkerError
from agents.wire import steers
from solvers.domain import worker as declared
from tests.unit.agents.crew.doubles import order, target

ROOT = Path(__file__).resolve().parents[4]
OPTIONS = CrewOptions(state_dir=Path("/nowhere"), workers_as_agent=True)


def built(
    environment: tuple[tuple[str, str], ...] = (),
    *command: str,
    sharing: dict[str, str] | None = None,
    options: CrewOptions = OPTIONS,
) -> Invocation:
    made = order(worker=target(command=command or ("/bin/true",), environment=environment))
    made = replace(made, environment=sharing or {})
    return invocation(made, placed(made, "127.0.0.1", 8000), "name/1", options)


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


def test_a_file_that_is_no_program_is_not_said_to_be_missing(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(WorkerError, match=r"serve\.sh: not a file that may be executed"):
        built((), str(script))


STEERING = (
    *(
        "LD_AUDIT",
        "LD_DEBUG_OUTPUT",
        "GLIBC_TUNABLES",
        "MALLOC_CONF",
        "GCONV_PATH",
        "LOCPATH",
        "NLSPATH",
        "HOSTALIASES",
    ),
    *("PYTHONPATH", "PYTHONSTARTUP", "PERL5OPT", "PERLLIB", "NODE_OPTIONS", "RUBYOPT", "JAVA_TOOL_OPTIONS"),
    *("BASH_ENV", "BASH_FUNC_ls%%", "ENV", "PATH", "HOME", "OPENSSL_CONF", "_JAVA_OPTIONS", "CUDA_INJECTION64_PATH"),
    *("OMP_TOOL_LIBRARIES", "NCCL_NET_PLUGIN"),
)
HARMLESS = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "VLLM_PLUGINS"),
    *("VLLM_USE_V1", "OMP_NUM_THREADS", "NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_HOME", "NODE_RANK"),
    *("TF_FORCE_GPU_ALLOW_GROWTH", "TS_METRICS_ADDRESS", "LOG_FORMAT", "XDG_CACHE_HOME", "TMPDIR", "http_proxy"),
    *("MY_LD_AUDIT", "ENVIRONMENT", "PATHS", "HOMEPAGE"),
)


@pytest.mark.parametrize("name", STEERING)
def test_what_steers_programs_needs_the_word_of_the_hosts_owner(name: str) -> None:
    assert steers(name)
    with pytest.raises((NotSupportedError, OutOfRangeError), match=name.replace("%%", "..")):
        built(((name, "/x"),))
    with pytest.raises((NotSupportedError, OutOfRangeError), match="PATHS|" + name):
        built(((name, "/x"),), options=replace(OPTIONS, environment=("PATHS", "LD_")))
    if name.isidentifier() and name != "PATH":
        assert built(((name, "/x"),), options=replace(OPTIONS, environment=(name,))).environment[name] == "/x"


@pytest.mark.parametrize("name", HARMLESS)
def test_what_model_servers_are_told_is_nobodys_concern(name: str) -> None:
    assert not steers(name)
    assert built(((name, "1"),)).environment[name] == "1"


def test_examples_say_nothing_that_steers() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.yaml"))
    names = re.findall(r"- \{name: (\w+), value: ", texts)
    assert len(names) > 5
    assert not [name for name in names if steers(name)]


def test_the_host_itself_leads_nobody_to_where_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin::.:bin:/bin")
    assert built().environment["PATH"] == "/usr/bin:/bin"


class TestListedPrograms:
    """What an owner's list holds, and whatever a workload calls it."""

    def test_any_is_allowed_without_a_list(self) -> None:
        assert as_allowed("/bin/true", None) == "/bin/true"

    def test_links_on_both_sides_are_followed(self, tmp_path: Path) -> None:
        link, other = tmp_path / "true", tmp_path / "sh"
        link.symlink_to("/bin/true")
        other.symlink_to("/bin/sh")
        assert as_allowed("/bin/true", (str(link),)) == str(link)
        with pytest.raises(NotSupportedError):
            as_allowed("/bin/true", ("/bin/false",))
        with pytest.raises(NotSupportedError):
            as_allowed(str(other), (str(link),))

    def test_a_program_goes_by_the_name_it_is_listed_under(self, tmp_path: Path) -> None:
        """Busybox and its like are another program under another name."""
        for name in ("one", "two"):
            (tmp_path / name).symlink_to("/bin/true")
        one, two = (str(tmp_path / name) for name in ("one", "two"))
        assert as_allowed(two, (one,)) == one
        assert as_allowed(two, (one, two)) == two

    def test_a_path_is_from_the_root_on_whatever_a_worker_starts_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir("/")
        made = built((), "bin/true", options=replace(OPTIONS, executables=("/bin/true",)))
        assert made.arguments == ("/bin/true",)

    def test_a_script_is_what_is_listed_and_not_its_interpreter(self, tmp_path: Path) -> None:
        script = tmp_path / "serve"
        script.write_bytes(b"#! /bin/sh\n")
        assert as_allowed(str(script), (str(script),)) == str(script)
        with pytest.raises(NotSupportedError, match="not among"):
            as_allowed(str(script), ("/bin/sh",))
        with pytest.raises(NotSupportedError, match="not among"):
            as_allowed("/bin/sh", (str(script),))

    @pytest.mark.parametrize("line", [b"#!sh\n", b"#! bin/sh -e\n", b"#!\n", b"#!" + b" " * 300 + b"/bin/sh\n"])
    def test_a_script_names_its_interpreter_from_the_root_on(self, tmp_path: Path, line: bytes) -> None:
        script = tmp_path / "serve"
        script.write_bytes(line)
        with pytest.raises(NotSupportedError, match="interpreter"):
            as_allowed(str(script), (str(script),))
