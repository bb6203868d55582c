"""What was frozen of one kind of behaviour: its subjects, their lines in a file, and what differs.

Owns the file's form: one line for each subject, so that a diff names what changed and by how much. Quick subjects and
dear ones stand apart, because either can be looked at alone. It refuses to know what a subject is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

DIGEST_LETTERS = 16
NUMBER_DIGITS = 9
QUICK, DEAR = "quick", "dear"
FAILED = "failed"
"""Stands in a line for why a subject could not be taken; such a line is never the same as anything."""
Line: TypeAlias = dict[str, Any]
"""What is kept of a subject: `sha256`, then a few numbers for people, then `cut` where it is a part of the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a subject is now: text that decides, and numbers that tell a person what changed."""

    text: str
    numbers: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One subject to take. `cut` says by what it was made cheaper; `dear` ones are left out of a quick look; `data` is
    a folder of public data that not every machine has.
    """

    key: str
    take: Callable[[], Taken]
    cut: str = ""
    dear: bool = False
    data: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a kind found: lines by key, and subjects that could not be looked at for want of data."""

    quick: Mapping[str, Line]
    dear: Mapping[str, Line] | None
    """None: not looked at."""
    missing: tuple[str, ...] = ()

    def parts(self) -> dict[str, Mapping[str, Line]]:
        """By the names that they have in the file, those looked at."""
        return {QUICK: self.quick} if self.dear is None else {QUICK: self.quick, DEAR: self.dear}


def line_of(case: Case, taken: Taken) -> Line:
    """A subject as it is kept."""
    line: Line = {"sha256": short_digest(taken.text)}
    line |= {name: _rounded(number) for name, number in taken.numbers.items()}
    return line | ({"cut": case.cut} if case.cut else {})


def short_digest(text: str) -> str:
    """As much of the sha256 as is kept."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]


def read(path: Path) -> dict[str, dict[str, Line]]:
    """The lines of a file by part; none where there is no file."""
    found: dict[str, dict[str, Line]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(path: Path, look: Look) -> None:
    """Keep what was found, and what was not looked at as it stood."""
    kept = read(path)
    for part, lines in look.parts().items():
        unseen = {key: kept[part][key] for key in look.missing if key in kept.get(part, {})}
        kept[part] = {**lines, **unseen}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(kept), encoding="utf-8")


def text_of(parts: Mapping[str, Mapping[str, Line]]) -> str:
    """JSON with one line for each subject."""
    blocks = []
    for part in (QUICK, DEAR):
        lines = [f"    {json.dumps(key)}: {json.dumps(line)}" for key, line in sorted(parts.get(part, {}).items())]
        blocks.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n  }" if lines else f'  "{part}": {{}}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def differences(kept: Mapping[str, Mapping[str, Line]], look: Look) -> tuple[str, ...]:
    """One line for every subject that is not what it was, came, went, or could not be taken."""
    told = []
    for part, now in look.parts().items():
        before = kept.get(part, {})
        for key in sorted({*before, *now} - set(look.missing)):
            old, new = before.get(key, {}), now.get(key, {})
            if old != new or FAILED in new:
                told.append(f"{key}: {_told(old, new)} -> {_told(new, old)}")
    return tuple(told)


def _told(line: Line, other: Line) -> str:
    """The digest and the numbers; by what both were made cheaper is known."""
    said = {name: item for name, item in line.items() if name != "cut" or item != other.get(name)}
    return " ".join(str(item) if name == "sha256" else f"{name}={item}" for name, item in said.items()) or "nothing"


def _rounded(number: float | str) -> float | str:
    return float(f"{number:.{NUMBER_DIGITS}g}") if isinstance(number, float) else number
