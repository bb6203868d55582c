"""Secrets by reference: what is read, what is refused, and that no refusal tells what it was about to read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import secrets
from agents.crew.launching import invocation, placed
from agents.crew.member import CrewOptions
from agents.crew.secrets import SECRET_BYTES_MAX, of_command, of_file, of_variable
from agents.errors import AgentError, NotSupportedError, WorkerError
from agents.wire import encode
from tests.unit.agents.crew.doubles import order, target

VALUE = "s3cr3t-value"
PROJECT = "shop"


Reading = Callable[[CrewOptions], str]


def file(path: Path | str, project: str = PROJECT) -> Reading:
    return lambda options: of_file("TOKEN", str(path), project, options)


def variable(name: str) -> Reading:
    return lambda options: of_variable("TOKEN", name, PROJECT, options)


def command(asked: str) -> Reading:
    return lambda options: of_command("TOKEN", asked, PROJECT, options)


@pytest.fixture
def options(tmp_path: Path) -> CrewOptions:
    for project in (PROJECT, "other"):
        (tmp_path / "secrets" / project).mkdir(parents=True)
        (tmp_path / "secrets" / project / "token").write_text(VALUE + "\n", encoding="utf-8")
    (tmp_path / "outside").write_text(VALUE, encoding="utf-8")
    secrets = str(tmp_path / "secrets" / "{project}")
    return CrewOptions(
        state_dir=tmp_path,
        secret_dirs=(secrets,),
        secret_env=("SHARED", f"{PROJECT}:OWN", "other:FOREIGN"),
        workers_as_agent=True,
    )


def refused(read: Reading, options: CrewOptions, *said: str, how: type[AgentError] = NotSupportedError) -> None:
    with pytest.raises(how) as caught:
        read(options)
    told = str(caught.value)
    assert VALUE not in told
    assert [text for text in ("TOKEN", *said) if text not in told] == []


def test_nothing_is_open_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED", VALUE)
    (tmp_path / "token").write_text(VALUE, encoding="utf-8")
    closed = CrewOptions(state_dir=tmp_path)
    refused(file(tmp_path / "token"), closed, str(tmp_path / "token"), "--secret-dir")
    refused(variable("SHARED"), closed, "SHARED", "--secret-env")
    refused(command("kv/shop#key"), closed, "kv/shop#key", "--secret-command")


def test_a_file_is_read_without_the_end_of_its_line(options: CrewOptions, tmp_path: Path) -> None:
    path = tmp_path / "secrets" / PROJECT / "token"
    assert file(path)(options) == VALUE
    path.write_text("two\nlines\n", encoding="utf-8")
    assert file(path)(options) == "two\nlines"
    whole = replace(options, secret_dirs=(str(tmp_path / "secrets"),))
    assert file(tmp_path / "secrets" / "other" / "token")(whole) == VALUE


def test_a_project_has_its_own_files_alone(options: CrewOptions, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    inside = secrets / PROJECT / "link"
    for path in (
        secrets / "other" / "token",
        secrets / PROJECT / ".." / "other" / "token",
        tmp_path / "outside",
        inside,
    ):
        inside.unlink(missing_ok=True)
        inside.symlink_to(tmp_path / "outside")
        refused(file(path), options, str(path))
    (tmp_path / "secrets" / f"{PROJECT}-2").mkdir()
    (tmp_path / "secrets" / f"{PROJECT}-2" / "token").write_text(VALUE, encoding="utf-8")
    refused(file(tmp_path / "secrets" / f"{PROJECT}-2" / "token"), options)
    refused(file(tmp_path / "secrets" / PROJECT), options)
    refused(file("/etc/shadow"), options)
    refused(file("/proc/self/environ"), options)


def test_links_within_a_directory_lead_where_they_lead(options: CrewOptions, tmp_path: Path) -> None:
    """So do the directories of secrets that Kubernetes mounts."""
    folder = tmp_path / "secrets" / PROJECT
    (folder / "..2026").mkdir()
    (folder / "..2026" / "key").write_text(VALUE, encoding="utf-8")
    (folder / "..data").symlink_to("..2026")
    (folder / "key").symlink_to("..data/key")
    assert file(folder / "key")(options) == VALUE


def test_what_is_missing_too_long_or_no_text_is_said_without_its_content(options: CrewOptions, tmp_path: Path) -> None:
    path = tmp_path / "secrets" / PROJECT / "token"
    for content in (VALUE.encode() + b"\0", VALUE.encode() + b"\xff", VALUE.encode() * SECRET_BYTES_MAX):
        path.write_bytes(content)
        refused(file(path), options, str(path), how=WorkerError)
    path.write_bytes(b"x" * SECRET_BYTES_MAX)
    assert len(file(path)(options)) == SECRET_BYTES_MAX
    path.unlink()
    refused(file(path), options, "No such file", how=WorkerError)
    os.mkfifo(path)
    refused(file(path), options)
    refused(variable("SHARED"), options, "SHARED", how=WorkerError)


def test_variables_are_open_by_name_to_all_or_to_one_project(
    options: CrewOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARED", "OWN", "FOREIGN", "HEADROOM_TOKEN"):
        monkeypatch.setenv(name, VALUE)
    assert variable("SHARED")(options) == VALUE
    assert variable("OWN")(options) == VALUE
    refused(variable("FOREIGN"), options, "FOREIGN")
    refused(variable("HEADROOM_TOKEN"), options)
    refused(variable("other:FOREIGN"), options, how=WorkerError)


def asking(options: CrewOptions, tmp_path: Path, script: str) -> CrewOptions:
    program = tmp_path / "ask"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o700)
    return replace(options, secret_command=str(program))


def test_a_store_is_asked_by_the_owners_program_which_is_told_whose_it_is(
    options: CrewOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_ADDRESS", "https://store")
    asked = asking(options, tmp_path, 'echo "$#/$1/$2 at $STORE_ADDRESS"; echo noise >&2')
    assert command("kv/key;$(id)")(asked) == f"2/{PROJECT}/kv/key;$(id) at https://store"
    files = (("TOKEN", "kv/key"),)
    made = order(worker=replace(target(command=("/bin/true",)), from_commands=files))
    started = invocation(made, placed(made, "h", 1), "m/1", asking(options, tmp_path, f"echo {VALUE}"))
    assert started.environment["TOKEN"] == VALUE


def test_a_store_that_does_not_answer_is_told_by_name(
    options: CrewOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "COMMAND_S", 0.2)
    for script, said in (
        (f"echo {VALUE}; exit 3", "status 3"),
        (f"echo {VALUE}; kill -9 $$", "status -9"),
        (f"echo {VALUE}; exec tail -f /dev/null", "longer than"),
        ("true", "missing"),
        (f"printf '{VALUE}\\000'", "no text"),
        (f"head -c {SECRET_BYTES_MAX + 2} /dev/zero | tr '\\0' x", "longer than"),
    ):
        refused(command("kv/key"), asking(options, tmp_path, script), "kv/key", said, how=WorkerError)
    absent = replace(options, secret_command=str(tmp_path / "nobody"))
    refused(command("kv/key"), absent, "kv/key", "No such file", how=WorkerError)


def test_a_process_gets_the_value_and_nothing_else_shows_it(options: CrewOptions, tmp_path: Path) -> None:
    files = (("TOKEN", str(tmp_path / "secrets" / PROJECT / "token")),)
    made = order(worker=replace(target(command=("/bin/true", "{port}")), from_files=files))
    started = invocation(made, placed(made, "h", 1), "m/1", options)
    assert started.environment["TOKEN"] == VALUE
    for shown in (started, made, options, encode(made.spec)):
        assert VALUE not in f"{shown!r} {shown}"


@pytest.mark.parametrize("name", ["LD_AUDIT", "PYTHONPATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"])
def test_a_secret_sets_nothing_that_a_value_may_not(options: CrewOptions, tmp_path: Path, name: str) -> None:
    files = ((name, str(tmp_path / "secrets" / PROJECT / "token")),)
    made = order(worker=replace(target(command=("/bin/true",)), from_files=files))
    with pytest.raises(AgentError, match=name):
        invocation(made, placed(made, "h", 1), "m/1", options)
