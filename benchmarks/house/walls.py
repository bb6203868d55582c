"""Where walls stand that ideas do not ask for: modules with one reader, folders faked by prefixes, names used twice."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.house.source import Module, imports


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Modules with exactly one importer, and those of them whose importer stands in the same folder, each with it."""

    single: tuple[str, ...]
    siblings: tuple[str, ...]


def single_readers(given: Iterable[Module]) -> Readers:
    """Modules that exactly one other of the given ones imports. A package's `__init__` is never counted itself; what
    it takes at its top out of its own folder is a door, so its readers are those who take the name through the door.
    """
    each = list(given)
    stands = {item.name: item for item in each}
    found = imports(each)
    doors: dict[tuple[str, str], str] = {}
    for item in found:
        inside = item.imported.startswith(f"{item.importer.name}.")
        if item.importer.is_door and item.at_top and inside and item.bound:
            doors[item.importer.name, item.bound] = item.imported
    readers: dict[str, set[str]] = defaultdict(set)
    for item in found:
        inside = item.imported.startswith(f"{item.importer.name}.")
        if item.importer.is_door and item.at_top and inside:
            continue
        imported, bound = item.imported, item.bound
        while bound and (imported, bound) in doors:
            imported = doors[imported, bound]
        if imported != item.importer.name:
            readers[imported].add(item.importer.name)
    single = {name: next(iter(who)) for name, who in readers.items() if len(who) == 1 and not stands[name].is_door}
    return Readers(
        single=tuple(sorted(single)),
        siblings=tuple(
            f"{name} <- {who}" for name, who in sorted(single.items()) if stands[name].folder == stands[who].folder
        ),
    )


def prefix_families(given: Iterable[Module]) -> dict[str, int]:
    """Three or more files of one folder that share what stands before the first `_`, a plain file of that name
    included: `whatif.py`, `whatif_rows.py`, `whatif_words.py`. By folder and prefix, with the number of files.
    """
    found: Counter[str] = Counter()
    for item in given:
        prefix = item.path.stem.partition("_")[0]
        if prefix:
            found[f"{item.folder}/{prefix}"] += 1
    return {name: number for name, number in found.most_common() if number > 2}


def namesakes(given: Iterable[Module]) -> Counter[str]:
    """How often each class name is defined, a leading underscore left out."""
    return Counter(node.name.lstrip("_") for item in given for node in item.nodes if isinstance(node, ast.ClassDef))
