"""Planners from files: what keeps the contract is loaded, what does not is refused with one sentence."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from textwrap import indent

import pytest

from app import own_planners
from app.cli.output import Exit, exit_code_of
from solvers.domain.codec import digest
from solvers.domain.evidence import SilentReporter
from solvers.errors import FieldError, HeadroomError, InputError, NotFoundError
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from tests import builders

EXAMPLE = f"{Path(__file__).parents[4]}/examples/my_policy.py:MyPlanner"
GOOD = """
from solvers.planners.base import PlannerSpec, Stateless

class Mine(Stateless):
    spec = PlannerSpec(name="mine", version="3", knobs=())

    def propose(self, request, state, reporter):
        return None
"""


def planned(name: str, request: PlanRequest) -> str:
    return str(digest(registry.think(own_planners.create(name), request, None, SilentReporter()).proposal))


def written(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return f"{folder}/mine.py:Mine"


def test_names_of_files_are_told_from_names() -> None:
    assert own_planners.is_own("my.py:Mine")
    assert own_planners.is_own("/a/b.c/my.py:Mine")
    assert not any(own_planners.is_own(name) for name in (*registry.names(), "my.py", "my:Mine"))
    assert own_planners.create("hetsev", {"queues": 2}) == registry.create("hetsev", {"queues": 2})


def test_an_edited_file_is_another_planner(tmp_path: Path) -> None:
    first = own_planners.load_planner(written(tmp_path, GOOD))
    second = own_planners.load_planner(written(tmp_path, GOOD.replace('"3"', '"4"')))
    assert (first.spec.version, second.spec.version) == ("3", "4")
    assert type(own_planners.load_planner(written(tmp_path, GOOD))) is type(first)


def test_what_a_file_prints_is_no_part_of_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_planners.load_planner(written(tmp_path, f"{GOOD}\nprint('looked at')\n"))
    assert capsys.readouterr() == ("", "looked at\n")


ENDLESS = """
while True:
    try:
        sum(range(100))
    except Exception:
        pass
"""
ENDLESS_WHEN_MADE = "class Mine:\n    def __init__(self):" + indent(ENDLESS, "        ")


@pytest.mark.parametrize("text", [ENDLESS, ENDLESS_WHEN_MADE])
def test_a_file_that_never_ends_is_refused_in_time(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_planners, "LOAD_S", 0.2)
    name = written(tmp_path, text)
    with pytest.raises(InputError, match=r"mine\.py takes more than 0\.2 s to load Mine"):
        own_planners.load_planner(name)
    assert own_planners.load_planner(written(tmp_path, GOOD)).spec.name == "mine"


def test_a_planner_is_made_from_its_text_alone() -> None:
    file, _, wanted = EXAMPLE.rpartition(":")
    made = own_planners.planner_from(own_planners.source_of(file), "elsewhere.py", wanted)
    assert made.spec == own_planners.load_planner(EXAMPLE).spec


def test_the_example_travels_and_plans_alike_in_a_spawned_process() -> None:
    planner = own_planners.create(EXAMPLE, {"headroom": 1.5})
    assert pickle.loads(pickle.dumps(planner)) == planner
    request = builders.request(builders.lab([builders.service()]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(planned, (EXAMPLE, request))
    assert there == planned(EXAMPLE, request)


def test_parameters_of_ones_own_are_as_strict_as_others() -> None:
    with pytest.raises(FieldError, match="my-policy has no parameter margin; it has headroom, fading, ahead_s"):
        own_planners.create(EXAMPLE, {"margin": 1})
    with pytest.raises(FieldError, match="a number from 1 to 10"):
        own_planners.create(EXAMPLE, {"headroom": 0.5})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no class Mine; it has none"),
        ("class Other: ...", "has no class Mine; it has Other"),
        ("from pathlib import Path as Mine", "has no class Mine; it has none"),
        ("\nx = 1 / 0", r"cannot be imported \(line 2\): ZeroDivisionError"),
        ("\nraise SystemExit(3)", r"cannot be imported \(line 2\): SystemExit: 3"),
        ("def f(:", r"cannot be imported \(line 1\): SyntaxError"),
        ("class Mine: ...", "Mine has no spec"),
        ("class Mine:\n    def __init__(self, x): ...", "cannot be made without arguments"),
        (GOOD.replace('"mine"', '"greedy"'), "calls itself greedy, which is a planner of Headroom"),
        (GOOD.replace('"mine"', '"My Own"'), "its spec's name must be"),
        (GOOD.replace("propose", "plan"), "has no method propose"),
        (GOOD.replace("request, state, reporter", "request"), "propose must take 3 arguments"),
        (GOOD + "\n    def first_state(self):\n        return 'none'", "first_state must return bytes"),
    ],
)
def test_what_does_not_keep_the_contract_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        own_planners.load_planner(written(tmp_path, text))
    assert exit_code_of(caught.value) == Exit.USAGE


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file") as caught:
        own_planners.load_planner(f"{tmp_path}/none.py:Mine")
    assert isinstance(caught.value, HeadroomError)
    assert exit_code_of(caught.value) == Exit.NOT_FOUND
