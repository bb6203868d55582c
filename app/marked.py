"""Texts in YAML or JSON that people write, read once with the line of everything that they say.

The dialect: YAML without dates, `1e9` is a number, every key once; what aliases stand for is counted as often as it
stands there. All repeated keys and unreadable documents of a text are told at once. Scenarios and documents to apply
are read here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import yaml

from solvers.errors import InputError

NODES_MAX = 2_000_000
Where: TypeAlias = Sequence[str | int]
_DOCUMENTS = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_QUOTED = re.compile(r'[\s{\[]+"')
"""How JSON begins, and YAML seldom."""
_QUOTED_YAML_MAX = 100_000
"""Characters; in more, which take a second and longer to read as YAML, what begins as JSON is JSON."""
_SAYING = re.compile(r"^(?!---\s*$|\.\.\.|%)[ \t]*[^\s#]", re.MULTILINE)


class _Loader(yaml.SafeLoader):
    """Counts what aliases stand for, and keeps which keys stand twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[tuple[int, str]] = []
        self._count = 0
        self._counts: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        before, is_alias = self._count, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._counts:
            raise yaml.YAMLError("an alias stands within what it stands for, without end")
        self._count += self._counts[id(node)] if is_alias else 1
        if self._count > NODES_MAX:
            raise yaml.YAMLError(f"more than {NODES_MAX} values, with what aliases stand for")
        self._counts[id(node)] = self._count - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        found: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in found.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in seen and name != "<<":
                self.repeated.append((line, f"{name}: already said on line {seen[name]}"))
            seen[name] = line
        return found


_UNREAD = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _UNREAD]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 reads the mode off and the country no as false.
_Loader.add_implicit_resolver(_UNREAD[1], re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
# YAML 1.1 reads 1e-3 as text, for want of a point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


class UnreadableError(InputError):
    """A text that cannot be read; one line for each reason, each with its place. `found`: what else stands there."""

    def __init__(self, lines: Sequence[str], found: Sequence[Any] = ()) -> None:
        super().__init__("\n".join(lines))
        self.lines, self.found = tuple(lines), found


@dataclass(frozen=True, slots=True)
class Marked:
    """A value of a text. `origin` is how complaints name the text; JSON finds its lines when somebody asks."""

    origin: str
    plain: Any
    node: yaml.Node | None = None
    text: str = field(default="", repr=False)
    steps: tuple[str | int, ...] = ()

    def part(self, step: str | int) -> Marked:
        """What stands at a step of it."""
        plain = self.plain[step]
        if self.node is None:
            return Marked(self.origin, plain, None, self.text, (*self.steps, step))
        found = _step(self.node, step)
        return Marked(self.origin, plain, found[1] if found is not None else self.node)

    def complaint(self, where: Where, message: str) -> tuple[int, str]:
        """The line and the whole text of a complaint about a place; steps that the text has not are left out."""
        node = self.node if self.node is not None else _composed(self.text)
        if node is None:
            return 1, f"{self.origin}: {message}"
        line, path = _find(node, self.steps, where)
        return line, f"{self.origin}:{line}: {told_at(path, message)}"


def told_at(place: str, message: str) -> str:
    """A complaint about a place, which is named once."""
    name = re.split(r"[./]", place)[-1]
    said_anyway = name and message.startswith(f"{name} ")
    return f"{place}{message.removeprefix(name)}" if said_anyway else f"{place}: {message}" if place else message


def read_marked(text: str, origin: str) -> list[Marked]:
    """The documents of a text. Raises UnreadableError."""
    if not text.lstrip().startswith(("{", "[")):
        return _yaml(text, origin)
    # YAML reads JSON too, but slower and with worse messages.
    try:
        return [_json(text, origin)]
    except UnreadableError as error:
        as_json, quoted = error, _QUOTED.match(text) is not None
    if quoted and len(text) > _QUOTED_YAML_MAX:
        raise as_json
    try:
        return _yaml(text, origin)
    except UnreadableError as error:
        raise (as_json if quoted and not error.found else error) from None


def _yaml(text: str, origin: str) -> list[Marked]:
    try:
        return _read(text, origin, 0)
    except UnreadableError:
        parts = _DOCUMENTS.split(text)
        if len(parts) == 1:
            raise
    found: list[Marked] = []
    wrong: list[str] = []
    line = 0
    for part in parts:
        try:
            found += _read(part, origin, line)
        except UnreadableError as error:
            wrong += error.lines
            found += error.found
        line += part.count("\n")
    raise UnreadableError(wrong, found)


def count_least(text: str, but: re.Pattern[str]) -> int:
    """Documents of a YAML text, without reading them: those that say something, and nothing that `but` finds."""
    if text.lstrip().startswith(("{", "[")):
        return 0
    parts = _DOCUMENTS.split(text)
    return sum(_SAYING.search(part) is not None and but.search(part) is None for part in parts)


def _read(text: str, origin: str, line: int) -> list[Marked]:
    """`line`: so many stand before it."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line += text.count("\n", 0, error.position) + 1
        raise UnreadableError([f"{origin}:{line}: a character that no YAML may hold: {error.character:#x}"]) from None
    loader.line = line
    try:
        found = list(_documents(loader, origin))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UnreadableError([f"{origin}:{mark.line + 1 if mark else 1}: {_in_words(error)}"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError([f"{origin}: {_in_words(error)}"]) from None
    finally:
        loader.dispose()
    if loader.repeated:
        raise UnreadableError([f"{origin}:{line}: {told}" for line, told in sorted(loader.repeated)], found)
    return found


def _documents(loader: _Loader, origin: str) -> Iterator[Marked]:
    while loader.check_node():
        node = loader.get_node()
        yield Marked(origin, loader.construct_document(node), node)


def _json(text: str, origin: str) -> Marked:
    repeated: list[str] = []

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(pairs)
        if len(plain) != len(pairs):
            repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return plain

    try:
        plain = json.loads(text, object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise UnreadableError([f"{origin}:{error.lineno}: {error.msg}"]) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError([f"{origin}: {_in_words(error)}"]) from None
    if repeated:
        told = [f"{origin}: the key {key!r} stands twice in one object" for key in repeated]
        raise UnreadableError(told, [Marked(origin, plain, None, text)])
    return Marked(origin, plain, None, text)


def _in_words(error: Exception) -> str:
    """What is wrong, without the words of those who read it."""
    said = " ".join(str(getattr(error, "problem", None) or getattr(error, "context", None) or error).split())
    if isinstance(error, RecursionError):
        return "too many values inside each other"
    if "integer string conversion" in said:
        return "a whole number of too many digits"
    return "a key is a text or a number, no list and no mapping" if said == "found unhashable key" else said


@lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    """Kept, for each document of a text asks for its place."""
    try:
        found: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError):
        return None
    return found


def _find(node: yaml.Node, lead: Where, where: Where) -> tuple[int, str]:
    for step in lead:
        found = _step(node, step)
        node = found[1] if found is not None else node
    line, path = node.start_mark.line + 1, ""
    for number, step in enumerate(where):
        found = _step(node, step)
        if found is not None:
            line, inner, said = found
            path += f"[{said}]" if isinstance(node, yaml.SequenceNode) else f"{'.' if path else ''}{said}"
            node = inner
        elif number == len(where) - 1 and isinstance(step, str) and isinstance(node, yaml.MappingNode):
            path += f"{'.' if path else ''}{step}" if step and step != "/" else ""
    return line, path


def _step(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node, str] | None:
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            # Records of the core say `span_s` where a scenario says `span`.
            if key.value in (str(step), str(step).removesuffix("_s")):
                return key.start_mark.line + 1, item, str(key.value)
    if isinstance(node, yaml.SequenceNode) and str(step).isdigit() and int(step) < len(node.value):
        item = node.value[int(step)]
        return item.start_mark.line + 1, item, str(step)
    return None
