"""What workloads say cannot make a listed program run code of theirs. Every way is first shown to work on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import CrewOptions, HostCrew, open_crew
from agents.devices.base import WorkerState
from agents.devices.parts import CrewOrder
from agents.errors import DeviceError
from agents.wire import WorkerTarget
from tests.integration.agents.crew.test_crew import Place, order, place
from tests.ports import own_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
__all__ = ["place"]
AUDIT = """
#include <fcntl.h>
#include <stdlib.h>
unsigned la_version(unsigned version) { creat(getenv("FOREIGN_MARK"), 0600); return version; }
"""
TOUCH = "import os; open(os.environ['FOREIGN_MARK'], 'w').close()"


def audit(folder: Path) -> tuple[str, Mapping[str, str]]:
    source, library = folder / "audit.c", folder / "audit.so"
    source.write_text(AUDIT, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return "/bin/true", {"LD_AUDIT": str(library)}


def python_path(folder: Path) -> tuple[str, Mapping[str, str]]:
    (folder / "sitecustomize.py").write_text(TOUCH, encoding="utf-8")
    return script(folder, "#!/usr/bin/python3\n"), {"PYTHONPATH": str(folder)}


def home(folder: Path) -> tuple[str, Mapping[str, str]]:
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    site = folder / ".local" / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    (site / "usercustomize.py").write_text(TOUCH, encoding="utf-8")
    return script(folder, "#!/usr/bin/python3\n"), {"HOME": str(folder)}


def bash_env(folder: Path) -> tuple[str, Mapping[str, str]]:
    (folder / "rc").write_text('> "$FOREIGN_MARK"', encoding="utf-8")
    return script(folder, "#!/bin/bash\n"), {"BASH_ENV": str(folder / "rc")}


def perl(folder: Path) -> tuple[str, Mapping[str, str]]:
    (folder / "Foreign.pm").write_text("open(F, '>', $ENV{FOREIGN_MARK}); 1;", encoding="utf-8")
    return script(folder, "#!/usr/bin/perl\n"), {"PERL5LIB": str(folder), "PERL5OPT": "-MForeign"}


def path(folder: Path) -> tuple[str, Mapping[str, str]]:
    serve = folder / "serve-it"
    serve.write_text('#!/bin/sh\n> "$FOREIGN_MARK"\n', encoding="utf-8")
    serve.chmod(0o755)
    return script(folder, "#!/usr/bin/env serve-it\n"), {"PATH": str(folder)}


def script(folder: Path, text: str) -> str:
    listed = folder / "listed"
    listed.write_text(text, encoding="utf-8")
    listed.chmod(0o755)
    return str(listed)


def launched(crew: HostCrew, environment: Mapping[str, str], *command: str, starts_in: str | None = None) -> str:
    """What speaks against it; empty when it ran to its end."""
    target = WorkerTarget(
        command=command, environment=tuple(environment.items()), working_directory=starts_in, stop_s=0.2
    )
    base = order()
    spec = replace(base.spec, kind="job", worker=target)
    try:
        crew.launch(replace(base, spec=spec))
    except DeviceError as error:
        return str(error)
    wait_until(lambda: crew.found()[0].reading.state in (WorkerState.READY, WorkerState.FAILED), "it has ended")
    wait_until(lambda: not crew.found()[0].pids or crew.found()[0].reading.problem, "it has ended")
    return ""


def opened(place: Place, program: str) -> HostCrew:
    options = CrewOptions(
        state_dir=place.folder, ports=own_ports(), route_grace_s=0.1, workers_as_agent=True, executables=(program,)
    )
    place.crews.append(open_crew(options, time.monotonic))
    return place.crews[-1]


@pytest.mark.parametrize("way", [audit, python_path, home, bash_env, perl, path])
def test_no_variable_brings_code_along(place: Place, tmp_path: Path, way: object) -> None:
    assert callable(way)
    folder, mark = tmp_path / "tenant", tmp_path / "mark"
    folder.mkdir()
    program, variables = way(folder)
    ours = {"FOREIGN_MARK": str(mark)}
    subprocess.run([program], env={"PATH": os.environ["PATH"], **ours, **variables}, check=False)
    assert mark.exists(), "the way in does not work at all, so that nothing is proved"
    mark.unlink()
    told = launched(opened(place, program), {**ours, **variables}, program)
    assert not mark.exists()
    assert sorted(variables)[0] in told or sorted(variables)[-1] in told
    assert "--environment" in told


def test_a_listed_program_without_such_variables_runs(place: Place) -> None:
    assert launched(opened(place, "/bin/true"), {"OMP_NUM_THREADS": "1"}, "/bin/true") == ""


def test_a_relative_path_is_not_another_program_where_the_worker_starts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent under systemd works in the root directory, where `bin/true` is the listed program."""
    tenant, mark = tmp_path / "tenant", tmp_path / "mark"
    (tenant / "bin").mkdir(parents=True)
    shutil.copy(script(tenant, '#!/bin/sh\n> "$FOREIGN_MARK"\n'), tenant / "bin" / "true")
    monkeypatch.chdir("/")
    told = launched(opened(place, "/bin/true"), {"FOREIGN_MARK": str(mark)}, "bin/true", starts_in=str(tenant))
    assert (told, mark.exists()) == ("", False)


def test_a_script_does_not_find_its_interpreter_where_the_worker_starts(place: Place, tmp_path: Path) -> None:
    tenant, mark = tmp_path / "tenant", tmp_path / "mark"
    tenant.mkdir()
    shutil.copy("/bin/sh", tenant / "interpreter")
    program = script(tmp_path, '#!interpreter\n> "$FOREIGN_MARK"\n')
    subprocess.run([program], env={"FOREIGN_MARK": str(mark)}, cwd=tenant, check=True)
    assert mark.exists()
    mark.unlink()
    told = launched(opened(place, program), {"FOREIGN_MARK": str(mark)}, program, starts_in=str(tenant))
    assert not mark.exists()
    assert "interpreter" in told


def test_what_a_worker_prints_of_its_secrets_stays_on_the_node(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "value-of-a-variable")
    options = CrewOptions(
        state_dir=place.folder,
        ports=own_ports(),
        route_grace_s=0.1,
        workers_as_agent=True,
        secret_env=("HF_TOKEN",),
        secret_command=script(tmp_path, "#!/bin/sh\necho $HF_TOKEN\n"),
    )
    crew = open_crew(options, time.monotonic)
    place.crews.append(crew)
    command = ("/bin/sh", "-c", "echo TOKEN=$TOKEN; exit 3")
    hidden = WorkerTarget(command=command, from_environment=(("TOKEN", "HF_TOKEN"),))
    for name, target, told in (
        ("open", WorkerTarget(command=command, environment=(("TOKEN", "value-of-a-variable"),)), True),
        ("secret", hidden, False),
        ("asked", WorkerTarget(command=command, from_commands=(("TOKEN", "kv/token"),)), False),
    ):
        problem = _failed(crew, replace(order(name, uuid=f"GPU-{name}"), spec=replace(order().spec, worker=target)))
        assert ("TOKEN=value-of-a-variable" in problem) is told, problem
        assert "3" in problem
    logged = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.log"))
    assert logged.count("value-of-a-variable") == 3


def _failed(crew: HostCrew, asked: CrewOrder) -> str:
    crew.launch(asked)
    by_name = {"": crew.found()[0]}

    def failed() -> bool:
        by_name.update({each.reading.worker: each for each in crew.found()})
        return by_name[asked.worker].reading.state is WorkerState.FAILED

    wait_until(failed, "it fails")
    return by_name[asked.worker].reading.problem
