"""Every module is reached from something that is started.

Started are the console script, what both distributions offer by name, `python -m` of a package, and what the Makefile
runs. A name in a string leads to its module, as registries do. Code that only tests or benchmarks call belongs to them.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.house.arrows import Started, lost, started
from benchmarks.house.source import LABORATORY, PRODUCT, module, modules

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_is_reached_from_an_entry_point() -> None:
    house = modules(ROOT, PRODUCT + LABORATORY)
    assert len(house) > 100
    assert [item.path.as_posix() for item in lost(house, started(ROOT))] == []


def test_what_is_not_reached_is_seen() -> None:
    """The laboratory justifies modules of its own and none of the product."""
    given = [
        module("app/main.py", "import solvers.planned\n"),
        module("app/tool.py", ""),
        module("app/dead.py", ""),
        module("solvers/planned.py", ""),
        module("solvers/only_compared.py", ""),
        module("lab/world.py", ""),
        module("lab/rival.py", "import lab.world, solvers.only_compared\n"),
        module("lab/dead.py", ""),
    ]
    begun = Started(
        product={"project": {"scripts": {"headroom": "app.main:run"}}},
        laboratory={"project": {"entry-points": {"headroom.planners": {"rival": "lab.rival:Rival"}}}},
        makefile="tool:\n\t$(BIN)/python -m app.tool\n",
    )
    assert [item.name for item in lost(given, begun)] == [
        "app.dead",
        "solvers.only_compared",
        "lab.dead",
    ]
