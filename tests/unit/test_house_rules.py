"""Sizes the house keeps: modules of at most 500 lines, functions of at most 60 lines and three levels of nesting.

A branch, a loop, a `with`, a `try` or a `match` is a level; an `elif` is none of its own, and a function within a
function is counted for itself. Parameters are counted by ruff. Integration tests carry their mark. No test sleeps:
`tests.waiting` waits for conditions. Three habits that the house is rid of step by step may only become rarer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.house import syntax, walls
from benchmarks.house.source import LABORATORY, PRODUCT, Module, module, modules

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = PRODUCT + LABORATORY
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
LEVELS_MAX = 3
MIXED_TUPLE_PARAMETERS_MAX = 0
PREFIX_FAMILIES_MAX = 0
SINGLE_IMPORTER_SIBLINGS_MAX = 57
NAMESAKES_MAX = 182
"""Today's numbers of `python -m benchmarks.house`: whoever lowers one lowers its limit, and none is ever raised."""
LEVEL = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PARTS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Of statements: where other statements stand."""


def levels(node: ast.AST) -> int:
    """Deepest nesting below a node, its own level left out."""
    inside = (child for part in PARTS for child in getattr(node, part, ()))
    return max((_levels_with(child, node) for child in inside), default=0)


def _levels_with(child: ast.AST, parent: ast.AST) -> int:
    if isinstance(child, SCOPE):
        return 0
    is_elif = isinstance(child, ast.If) and isinstance(parent, ast.If) and parent.orelse == [child]
    return levels(child) + (isinstance(child, LEVEL) and not is_elif)


def oversize(item: Module) -> Iterator[str]:
    """What in a module is larger than the house allows."""
    if item.lines > MODULE_LINES_MAX:
        yield f"module: {item.lines} lines"
    for node in item.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines, deepest = node.end_lineno - node.lineno + 1, levels(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name}: {lines} lines"
            if deepest > LEVELS_MAX:
                yield f"{node.name}: {deepest} levels"


@pytest.fixture(scope="module")
def house() -> list[Module]:
    return modules(ROOT, PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_functions_keep_their_size(house: list[Module], package: str) -> None:
    inside = [item for item in house if item.package == package]
    assert len(inside) > 10
    found = {str(item.path): list(oversize(item)) for item in inside}
    assert {path: faults for path, faults in found.items() if faults} == {}


def test_the_rules_see_what_they_are_for() -> None:
    nested = "def f():\n for a in b:\n  with c:\n   if d:\n    try:\n     pass\n    finally:\n     pass\n"
    flat = "def f():\n for a in b:\n  with c:\n   if d:\n    pass\n   elif e:\n    pass\n   elif g:\n    pass\n"
    inner = "def f():\n for a in b:\n  if c:\n   def g():\n    if d:\n     while e:\n      pass\n"
    long = "def f():\n" + " a = 1\n" * 60
    much = "def f():\n" + " a = 1\n" * 59 + "b = 1\n" * 441
    found = [list(oversize(module("a.py", source))) for source in (nested, flat, inner, long, much)]
    assert found == [["f: 4 levels"], [], [], ["f: 61 lines"], ["module: 501 lines"]]


def test_tests_with_processes_and_databases_say_so() -> None:
    """`make check` would run them otherwise."""
    silent = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / "integration").rglob("test_*.py"))
        if "pytest.mark.integration" not in path.read_text(encoding="utf-8")
    ]
    assert silent == []


def test_parameters_are_records_rather_than_mixed_tuples(house: list[Module]) -> None:
    found = syntax.tuples(house).mixed
    assert len(found) <= MIXED_TUPLE_PARAMETERS_MAX, found


def test_folders_rather_than_prefixes(house: list[Module]) -> None:
    found = walls.prefix_families(house)
    assert len(found) <= PREFIX_FAMILIES_MAX, found


def test_walls_stand_where_more_than_one_reader_is(house: list[Module]) -> None:
    found = walls.single_readers(house).siblings
    assert len(found) <= SINGLE_IMPORTER_SIBLINGS_MAX, found


def test_one_name_for_one_meaning(house: list[Module]) -> None:
    shared = {name: count for name, count in walls.namesakes(house).items() if count > 1}
    assert sum(shared.values()) <= NAMESAKES_MAX, shared


def sleeps(source: str) -> Iterator[str]:
    """Where a source lets time pass instead of waiting for something."""
    if not re.search(r"sleep|Event\(\)\.wait", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            yield from (f"line {node.lineno}: imports sleep" for name in node.names if name.name == "sleep")
        elif isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node) == "time.sleep":
            yield f"line {node.lineno}: time.sleep"
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("sleep", "wait")
        ):
            called = ast.unparse(node.func)
            constant = bool(node.args) and isinstance(node.args[0], ast.Constant) and bool(node.args[0].value)
            if called == "asyncio.sleep" and constant:
                yield f"line {node.lineno}: asyncio.sleep"
            if called in ("threading.Event().wait", "Event().wait") and (node.args or node.keywords):
                yield f"line {node.lineno}: waits for an event that nobody sets"


def test_no_test_sleeps() -> None:
    """Stand-ins that run without this repository's modules simulate work by an event of their own."""
    by_themselves = {"tests/waiting.py", "tests/standins/mps/daemon.py", "tests/standins/torch/torch.py"}
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    found = {path: list(sleeps(source)) for path, source in sources.items()}
    assert {path: faults for path, faults in found.items() if faults and path not in by_themselves} == {}
    assert all(found[path] for path in by_themselves)
    spending = {path for path, source in sources.items() if re.search(r"waiting import .*\bspend\b", source)}
    subject = (
        "tests/gpu/",
        "tests/standins/",
        "tests/integration/faults/",
        "tests/kills/",
        "tests/integration/store/test_chaos.py",
        "tests/integration/api/test_report_ways.py",
    )
    assert {path for path in spending if not path.startswith(subject)} == set()


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import time\ntime.sleep(1)", 1),
        ("import time\nbench(wait_s=time.sleep)", 1),
        ("from time import monotonic, sleep", 1),
        ("await asyncio.sleep(0.1)", 1),
        ("await asyncio.sleep(0)", 0),
        ("threading.Event().wait(0.1)", 1),
        ("Event().wait(timeout=3)", 1),
        ("threading.Event().wait()", 0),
        ("self.ending.wait(0.1)", 0),
    ],
)
def test_a_sleep_is_seen(source: str, count: int) -> None:
    assert len(list(sleeps(source))) == count
