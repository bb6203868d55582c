"""Measures the checkout and prints one table.

    python -m benchmarks.house [--root FOLDER] [--json FILE] [--against FILE]

`--against` takes what `--json` wrote before and prints before, after and target side by side. Another checkout's
folder must stand first on the module path, since its planner is run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.house import arrows, installed, source, syntax, trip, walls
from benchmarks.house.report import table

ROOT = Path(__file__).resolve().parents[2]
JOINT = "solvers/planners/joint"
WORST = 20
LARGEST = 10


def measured(root: Path) -> dict[str, Any]:
    """All numbers by name, and beside them the places that they count."""
    house = source.modules(root, source.PRODUCT + source.LABORATORY)
    parts = (
        _sizes(root, house),
        _walls(house),
        _syntax(root, house),
        _arrows(house, arrows.started(root)),
        _trip(root, house),
    )
    numbers: dict[str, float] = {}
    places: dict[str, Any] = {}
    for found, where in (*parts, _installed(root)):
        numbers |= found
        places |= where
    return {"revision": _revision(root), "numbers": numbers, "places": places}


Part = tuple[dict[str, float], dict[str, Any]]


def _revision(root: Path) -> str:
    asked = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip()


def _sizes(root: Path, house: list[source.Module]) -> Part:
    groups = {
        "product": [item for item in house if item.package in source.PRODUCT],
        "laboratory": [item for item in house if item.package in source.LABORATORY],
        **{name: source.modules(root, (name,)) for name in source.BESIDE},
    }
    numbers: dict[str, float] = {
        f"{group}_{measure}": number
        for group, inside in groups.items()
        for measure, number in source.sizes(inside).items()
    }
    numbers["house_modules"] = len(house)
    numbers["house_lines"] = sum(item.lines for item in house)
    return numbers, {"rooms": source.rooms(house)}


def _walls(house: list[source.Module]) -> Part:
    readers, families, names = walls.single_readers(house), walls.prefix_families(house), walls.namesakes(house)
    shared = {name: number for name, number in names.most_common() if number > 1}
    numbers: dict[str, float] = {
        "single_importers": len(readers.single),
        "single_importer_siblings": len(readers.siblings),
        "prefix_families": len(families),
        "prefix_family_modules": sum(families.values()),
        "classes": names.total(),
        "namesake_classes": sum(shared.values()),
        "namesakes_pct": round(100 * sum(shared.values()) / max(names.total(), 1), 1),
    }
    worst = dict(list(shared.items())[:WORST])
    places = {"single_importer_siblings": readers.siblings, "prefix_families": families, "worst_namesakes": worst}
    return numbers, places


def _syntax(root: Path, house: list[source.Module]) -> Part:
    found = syntax.tuples(house)
    tests = source.modules(root, ("tests",))
    long, many, sleeping = syntax.long_functions(house), syntax.many_arguments(house), syntax.sleeps(tests)
    numbers: dict[str, float] = {
        "mixed_tuple_parameters": len(found.mixed),
        "mixed_tuple_parameters_in_joint": sum(place.startswith(JOINT) for place in found.mixed),
        "equal_tuple_parameters": len(found.equal),
        "collections_of_mixed_tuples": len(found.within),
        "mixed_tuple_results": len(found.results),
        "functions_over_60_lines": len(long),
        "functions_over_6_arguments": len(many),
        "sleeps_in_tests": len(sleeping),
        "type_ignores": syntax.comments_with(house, "type: ignore"),
        "noqas": syntax.comments_with(house, "noqa"),
        "type_ignores_in_tests": syntax.comments_with(tests, "type: ignore"),
        "noqas_in_tests": syntax.comments_with(tests, "noqa"),
    }
    places = {
        "mixed_tuple_parameters": found.mixed,
        "functions_over_60_lines": long,
        "functions_over_6_arguments": many,
        "sleeps_in_tests": sleeping,
    }
    return numbers, places


def _arrows(house: list[source.Module], begun: arrows.Started) -> Part:
    edges = source.edges(source.imports(house))
    broken = arrows.against_layers(edges, begun.product)
    turning = {parent: arrows.circles(edges, parent) for parent in ("app", "agents")}
    lost = arrows.lost(house, begun)
    numbers: dict[str, float] = {
        "imports": len(edges),
        "arrows_against_layers": len(broken),
        "circles_of_siblings": sum(map(len, turning.values())),
        "rooms_in_circles": sum(len(group) for groups in turning.values() for group in groups),
        "unreached_modules": len(lost),
        "unreached_lines": sum(item.lines for item in lost),
    }
    unreached = {item.path.as_posix(): item.lines for item in lost}
    return numbers, {"arrows_against_layers": broken, "circles_of_siblings": turning, "unreached_modules": unreached}


def _trip(root: Path, house: list[source.Module]) -> Part:
    steps = trip.planned(root)
    package = JOINT.replace("/", ".")
    reachable = arrows.reachable_within(source.imports(house), f"{package}.planner", package)
    folders = {item.folder for item in house if item.name in reachable}
    walked = {"joint": trip.trip(steps, JOINT), "solvers": trip.trip(steps)}
    numbers: dict[str, float] = {
        f"trip_{where}_{name}": number for where, found in walked.items() for name, number in asdict(found).items()
    }
    return numbers | {"joint_reachable_modules": len(reachable), "joint_reachable_folders": len(folders)}, {}


def _installed(root: Path) -> Part:
    names = installed.locked((root / "requirements-server.lock").read_text(encoding="utf-8"))
    found = {name: installed.size_mb(name) for name in names}
    sizes = {name: round(size, 1) for name, size in found.items() if size is not None}
    largest = dict(sorted(sizes.items(), key=lambda pair: -pair[1])[:LARGEST])
    missing = [name for name, size in found.items() if size is None]
    numbers = {"server_install_mb": round(sum(sizes.values()), 1), "server_distributions": len(sizes)}
    return numbers, {"largest_distributions_mb": largest, "distributions_not_installed": missing}


def main() -> None:
    """Measure, keep, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure, by default this one")
    parser.add_argument("--json", type=Path, help="where to keep what was measured")
    parser.add_argument("--against", type=Path, help="what was measured before")
    asked = parser.parse_args()
    found = measured(asked.root.resolve())
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before = json.loads(asked.against.read_text(encoding="utf-8")) if asked.against else None
    print(table(found, before))


if __name__ == "__main__":
    main()
