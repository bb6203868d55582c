"""Each counter of the house sees what it is for, in sources planted for it, and leaves alone what only looks like
it.
"""

from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from benchmarks.house import arrows, installed, source, syntax, trip, walls
from benchmarks.house.report import LISTS, ROWS, TARGETS, table
from benchmarks.house.source import Module, module

ROOT = Path(__file__).resolve().parents[3]
LAYERS = {"type": "layers", "containers": ["app"], "layers": ["api : workers", "(services) | (kinds)", "store"]}


def house(**texts: str) -> list[Module]:
    """Modules by path, `__` for a slash."""
    return [module(f"{path.replace('__', '/')}.py", text) for path, text in texts.items()]


def door(path: str, text: str = "") -> Module:
    return module(f"{path}/__init__.py", text)


def parameters(annotation: str, before: str = "") -> syntax.Tuples:
    return syntax.tuples([module("a.py", f"{before}\ndef f(x: {annotation}) -> None: ...\n")])


def test_modules_have_names_rooms_and_lines() -> None:
    one, top, own = module("app/api/routes.py", "a = 1\n\nb = 2\n"), module("app/run.py", ""), door("app/api")
    assert (one.name, one.room, one.lines, one.package) == ("app.api.routes", "app/api", 3, "app")
    assert (top.room, own.name, own.folder.as_posix()) == ("app", "app.api", "app/api")
    assert source.rooms([one, top, own])["app/api"]["modules"] == 2
    assert source.sizes([one, top]) == {"modules": 2, "lines": 3, "median": 1.5, "p90": 3, "max": 3}
    assert source.sizes([])["lines"] == 0


def test_only_packages_that_exist_are_read(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "bench.py").write_text("a = 1\n")
    assert [item.name for item in source.modules(tmp_path, (*source.PRODUCT, *source.LABORATORY))] == ["lab.bench"]


def test_imports_of_every_form_are_seen() -> None:
    text = "import p.b\nfrom p import c\nfrom p.d import D\nfrom . import e\nfrom .g import G\n"
    text += "def f():\n from p import h\n"
    given = [door("p"), module("p/a.py", text), *(module(f"p/{name}.py", "") for name in "bcdegh")]
    assert source.edges(source.imports(given)) == {("p.a", f"p.{name}") for name in "bcdegh"}


def test_imports_are_those_that_the_contracts_see() -> None:
    graph = grimp.build_graph("agents", exclude_type_checking_imports=False, cache_dir=None)
    theirs = {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}
    assert source.edges(source.imports(source.modules(ROOT, ("agents",)))) == theirs


def test_a_module_with_one_reader_is_seen_and_one_with_two_is_not() -> None:
    given = house(a__x="", a__y="from a import x, z", a__z="", b__w="from a import z\nfrom a import y")
    found = walls.single_readers(given)
    assert found.single == ("a.x", "a.y")
    assert found.siblings == ("a.x <- a.y",)


def test_a_door_is_no_reader_but_leads_to_readers() -> None:
    opened = door("a", "from a.x import X\nfrom a.y import Y\n")
    given = [opened, *house(a__x="", a__y="", a__z="from a import Y", b__w="from a import X, Y")]
    assert walls.single_readers(given).single == ("a.x",)
    assert walls.single_readers(given).siblings == ()


def test_three_files_of_one_prefix_are_a_family() -> None:
    given = house(a__whatif="", a__whatif_rows="", a__whatif_words="", a__two_a="", a__two_b="", b__whatif_c="")
    assert walls.prefix_families([door("a"), *given]) == {"a/whatif": 3}


def test_classes_of_one_name_are_counted_together() -> None:
    given = house(a="class Memory: ...\nclass Own: ...\n", b="class _Memory: ...\n")
    assert walls.namesakes(given) == {"Memory": 2, "Own": 1}


@pytest.mark.parametrize(
    "annotation",
    [
        "tuple[int, str]",
        "tuple[A, B, C] | None",
        "Optional[tuple[A, B]]",
        "'tuple[A, B]'",
        "Annotated[tuple[A, B], 1]",
        "Pair",
        "None | Pair",
        "tuple[tuple[A, B], tuple[A, B]]",
    ],
)
def test_tuples_of_different_types_are_seen(annotation: str) -> None:
    assert len(parameters(annotation, "Pair = tuple[A, B]").mixed) == 1


@pytest.mark.parametrize("annotation", ["tuple[int, ...]", "A", "Callable[[tuple[A, B]], None]", "dict[A, B]"])
def test_what_is_no_tuple_of_different_types_is_left_alone(annotation: str) -> None:
    found = parameters(annotation)
    assert found.mixed == found.equal == found.within == ()


def test_equal_tuples_collections_and_results_are_told_apart() -> None:
    assert len(parameters("tuple[int, int]").equal) == len(parameters("list[tuple[A, B]]").within) == 1
    assert len(parameters("tuple[tuple[A, B], ...]").within) == 1
    given = [module("a.py", "def f() -> tuple[A, B]: ...\ndef g() -> tuple[A, A]: ...\n")]
    assert syntax.tuples(given).results == ("a.py:1 f",)


def test_an_alias_is_known_where_it_is_imported() -> None:
    given = house(a="Pair = tuple[int, str]\n", b="from a import Pair\n", c="from b import Pair\ndef f(x: Pair): ...\n")
    assert syntax.tuples(given).mixed == ("c.py:2 f.x",)


def test_long_functions_and_many_arguments_are_seen() -> None:
    six = "def f(self, a, b, c, d, e, g): ...\n"
    seven = six.replace("(self", "(z")
    given = house(app__a=six + seven, app__cli__b=seven, app__api__c=seven)
    assert syntax.many_arguments(given) == ["app/a.py:2 f"]
    long, short = ("def f():\n" + " a = 1\n" * lines for lines in (60, 59))
    assert syntax.long_functions(house(a=long, b=short)) == ["a.py:1 f"]


def test_sleeps_are_seen_under_every_name() -> None:
    text = "import time as t\nfrom time import sleep as wait\nt.sleep(1)\nwait(1)\nclock.sleep(1)\nasyncio.sleep(1)\n"
    assert syntax.sleeps(house(a=text)) == ["a.py:3", "a.py:4"]


def test_marks_are_counted_in_comments_only() -> None:
    given = house(a="x = 1  # noqa: E501\ny = 'noqa'\n")
    assert syntax.comments_with(given, "noqa") == 1


def test_imports_against_the_layers_are_seen() -> None:
    down = {("app.api.x", "app.store.y"), ("app.api.x", "app.workers.y"), ("app.api.x", "app.cli.y")}
    up = {("app.store.y", "app.services"), ("app.services.a", "app.kinds")}
    told = arrows.against_layers(down | up, {"tool": {"importlinter": {"contracts": [LAYERS]}}})
    assert told == ["app.services.a -> app.kinds", "app.store.y -> app.services"]


def test_circles_between_rooms_are_seen() -> None:
    edges = {
        ("app.a.x", "app.b.y"),
        ("app.b.z", "app.c"),
        ("app.c", "app.a.w"),
        ("app.d", "app.a.x"),
        ("lab.a", "lab.b"),
    }
    assert arrows.circles(edges, "app") == [("a", "b", "c")]
    assert arrows.circles(edges, "lab") == []


def test_what_no_entry_point_leads_to_is_seen() -> None:
    given = house(
        app__main="from app import used\nTABLE = {'x': 'app.named:Thing', 'y': 'not a module'}\n",
        app__used="import_module(f'app.plugins.{name}')\n",
        app__named="from app import listing\n",
        app__listing="from app import listed\niter_modules(listed.__path__)\n",
        app__listed__one="",
        app__plugins__first="",
        app__lost="from app import lost_too\n",
        app__lost_too="",
    )
    given += [door("app/listed"), module("agents/__main__.py", "")]
    roots = arrows.entry_points({"project": {"scripts": {"headroom": "app.main:main"}}}, given)
    assert roots == {"app.main", "agents.__main__"}
    assert [item.name for item in arrows.unreached(given, roots)] == ["app.lost", "app.lost_too"]


def test_ways_within_a_package_stay_there() -> None:
    given = house(p__a="from p import b\nfrom q import c\n", p__b="", p__d="", q__c="from p import d\n")
    assert arrows.reachable_within(source.imports(given), "p.a", "p") == {"p.a", "p.b"}


def test_a_trip_counts_rooms_stays_and_returns() -> None:
    steps = [trip.Step(path=path, given=path == "j/b") for path in ("j/a", "j/a", "j/b", "k/c", "j/b", "j/a", "j/b")]
    assert trip.trip(steps) == trip.Trip(rooms=3, stays=6, returns=3, hops=4, given=1)
    assert trip.trip(steps, "j/") == trip.Trip(rooms=2, stays=4, returns=2, hops=2, given=1)
    assert trip.trip([]) == trip.Trip(rooms=0, stays=0, returns=0, hops=0, given=0)


def test_a_walk_steps_on_functions_of_its_folder_only(tmp_path: Path) -> None:
    first = "def count():\n yield 1\n yield 2\ndef begin(x):\n return sum([y for y in count()]) + other(x)\n"
    (tmp_path / "in").mkdir()
    found: dict[str, object] = {}
    for name, text in (("in/second.py", "def other(x): return outside()\n"), ("out.py", "def outside(): return 1\n")):
        exec(compile(text, str(tmp_path / name), "exec"), found)
    exec(compile(first, str(tmp_path / "in/first.py"), "exec"), found)
    followed = object()
    walk = trip.Walk(tmp_path, "in", (followed,))
    begin = found["begin"]
    assert callable(begin)
    walk.run(lambda: begin(followed))
    assert [(step.path, step.given) for step in walk.steps] == [
        ("in/first.py", True),
        ("in/first.py", False),
        ("in/second.py", True),
    ]


def test_locked_distributions_are_named_and_weighed() -> None:
    text = "# about\nnumpy==2.0 \\\n    --hash=sha256:0\nuvicorn[standard]==1.0\n    # via numpy==1\n"
    assert installed.locked(text) == ["numpy", "uvicorn"]
    weight = installed.size_mb("pytest")
    assert weight is not None
    assert 0.1 < weight < 20
    assert installed.size_mb("no-such-distribution") is None


def test_the_table_says_what_is_reached() -> None:
    places: dict[str, dict[str, float]] = {name: {} for name in LISTS}
    places["largest_distributions_mb"] = {"numpy": 57.4}
    before = {"revision": "old", "numbers": dict.fromkeys(ROWS, 90.0), "places": places}
    after = {"revision": "new", "numbers": dict.fromkeys(ROWS, 30.0), "places": places}
    lines = {line.split("  ")[0].strip(): line for line in table(after, before).splitlines()}
    assert lines["request's way in joint: rooms"].endswith("<= 30  reached")
    assert lines["prefix families of three or more"].endswith("<= 0  open")
    assert "numpy: 57.4" in table(after)
    assert set(TARGETS) <= set(ROWS)
