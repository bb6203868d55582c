"""Modules as text and tree, who imports whom, and which rooms they stand in."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

PRODUCT = ("app", "solvers", "agents")
LABORATORY = ("lab",)
BESIDE = ("tests", "benchmarks", "migrations")


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file; `path` is relative to the checkout."""

    path: PurePosixPath
    source: str
    tree: ast.Module

    @cached_property
    def name(self) -> str:
        """Dotted, a package's door by the name of the package."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if self.is_door else parts)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything in its tree, which is walked once for all who look."""
        return tuple(ast.walk(self.tree))

    @property
    def folder(self) -> PurePosixPath:
        """Where it stands; a door stands in its own package."""
        return self.path.parent

    @property
    def is_door(self) -> bool:
        """Whether it is what a package is imported as."""
        return self.path.name == "__init__.py"

    @property
    def lines(self) -> int:
        """All lines, blank ones included."""
        return len(self.source.splitlines())

    @property
    def package(self) -> str:
        """The top folder."""
        return self.path.parts[0]

    @property
    def room(self) -> str:
        """Package and sub-package; files beside sub-packages are the package's own room."""
        return "/".join(self.path.parts[:2]) if len(self.path.parts) > 2 else self.package


def module(path: str, source: str) -> Module:
    """A module from its text."""
    return Module(path=PurePosixPath(path), source=source, tree=ast.parse(source))


def modules(root: Path, packages: Iterable[str]) -> list[Module]:
    """Those of the packages that exist, by path."""
    return [
        module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One module names another. `bound` is the name taken out of it, `at_top` whether importing the one imports the
    other.
    """

    importer: Module
    imported: str
    bound: str | None
    at_top: bool


def imports(given: Iterable[Module]) -> list[Import]:
    """All imports of one given module by another, within functions and under TYPE_CHECKING as well."""
    each = list(given)
    known = {item.name for item in each}
    return [found for item in each for found in _imports_of(item, known) if found.imported != item.name]


def _imports_of(importer: Module, known: set[str]) -> Iterator[Import]:
    top = set(importer.tree.body)
    for node in importer.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield Import(importer=importer, imported=alias.name, bound=None, at_top=node in top)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(importer, node)
            for alias in node.names:
                child = f"{base}.{alias.name}"
                if child in known:
                    yield Import(importer=importer, imported=child, bound=None, at_top=node in top)
                elif base in known:
                    yield Import(importer=importer, imported=base, bound=alias.name, at_top=node in top)


def _base_of(importer: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = importer.folder.parts[: len(importer.folder.parts) - node.level + 1]
    return ".".join((*parts, *([node.module] if node.module else [])))


def edges(found: Iterable[Import]) -> set[tuple[str, str]]:
    """Importer and imported, each pair once."""
    return {(item.importer.name, item.imported) for item in found}


def sizes(given: Iterable[Module]) -> dict[str, float]:
    """Modules, lines, and what a module has of them: median, nine tenths, most."""
    lines = sorted(item.lines for item in given)
    if not lines:
        return {"modules": 0, "lines": 0, "median": 0, "p90": 0, "max": 0}
    return {
        "modules": len(lines),
        "lines": sum(lines),
        "median": statistics.median(lines),
        "p90": lines[min(len(lines) - 1, int(0.9 * len(lines)))],
        "max": lines[-1],
    }


def rooms(given: Iterable[Module]) -> dict[str, dict[str, float]]:
    """Sizes by room, the largest first."""
    grouped: dict[str, list[Module]] = {}
    for item in given:
        grouped.setdefault(item.room, []).append(item)
    measured = {name: sizes(inside) for name, inside in grouped.items()}
    return dict(sorted(measured.items(), key=lambda pair: -pair[1]["lines"]))
