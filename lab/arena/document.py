"""A scenario file as it was read: plain data, and the line on which every part of it stands.

Owns the dialect (YAML without dates, every key once) and the form of a complaint: `file:line: path: message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from solvers.errors import FieldError, InputError

Where: TypeAlias = Sequence[str | int]


class _Loader(yaml.SafeLoader):
    """YAML without dates: `2026-01-01` is text."""


_LEFT_OUT = ("tag:yaml.org,2002:timestamp",)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 reads 1e-3 as text, for want of a point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says. `origin` is how complaints name the file."""

    origin: str
    root: yaml.Node
    plain: dict[str, Any]

    def refusal(self, where: Where, message: str) -> InputError:
        """The complaint about a place; steps that the file does not have are left out of its path."""
        return InputError(self.complaint(where, message)[1])

    def complaint(self, where: Where, message: str) -> tuple[int, str]:
        """The line and the whole text of a complaint."""
        line, path = _find(self.root, where)
        return line, f"{self.origin}:{line}: {path + ': ' if path else ''}{message}"

    @contextmanager
    def placing(self, *where: str | int) -> Iterator[None]:
        """Let whatever a domain record refuses within be told at this place."""
        try:
            yield
        except FieldError as error:
            raise self.refusal((*where, error.field), error.message) from None


def read(path: Path) -> Document:
    """Read a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    return parse(text, str(path))


def parse(text: str, origin: str) -> Document:
    """Read a text. Raises InputError."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{origin}:1: a scenario file holds fields, such as `kind: world`")
        _refuse_repeated(root, origin)
        plain = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{origin}:{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{origin}:1: {' '.join(str(error).split())}") from None
    return Document(origin, root, plain)


def _refuse_repeated(node: yaml.Node, origin: str) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated(item, origin)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, item in node.value:
        line = key.start_mark.line + 1
        if key.value in seen and key.value != "<<":
            raise InputError(f"{origin}:{line}: {key.value}: already said on line {seen[key.value]}")
        seen[str(key.value)] = line
        _refuse_repeated(item, origin)


def _find(node: yaml.Node, where: Where) -> tuple[int, str]:
    line, path = node.start_mark.line + 1, ""
    for number, step in enumerate(where):
        found = _step(node, step)
        if found is not None:
            line, node, said = found
            path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{said}"
        elif number == len(where) - 1 and isinstance(step, str) and isinstance(node, yaml.MappingNode):
            path += f"{'.' if path else ''}{step}" if step and step != "/" else ""
    return line, path


def _step(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node, str] | None:
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            # Records of the core say `span_s` where a file says `span`.
            if key.value in (str(step), str(step).removesuffix("_s")):
                return key.start_mark.line + 1, item, str(key.value)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return item.start_mark.line + 1, item, str(step)
    return None
