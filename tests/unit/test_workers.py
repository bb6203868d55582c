"""Files of tests in forked processes: each whole in one of them, told as if they had run here, whoever dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.nursery import ROOT

CONFTEST = """
import os
from pathlib import Path
import pytest
from tests.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(config, 2, int(os.environ.get("AGAIN", "0"))))

def told(*words):
    with Path(__file__).with_name("told").open("a") as file:
        print(*words, file=file)

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    yield folder
    told("closed", os.getpid())

@pytest.fixture(autouse=True)
def _told(request, shared):
    told(request.node.nodeid, os.getpid())
    assert str(shared).startswith(str(request.getfixturevalue("tmp_path").parent))
"""
FILE = """
import os, time, pytest
@pytest.mark.parametrize("number", range(3))
def test_captures(number, capfd):
    os.system(f"echo {number}")
    assert capfd.readouterr().out == f"{number}\\n"
def test_fails():
    print("what it said")
    raise AssertionError("as it should")
"""
DIES = """
import os
def test_dies():
    os._exit(7)
def test_of_the_same_file():
    pass
"""


def ran(folder: Path, *arguments: str, again: int = 0, status: int = 1) -> str:
    """What pytest says of these files in two processes."""
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-ra",
        *arguments,
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "AGAIN": str(again)}
    done = subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_each_file_runs_in_one_process_and_who_dies_fails_one_test(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "test_dies.py").write_text(DIES, encoding="utf-8")
    text = ran(tmp_path)
    assert "5 failed, 13 passed" in text
    assert sorted(re.findall(r"^FAILED test_(\w+)\.py::test_\w+ - (.*)$", text, re.MULTILINE)) == [
        *((name, "AssertionError: as it should") for name in "abcd"),
        ("dies", "the process that ran it ended with 7"),
    ]
    assert text.count("what it said") == 2 * 4, "in the source and captured"
    told = [line.split() for line in (tmp_path / "told").read_text(encoding="utf-8").splitlines()]
    processes: defaultdict[str, set[str]] = defaultdict(set)
    for what, pid in told:
        processes[what.split("::")[0]].add(pid)
    dead = {pid for what, pid in told if what == "test_dies.py::test_dies"}
    everybody = set().union(*processes.values())
    assert processes.pop("closed") == everybody - dead, "whoever lives tidies up"
    assert len([what for what, _ in told if what == "closed"]) == len(everybody - dead), "once"
    assert len(processes.pop("test_dies.py")) == 2, "another takes the rest"
    assert {len(pids) for pids in processes.values()} == {1}


def test_it_ends_where_it_should_after_the_first_that_fails(tmp_path: Path) -> None:
    for name in "abcdefgh":
        (tmp_path / f"test_{name}.py").write_text(FILE, encoding="utf-8")
    text = ran(tmp_path, "-x")
    assert "stopping after 1 failures" in text
    assert "1 failed" in text
    told = (tmp_path / "told").read_text(encoding="utf-8")
    assert told.count("closed") == 2, "whoever is stopped tidies up"
    assert told.count("::") < 8 * 4


def test_who_cannot_tidy_up_fails(tmp_path: Path) -> None:
    fixture = "\n@pytest.fixture(scope='session')\ndef bad():\n    yield\n    raise OSError('no room')\n"
    text = "import pytest" + fixture + "def test_passes(bad):\n    pass\n"
    (tmp_path / "test_a.py").write_text(text, encoding="utf-8")
    assert "1 failed, 1 passed" in ran(tmp_path)


SHAKES = """
import os
from pathlib import Path
def test_shakes():
    once = Path(__file__).with_suffix(".once")
    if not once.exists():
        once.touch()
        {fails}
def test_stands():
    pass
"""


def shaking(folder: Path, *names: str, fails: str = "raise ValueError('at first')") -> None:
    for name in names:
        (folder / f"test_{name}.py").write_text(SHAKES.format(fails=fails), encoding="utf-8")


def test_what_failed_runs_once_more_alone_and_is_named(tmp_path: Path) -> None:
    shaking(tmp_path, "a")
    shaking(tmp_path, "b", fails="os._exit(3)")
    text = ran(tmp_path, again=2, status=0)
    assert "4 passed" in text
    for name, why in (("a", "ValueError: at first"), ("b", "the process that ran it ended with 3")):
        told = text.split(f"TO BE MENDED: failed among others, passed alone: test_{name}.py::test_shakes")
        assert len(told) == 2
        assert why in told[1]


def test_what_fails_again_fails_once_and_tells_both(tmp_path: Path) -> None:
    shaking(tmp_path, "a")
    (tmp_path / "test_b.py").write_text("def test_fails():\n    raise OSError('always')\n", encoding="utf-8")
    text = ran(tmp_path, again=2)
    assert "1 failed, 2 passed" in text
    assert text.count("FAILED test_b.py::test_fails") == 1
    assert "what failed at first, among others" in text
    assert text.count("E       OSError: always") == 2
    assert "passed alone: test_a.py" in text


def test_where_more_fail_none_runs_again(tmp_path: Path) -> None:
    shaking(tmp_path, "a", "b", "c")
    text = ran(tmp_path, again=2)
    assert "3 failed, 3 passed" in text
    assert "TO BE MENDED" not in text
