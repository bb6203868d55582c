"""The program as a whole: exit statuses, one-line errors, lean imports, completion, and complete documentation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

from app.cli.output import Exit
from app.cli.program import program, run
from tests.unit.app.cli.conftest import Api, Headroom, Served, page

ROOT = Path(__file__).parents[4]
HEAVY = ("sqlalchemy", "fastapi", "ortools", "numpy", "psycopg", "alembic", "uvicorn", "apscheduler")


def run_fresh(*code_or_arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = ["-c", code] if code is not None else ["-m", "app", *code_or_arguments]
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )


def commands() -> dict[str, Any]:
    """All of the program's, by name."""
    found: dict[str, Any] = vars(typer.main.get_command(program()))["commands"]
    return found


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("bogus",), Exit.USAGE, "No such command"),
        (("get",), Exit.USAGE, "Missing argument"),
        (("get", "pods"), Exit.USAGE, "unknown kind 'pods'; known are budget, cycle, "),
        (("get", "servces"), Exit.USAGE, "unknown kind 'servces'; did you mean service or device?"),
        (("get", "services", "--nope"), Exit.USAGE, "No such option"),
        (("get", "services", "-o", "xml"), Exit.USAGE, "'--output'"),
        (("apply",), Exit.USAGE, "-f"),
        (("apply", "-f", "nowhere.yaml"), Exit.USAGE, "nowhere.yaml: no such file"),
        (("delete",), Exit.USAGE, "not both"),
        (("report", "cost", "--last", "soon"), Exit.USAGE, "such as 24h; --last also takes 2weeks, 1month or 1y"),
        (("get", "project", "gone"), Exit.NOT_FOUND, "nothing at /v1/projects/gone"),
        (("serve", "--port", "0"), Exit.USAGE, "--port"),
    ],
)
def test_errors_are_one_line_with_their_status(
    api: Api, headroom: Headroom, arguments: tuple[str, ...], status: Exit, words: str
) -> None:
    said = headroom(*arguments)
    assert said.status == status
    assert said.out == ""
    assert said.err.startswith("headroom: ")
    assert said.err.count("\n") == 1
    assert words in said.err


@pytest.mark.parametrize(
    ("code", "status"),
    [(401, Exit.REFUSED), (403, Exit.REFUSED), (409, Exit.CONFLICT), (422, Exit.USAGE), (500, Exit.FAILED)],
)
def test_what_the_server_refuses_has_its_status(api: Api, headroom: Headroom, code: int, status: Exit) -> None:
    api.answers["GET /v1/fleet"] = httpx.Response(code, json={"detail": "so it is", "code": "such"})
    said = headroom("status")
    assert (said.status, said.err) == (status, "headroom: so it is (such)\n")


def test_no_answer_has_its_status(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/fleet"] = httpx.ConnectError("refused")
    said = headroom("status")
    assert said.status == Exit.UNREACHABLE
    assert "cannot reach http://control.test" in said.err


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HEADROOM_PORT", "many"),
        ("HEADROOM_PORT", "65536"),
        ("HEADROOM_PLANNER_METRICS_PORT", "99999"),
        ("HEADROOM_LOG_LEVEL", "LOUD"),
        ("HEADROOM_RETENTION_CYCLE_DAYS", "-1"),
        ("HEADROOM_RETENTION_INTERVAL_S", "0"),
        ("HEADROOM_PLACE_INTERVAL_S", "nan"),
        ("HEADROOM_LEASE_TTL_S", "inf"),
        ("HEADROOM_PAGE_SIZE_MAX", "0"),
        ("HEADROOM_POOL_SIZE", "0"),
        ("HEADROOM_BODY_BYTES_MAX", "0"),
        ("HEADROOM_SOLVE_MEMORY_MIB", "0"),
        ("HEADROOM_DOORBELL_HEARTBEAT_S", "0"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    headroom: Headroom, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    monkeypatch.setenv("HEADROOM_DATABASE_URL", "mysql://no/database")
    said = headroom("migrate", "current")
    assert (said.status, said.err.count("\n")) == (Exit.USAGE, 1)
    assert variable in said.err


def test_a_bug_of_ours_is_not_hidden(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers |= {"GET /v1/fleet": {"nodes": 5}, "GET /v1/plans": {"items": [], "next_cursor": None}}
    with pytest.raises(TypeError):
        run(["status"])


def test_no_command_and_help_print_every_command(headroom: Headroom) -> None:
    names = commands()
    shown = headroom("--help")
    assert shown.status == Exit.OK
    nothing = headroom()
    assert nothing.status == Exit.USAGE
    for name in names:
        assert re.search(rf"\b{name}\b", shown.out)
        assert re.search(rf"\b{name}\b", nothing.out + nothing.err)


def test_the_documentation_lists_every_command_and_status() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, child in commands().items():
        for leaf in getattr(child, "commands", {"": None}):
            words = f"{name} {leaf}".strip()
            assert re.search(rf"headroom {name}\b", text), name
            assert not leaf or re.search(rf"headroom {words}\b|`{leaf}\b", text), words
    documented = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {*map(int, Exit), 130}


def test_version_client_commands_and_a_look_at_open_files_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from app.cli.doctor.machine import machine_checks\n"
        "from app.cli.program import run\n"
        "from app.settings import Settings\n"
        "run(['version'])\n"
        "[check.look() for check in machine_checks(Settings(), serves=True) if check.name == 'open files']\n"
        "run(['get', 'services', '--server', 'http://127.0.0.1:9', '--token', 't', '-o', 'json'])\n"
        f"found = sorted(set(sys.modules) & {set(HEAVY)!r})\n"
        "print(found)\n"
    )
    done = run_fresh(code=code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert "cannot reach" in done.stderr


def test_a_command_loads_no_other_one() -> None:
    code = (
        "import sys\n"
        "from app.cli.program import COMMANDS, CommandAt, run\n"
        "print(run(['--version']), run(['task', '--help']))\n"
        "places = {place.at.partition(':')[0] for place in COMMANDS.values() if isinstance(place, CommandAt)}\n"
        "print(sorted(name for name in places if f'app.cli.{name}' in sys.modules))\n"
    )
    done = run_fresh(code=code)
    assert done.stdout.splitlines()[-1] == "['program', 'tasks']", done.stderr


def test_without_the_server_extra_a_server_command_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "for name in ('uvicorn', 'sqlalchemy', 'fastapi', 'alembic', 'psycopg'):\n"
        "    sys.modules[name] = None\n"
        "from app.cli.program import run\n"
        "print(run(['serve']), run(['migrate', 'current']), run(['version']))\n"
    )
    done = run_fresh(code=code)
    assert done.stdout.splitlines()[-1] == "8 8 0", done.stderr
    assert done.stderr.count("needs headroom-gpu[server]") == 2
    assert "Traceback" not in done.stderr


def test_server_and_planner_start_without_what_only_learning_needs() -> None:
    done = run_fresh(code="import sys, app.api.server, app.workers.scheduler; print('scipy' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_planning_and_explaining_a_file_need_no_database() -> None:
    file = ROOT / "tests" / "golden" / "cases" / "lost-node.snapshot.json"
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'psycopg', 'alembic'):\n"
        "    sys.modules[name] = None\n"
        "from app.cli.program import run\n"
        f"planned = run(['plan', '-q', '--snapshot', {str(file)!r}, '--planner', 'greedy'])\n"
        f"explained = run(['explain', 'demo/chat', '--snapshot', {str(file)!r}])\n"
        "print(planned, explained)\n"
    )
    done = run_fresh(code=code)
    assert done.stdout.splitlines()[-1] == "0 0", done.stderr


def test_what_libraries_print_by_themselves_is_no_part_of_an_answer() -> None:
    code = (
        "import json, os\n"
        "from lab.claims.claim import Claim, ClaimClass, ClaimEvidence, ClaimStatus\n"
        "from lab.claims import catalogue\n"
        "from app.cli.program import run\n"
        "def judge(effort):\n"
        "    os.write(1, b'a library was here\\n')\n"
        "    return ClaimEvidence(measured='7', status=ClaimStatus.PASS)\n"
        "claim = Claim(id='AC', kind=ClaimClass.EXACT, stated='so', judge=judge)\n"
        "catalogue.claims = lambda only: (claim,)\n"
        "run(['arena', 'claims', '-o', 'json'])\n"
    )
    done = run_fresh(code=code)
    assert json.loads(done.stdout)[0]["measured"] == "7"
    assert "a library was here" in done.stderr


def test_a_reader_that_had_enough_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m app --help | head -c 1",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""


def test_completion_is_offered() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "_HEADROOM_COMPLETE": "complete_bash", "COMP_WORDS": "headroom exp", "COMP_CWORD": "1"},
    )  # fmt: skip
    assert done.stdout.split() == ["explain"], done.stderr


def test_the_module_is_the_program() -> None:
    done = run_fresh("version")
    assert done.returncode == 0
    assert done.stdout.startswith("headroom ")


def test_the_version_comes_for_programs_too(headroom: Headroom) -> None:
    assert headroom("version").out == f"headroom {headroom('version', '-o', 'json').json['version']}\n"


DEVICE = {
    "node": "n",
    "index": 0,
    "gpu_type": "t4",
    "up": True,
    "healthy": True,
    "share_pct_sm_held": 50.0,
    "replicas": [],
}


def shell(served: Served, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `headroom` asks that server."""
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    own = {"HEADROOM_SERVER": f"http://127.0.0.1:{served.port}", "HEADROOM_TOKEN": "hush", **environment}
    line = f'set -o pipefail; headroom() {{ {sys.executable} -m app "$@"; }}; {words}'
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        encoding=encoding,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_that_is_not_utf_8_gets_what_it_can_write(served: Served, encoding: str) -> None:
    served.answers["/v1/fleet"] = {"nodes": [], "devices": [{**DEVICE, "node": "żółw"}]}
    said = shell(served, "headroom nodes", PYTHONIOENCODING=encoding)
    assert (said.returncode, said.stderr) == (0, "")
    assert f"##########{10 * ('.' if encoding == 'ascii' else '·')}" in said.stdout
    assert "?" in said.stdout
    for form in ("json", "yaml"):
        served.answers["/v1/services"] = page({"kind": "service", "project": "p", "name": "żółw"})
        said = shell(served, f"headroom get services -o {form}", PYTHONIOENCODING=encoding)
        assert (said.returncode, yaml.safe_load(said.stdout)[0]["name"]) == (0, "żółw")


def test_closed_streams_are_no_tracebacks(served: Served) -> None:
    said = shell(served, "headroom get services >&-")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    said = shell(served, "headroom apply -f - <&-")
    assert (said.returncode, said.stderr) == (2, "headroom: standard input: closed\n")
    assert shell(served, "headroom get pods 2>&- >&-").returncode == 2


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv", "name"])
def test_a_reader_that_has_seen_enough_is_no_failure(served: Served, form: str) -> None:
    served.answers["/v1/services"] = page(*({"kind": "service", "project": "p", "name": f"s{n}"} for n in range(9000)))
    said = shell(served, f"headroom get services -o {form} | head -n 1 > /dev/null")
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("streams", ["", "2>&1"])
def test_a_reader_that_has_seen_enough_changes_no_status(served: Served, streams: str) -> None:
    held = {"node": "n", "empty": False, "planned": [], "running": ["p/a#0"], "blocks": ["p/a#0 runs"]}
    served.answers["/v1/nodes/n/drain"] = held
    for form in ("table", "json"):
        said = shell(served, f"headroom drain n --wait --timeout 0s -o {form} {streams} | true")
        assert said.returncode == Exit.FAILED, said.stderr
    assert "Traceback" not in said.stderr
    assert shell(served, "headroom get pods 2>&1 | true").returncode == Exit.USAGE


def test_what_changes_forever_ends_with_its_reader(served: Served) -> None:
    served.answers["/v1/projects"] = page({"name": "p"})
    for form in ("table", "json"):
        said = shell(served, f"headroom get projects --watch --interval 0.2 -o {form} | true")
        assert (said.returncode, said.stderr) == (0, "")
