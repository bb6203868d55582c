"""What a syntax tree says of parameters, functions, comments and sleeping tests."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.house.source import Module, imports

LINES_MAX = 60
ARGUMENTS_MAX = 6
MANY_ARGUMENTS_ALLOWED = ("app/cli", "app/api")
"""A command's options are its parameters, and a route's are injected."""
Aliases = dict[str, dict[str, ast.expr]]
"""By module and name, the type that was assigned to the name."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuples:
    """Places, as `path:line function.parameter`, by what their annotation is: a tuple of different types, a tuple of a
    fixed number of equal types, a collection of tuples of different types. `results` are functions that answer with a
    tuple of different types.
    """

    mixed: tuple[str, ...]
    equal: tuple[str, ...]
    within: tuple[str, ...]
    results: tuple[str, ...]


def tuples(given: Iterable[Module]) -> Tuples:
    """How parameters and results are annotated. Unions, Optional and Annotated are looked through, and so are names
    that a module assigns a type to, its own or imported. `tuple[X, ...]` is a collection, not a tuple of this kind.
    """
    each = list(given)
    aliases = _aliases(each)
    mixed, equal, within, results = [], [], [], []
    for item in each:
        names = aliases[item.name]
        for node in _functions(item):
            place = f"{item.path}:{node.lineno} {node.name}"
            for argument in _arguments(node):
                kinds = _kinds(argument.annotation, names)
                where = f"{place}.{argument.arg}"
                if "mixed" in kinds:
                    mixed.append(where)
                elif "within" in kinds:
                    within.append(where)
                elif "equal" in kinds:
                    equal.append(where)
            if "mixed" in _kinds(node.returns, names):
                results.append(place)
    return Tuples(mixed=tuple(mixed), equal=tuple(equal), within=tuple(within), results=tuple(results))


def _functions(item: Module) -> Iterator[Function]:
    return (node for node in item.nodes if isinstance(node, Function))


def _arguments(node: Function) -> list[ast.arg]:
    stars = [each for each in (node.args.vararg, node.args.kwarg) if each]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *stars]


def _aliases(given: list[Module]) -> Aliases:
    found: Aliases = {item.name: dict(_assigned(item)) for item in given}
    # Names may be handed on through a door and another, hence more than one round.
    taken = [item for item in imports(given) if item.bound]
    for _ in range(3):
        for item in taken:
            known = found[item.imported].get(item.bound or "")
            if known is not None:
                found[item.importer.name].setdefault(item.bound or "", known)
    return found


def _assigned(item: Module) -> Iterator[tuple[str, ast.expr]]:
    for node in item.tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, assigned = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, assigned = node.target.id, node.value
        elif sys.version_info >= (3, 12) and isinstance(node, ast.TypeAlias):
            name, assigned = node.name.id, node.value
        else:
            continue
        if isinstance(assigned, ast.Subscript | ast.BinOp | ast.Name):
            yield name, assigned


def _kinds(annotation: ast.expr | None, aliases: dict[str, ast.expr], depth: int = 0) -> set[str]:
    """Of `mixed`, `equal` and `within`, those that hold for a type or a member of its union."""
    if annotation is None or depth > 8:
        return set()
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return set()
    if isinstance(annotation, ast.BinOp):
        return _kinds(annotation.left, aliases, depth + 1) | _kinds(annotation.right, aliases, depth + 1)
    if isinstance(annotation, ast.Name):
        return _kinds(aliases.get(annotation.id), aliases, depth + 1)
    if not isinstance(annotation, ast.Subscript):
        return set()
    outer = _last_name(annotation.value)
    inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    kinds = [_kinds(each, aliases, depth + 1) for each in inner]
    if outer in {"Optional", "Union"}:
        return set().union(*kinds)
    if outer == "Annotated":
        return kinds[0]
    if outer in {"tuple", "Tuple"} and not any(isinstance(each, ast.Constant) and each.value is ... for each in inner):
        different = len({ast.dump(each) for each in inner}) > 1
        return {"mixed"} if different or any("mixed" in each for each in kinds) else {"equal"}
    # What a callback takes and gives is counted where the callback is defined.
    return {"within"} if outer != "Callable" and any({"mixed", "within"} & each for each in kinds) else set()


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def long_functions(given: Iterable[Module]) -> list[str]:
    """Functions of more lines than the house allows."""
    return [
        f"{item.path}:{node.lineno} {node.name}"
        for item in given
        for node in _functions(item)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > LINES_MAX
    ]


def many_arguments(given: Iterable[Module]) -> list[str]:
    """Functions of more arguments than the house allows, outside commands and routes; `self` and `cls` are none."""
    return [
        f"{item.path}:{node.lineno} {node.name}"
        for item in given
        if not item.path.as_posix().startswith(MANY_ARGUMENTS_ALLOWED)
        for node in _functions(item)
        if sum(each.arg not in {"self", "cls"} for each in _arguments(node)) > ARGUMENTS_MAX
    ]


def sleeps(given: Iterable[Module]) -> list[str]:
    """Calls of `time.sleep`, also where it was imported as `sleep` or time under another name."""
    return [f"{item.path}:{line}" for item in given for line in _sleeps_of(item.tree)]


def _sleeps_of(tree: ast.Module) -> Iterator[int]:
    clocks, calls = {"time"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            clocks |= {each.asname for each in node.names if each.name == "time" and each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            calls |= {each.asname or each.name for each in node.names if each.name == "sleep"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            through = (
                isinstance(called, ast.Attribute) and called.attr == "sleep" and _last_name(called.value) in clocks
            )
            if through or (isinstance(called, ast.Name) and called.id in calls):
                yield node.lineno


def comments_with(given: Iterable[Module], mark: str) -> int:
    """Comments, not strings, in which a mark such as `noqa` stands."""
    return sum(
        token.type == tokenize.COMMENT and mark in token.string
        for item in given
        if mark in item.source
        for token in tokenize.generate_tokens(io.StringIO(item.source).readline)
    )
