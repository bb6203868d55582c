"""Imports against the layers that pyproject.toml draws, circles between rooms, and modules that nothing leads to."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.house.source import PRODUCT, Import, Module, edges, imports

RUN_BY_MAKE = re.compile(r"python -m ([a-z_.]+)")
DOTTED = re.compile(r"[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*\.?")
Edges = set[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Rooms of one height; independent ones may not import each other either."""

    rooms: tuple[str, ...]
    independent: bool


def floors(contract: Mapping[str, Any], container: str) -> list[Floor]:
    """A layers contract read for one of its containers, highest first, rooms by their full names."""
    prefix = f"{container}." if container else ""
    found = []
    for line in contract["layers"]:
        parts = [part.strip(" ()") for part in re.split(r"[|:]", line)]
        found.append(Floor(rooms=tuple(prefix + part for part in parts), independent=":" not in line))
    return found


def against_layers(given: Edges, pyproject: Mapping[str, Any]) -> list[str]:
    """Imports that lead from a lower floor to a higher one, or between independent rooms of one floor."""
    contracts = pyproject.get("tool", {}).get("importlinter", {}).get("contracts", [])
    found: set[str] = set()
    for contract in contracts:
        if contract["type"] == "layers":
            for container in contract.get("containers") or [""]:
                found |= _against(given, floors(contract, container))
    return sorted(found)


def _against(given: Edges, order: list[Floor]) -> set[str]:
    heights = {room: height for height, floor in enumerate(order) for room in floor.rooms}
    found = set()
    for importer, imported in given:
        lower, upper = _room_of(importer, heights), _room_of(imported, heights)
        if lower is None or upper is None or lower == upper:
            continue
        level = heights[lower] == heights[upper] and order[heights[lower]].independent
        if heights[lower] > heights[upper] or level:
            found.add(f"{importer} -> {imported}")
    return found


def _room_of(name: str, rooms: Iterable[str]) -> str | None:
    return next((room for room in rooms if name == room or name.startswith(f"{room}.")), None)


def circles(given: Edges, parent: str) -> list[tuple[str, ...]]:
    """Groups of rooms directly within a package, sub-packages and files alike, each of which reaches every other."""
    arrows: dict[str, set[str]] = {}
    for importer, imported in given:
        one, other = (_child(name, parent) for name in (importer, imported))
        if one and other and one != other:
            arrows.setdefault(one, set()).add(other)
    reach = {room: _reached({room}, arrows) for room in arrows}
    found = {tuple(sorted(other for other in beyond if room in reach.get(other, ()))) for room, beyond in reach.items()}
    return sorted(group for group in found if len(group) > 1)


def _child(name: str, parent: str) -> str:
    return name.removeprefix(f"{parent}.").partition(".")[0] if name.startswith(f"{parent}.") else ""


def _reached(roots: Iterable[str], arrows: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = list(roots)
    while ahead:
        item = ahead.pop()
        if item not in seen:
            seen.add(item)
            ahead.extend(arrows.get(item, ()))
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What starts modules: both distributions' pyproject.toml and the Makefile."""

    product: Mapping[str, Any]
    laboratory: Mapping[str, Any]
    makefile: str


def started(root: Path) -> Started:
    """As a checkout says it."""
    product, laboratory = (
        tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for path in (root / "pyproject.toml", root / "lab" / "pyproject.toml")
    )
    return Started(product=product, laboratory=laboratory, makefile=(root / "Makefile").read_text(encoding="utf-8"))


def lost(house: Iterable[Module], begun: Started) -> list[Module]:
    """Modules of the product that none of its own entry points leads to, and those of the laboratory that none at all
    does: what only the laboratory runs stands there.
    """
    each = list(house)
    made = {item.name for item in each} & set(RUN_BY_MAKE.findall(begun.makefile))
    product = [item for item in each if item.package in PRODUCT]
    own = made | entry_points(begun.product, product)
    beyond = unreached(each, own | entry_points(begun.laboratory, each))
    return unreached(product, own) + [item for item in beyond if item.package not in PRODUCT]


def entry_points(pyproject: Mapping[str, Any], given: Iterable[Module]) -> set[str]:
    """Modules that are started: console scripts, what is found by name, and what `python -m` runs of a package."""
    project = pyproject.get("project", {})
    tables = [project.get("scripts", {}), project.get("gui-scripts", {}), *project.get("entry-points", {}).values()]
    scripts = {target.partition(":")[0] for table in tables for target in table.values()}
    mains = {item.name for item in given if item.path.name == "__main__.py"}
    return scripts | mains


def unreached(given: Iterable[Module], roots: Iterable[str]) -> list[Module]:
    """Modules to which neither imports nor names in strings lead from the roots.

    A string constant that names a module (`solvers.planners.joint.planner`, with or without `:attribute`) leads to it,
    and one that ends in a dot after a package's name leads to all that stands directly in the package. So does a call
    of `iter_modules` beside an import of the package; one of `walk_packages` leads to all that stands below it.
    Importing a module imports the packages above it. An `__init__` that says no more than what its package is, is not
    counted.
    """
    each = list(given)
    stands = {item.name: item for item in each}
    arrows: dict[str, set[str]] = {}
    found = edges(imports(each))
    for importer, imported in found | _named(each) | _listed(each, found):
        arrows.setdefault(importer, set()).add(imported)
    for name in stands:
        above = name.rpartition(".")[0]
        if above in stands:
            arrows.setdefault(name, set()).add(above)
    seen = _reached(roots, arrows)
    return [item for item in each if item.name not in seen and not (item.is_door and item.lines < LINES_OF_A_DOOR)]


LINES_OF_A_DOOR = 10
"""A package's `__init__` that says no more than what the package is."""


def _named(given: list[Module]) -> Edges:
    children, known, found = _children(given), {item.name for item in given}, set()
    for item in given:
        for node in item.nodes:
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            text = node.value.partition(":")[0]
            if "." in text and DOTTED.fullmatch(text):
                wanted = children.get(text[:-1], ()) if text.endswith(".") else (text,)
                found |= {(item.name, name) for name in wanted if name in known}
    return found


def _children(given: Iterable[Module]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {}
    for item in given:
        children.setdefault(item.name.rpartition(".")[0], []).append(item.name)
    return children


def _listed(given: list[Module], imported: Edges) -> Edges:
    children, doors = _children(given), {item.name for item in given if item.is_door}
    listing = {item.name for item in given if "iter_modules(" in item.source}
    walking = {item.name for item in given if "walk_packages(" in item.source}
    direct = {
        (importer, child)
        for importer, door in imported
        if importer in listing and door in doors
        for child in children.get(door, ())
    }
    return direct | {
        (importer, item.name)
        for importer, door in imported
        if importer in walking and door in doors
        for item in given
        if item.name.startswith(f"{door}.")
    }


def reachable_within(found: Iterable[Import], root: str, package: str) -> set[str]:
    """Modules of a package that imports lead to from a root, on ways that stay within the package."""
    arrows: dict[str, set[str]] = {}
    for importer, imported in edges(found):
        if _room_of(importer, (package,)) and _room_of(imported, (package,)):
            arrows.setdefault(importer, set()).add(imported)
    return _reached({root}, arrows)
