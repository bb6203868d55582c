"""Files of commands: sheets of measurements and questions, fitted models, and domain values as canonical JSON.

A file that cannot be read is named in one line, with a JSON pointer or a row where there is one. What is written is
written whole or not at all, gzip where its name ends with .gz; `-` is standard input or output. A model file is one
JSON object with its own digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand

from app.cli.output import CommandError, Exit
from solvers.domain.codec import canonical_json, from_plain
from solvers.errors import FieldError, InputError

if TYPE_CHECKING:
    from app.services.profiles.forms import Sheet
    from solvers.models.base import Facts
    from solvers.models.suite import Suite


T = TypeVar("T")
BYTES_MAX = 10**9
STANDARD = "-"
"""Names standard input or output."""
FAULTS_SHOWN = 200


class FilesCommand(TyperCommand):
    """A command whose options `--solo` and `--pairs` take all words up to the next option, as a shell's `*.csv` gives
    them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its words, which is the form that is parsed."""
        found: list[str] = []
        repeated = ""
        for word in args:
            if word.startswith("--") and word != "--":
                name = word.partition("=")[0]
                repeated = name if name in ("--solo", "--pairs") else ""
            elif word.startswith("-") and word != STANDARD:
                repeated = ""
            elif repeated and found[-1] != repeated:
                found.append(repeated)
            found.append(word)
        return list(super().parse_args(ctx, found))


def read_measurements(
    solo: Sequence[str], pairs: Sequence[str], facts: Facts, *, skip_bad: bool
) -> tuple[list[Sheet], list[Sheet]]:
    """Sheets of models alone and of pairs. Raises CommandError when one has bad rows that may not be skipped."""
    from app.services.profiles.doubts import doubts
    from app.services.profiles.forms import CsvForm, group_samples_of, read_sheet, samples_of

    files = [*((file, CsvForm.SOLO) for file in solo), *((file, CsvForm.PAIRS) for file in pairs)]
    if sum(file == STANDARD for file, _ in files) > 1:
        raise InputError("standard input can be read once only")
    sheets = [_readable(file, read_sheet, facts) for file, _ in files]
    for (file, wanted), sheet in zip(files, sheets, strict=True):
        if sheet.form is not wanted:
            hint = {CsvForm.PAIRS: "; give it with --pairs", CsvForm.SOLO: "; give it with --solo"}
            raise InputError(f"{file}: its columns are those of {sheet.form.value}{hint.get(sheet.form, '')}")
    refuse_faults([file for file, _ in files], sheets, skip_bad=skip_bad)
    for (file, _), sheet in zip(files, sheets, strict=True):
        if not (len(sheet) or sheet.faults) or not any(map(len, sheets)):
            raise InputError(f"{file}: there is no row of measurements in it")
    alone, together = sheets[: len(solo)], sheets[len(solo) :]
    places = [[f"{file}:{line}" for line in sheet.lines] for (file, _), sheet in zip(files, sheets, strict=True)]
    of_alone, of_pairs = (list(chain.from_iterable(part)) for part in (places[: len(solo)], places[len(solo) :]))
    found = doubts(samples_of(alone), group_samples_of(together), (of_alone, of_pairs), facts)
    for doubt in found[:FAULTS_SHOWN]:
        typer.echo(f"{doubt.place}: doubtful: {doubt.detail}", err=True)
    if found:
        typer.echo(f"{len(found)} doubtful rows are learned from as they are", err=True)
    return alone, together


def read_questions(file: str, facts: Facts, *, skip_bad: bool) -> Sheet:
    """Questions of either form. Raises CommandError when there are bad rows that may not be skipped."""
    from app.services.profiles.forms import read_sheet

    sheet = _readable(file, lambda body: read_sheet(body, questions=True), facts)
    refuse_faults([file], [sheet], skip_bad=skip_bad)
    if not len(sheet):
        raise InputError(f"{file}: there is no question in it")
    return sheet


def refuse_faults(files: Sequence[str], sheets: Sequence[Sheet], *, skip_bad: bool) -> None:
    """Name every bad row on standard error. Raises CommandError when there is one, unless they may be skipped."""
    found = [fault.sentence(file) for file, sheet in zip(files, sheets, strict=True) for fault in sheet.faults]
    bad = sum(len({fault.line for fault in sheet.faults}) for sheet in sheets)
    for sentence in found[:FAULTS_SHOWN]:
        typer.echo(sentence, err=True)
    if len(found) > FAULTS_SHOWN:
        typer.echo(f"and {len(found) - FAULTS_SHOWN} more", err=True)
    rows = f"{bad} bad row{'' if bad == 1 else 's'}"
    if bad and not skip_bad:
        raise CommandError(f"{rows}; nothing was written (--skip-bad leaves them out)", Exit.USAGE)
    if bad:
        typer.echo(f"{rows} left out", err=True)


def check_target(file: str) -> None:
    """Raise InputError for a file that can surely not be written, before any work is done for it."""
    path = Path(file)
    if file == STANDARD:
        return
    if path.is_dir():
        raise InputError(f"{file}: this is a folder")
    if not path.parent.is_dir():
        raise InputError(f"{file}: there is no folder {path.parent}")


def write_text(file: str, text: str) -> None:
    """Write a file whole or not at all, or standard output. Raises CommandError when that fails."""
    if file == STANDARD:
        sys.stdout.write(text)
        return
    body = text.encode()
    # Without a time in its header, so that equal models are equal files.
    write_bytes(file, gzip.compress(body, mtime=0) if file.endswith(".gz") else body)


def write_bytes(file: str, body: bytes) -> None:
    """Write a file whole or not at all. Raises CommandError when that fails."""
    # A link stays a link, and what is no plain file (/dev/null) must not be replaced by one.
    path = Path(file).resolve()
    whole = not path.exists() or path.is_file()
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new") if whole else path
    try:
        scratch.write_bytes(body)
        if whole:
            scratch.replace(path)
    except OSError as error:
        if whole:
            with suppress(OSError):
                scratch.unlink()
        raise CommandError(f"{file}: {error.strerror or error}", Exit.USAGE) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Files that only commands write: one JSON object each, with its own digest."""

    what: str
    form: int
    name: str
    maker: str
    """Which command writes them."""

    def write(self, file: str, **content: object) -> None:
        """Raises CommandError when that fails."""
        text = _text_of({"what": self.what, "format": self.form, **content})
        write_text(file, f'{text[:-1]},"digest":"{_digest(text)}"}}\n')

    def read(self, file: str) -> dict[str, Any]:
        """What was written. Raises StrangeFileError for what is nothing of the kind, InputError for what cannot be
        used any more.
        """
        body = read_bytes(file)
        try:
            stored = json.loads(gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body)
        except (ValueError, OSError, EOFError, RecursionError, zlib.error):
            stored = None
        if not isinstance(stored, dict) or stored.get("what") != self.what:
            raise StrangeFileError(f"{file}: this is no {self.name}; `headroom {self.maker}` writes them")
        if stored.get("format") != self.form:
            raise InputError(f"{file}: this {self.name} is of another version; {self.maker} it again")
        # What was made is numbers that fit each other: a changed one would be believed, or end in nonsense.
        try:
            same = stored.pop("digest", None) == _digest(_text_of(stored))
        except ValueError:
            raise InputError(f"{file}: this {self.name} is damaged; {self.maker} it again") from None
        if not same:
            raise InputError(f"{file}: this {self.name} was changed after it was written; {self.maker} it again")
        return stored


class StrangeFileError(InputError):
    """A file is of another kind than was asked for; it must not be written over."""


MODEL = Seal(what="headroom performance model", form=4, name="model file", maker="fit")


def write_model(file: str, suite: Suite, **about: bool | int) -> None:
    """Store a fitted suite; `about` says whether it knows the built-in library, and what it learned from."""
    MODEL.write(file, **about, suite=suite.dump())


def read_model(file: str, facts: Callable[[bool], Facts]) -> Suite:
    """A stored suite; `facts` gives what it is to know, with the built-in library or without.

    Raises InputError when the file holds none of a version known here.
    """
    from solvers.models.suite import Suite

    stored = MODEL.read(file)
    try:
        return Suite.load(stored["suite"], facts(bool(stored["library"])))
    except InputError as error:
        raise InputError(f"{file}: {error.message}") from None
    except (KeyError, TypeError, ValueError, IndexError):
        raise InputError(f"{file}: this model file is damaged; fit it again") from None


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _text_of(plain: dict[str, Any]) -> str:
    return json.dumps(plain, separators=(",", ":"), allow_nan=False)


@contextmanager
def arithmetic(sentence: str) -> Iterator[None]:
    """Measurements may be such that no arithmetic copes with them; that is said as one sentence.

    Raises CommandError instead of errors of arithmetic.
    """
    import numpy as np

    try:
        with np.errstate(all="ignore"):
            yield
    except (ArithmeticError, ValueError) as error:
        raise CommandError(f"{sentence} ({error})", Exit.USAGE) from None


def read_bytes(file: str) -> bytes:
    """A file's content, or standard input's. Raises InputError when it cannot be read."""
    if file == STANDARD:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}") from None


def _readable(file: str, read: Callable[[bytes], Sheet], facts: Facts) -> Sheet:
    """A sheet, in which every name of a known GPU type is the catalogue's, and all spellings of a network are one.
    Raises InputError.
    """
    from app.services.profiles.forms import SheetError
    from solvers.models.library import gpu_key, one_spelling

    body = read_bytes(file)
    try:
        sheet = read(body)
    except SheetError as error:
        if is_json(body.decode(errors="replace")):
            told = "this is JSON, and CSV is read here; `headroom profiles import` takes measurements in JSON"
            raise InputError(f"{file}: {told}") from None
        raise InputError(error.fault.sentence(file)) from None
    catalogue = {gpu_key(name): name for name in facts.gpu_types}
    of_models = {name for column, names in sheet.names.items() if column != "gpu_type" for name in names}
    usual = {name: one_spelling(name, facts.models) for name in of_models}
    usual_type = {name: catalogue.get(gpu_key(name), name) for name in sheet.names["gpu_type"]}
    return replace(
        sheet,
        names={
            column: [(usual_type if column == "gpu_type" else usual)[name] for name in names]
            for column, names in sheet.names.items()
        },
    )


def is_json(text: str) -> bool:
    """Whether a text of measurements is a list or an object, as no header of CSV is."""
    return text.lstrip("\ufeff \t\r\n").startswith(("[", "{"))


def read_plain(file: str) -> Any:
    """The JSON in a file. Raises InputError naming the file and what is wrong with it."""
    text = read_bytes(file)
    try:
        if text.startswith(b"\x1f\x8b"):
            text = gzip.GzipFile(fileobj=io.BytesIO(text)).read(BYTES_MAX)
        if len(text) >= BYTES_MAX:
            raise InputError(f"{file}: more than {BYTES_MAX // 10**6} MB of text")
        return json.loads(text, parse_constant=_refuse)
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{file}: damaged gzip data") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text") from None
    except RecursionError:
        raise InputError(f"{file}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from None


def decode(cls: type[T], plain: Any, file: str) -> T:
    """A value of what a file holds. Raises InputError naming file and place."""
    try:
        return from_plain(cls, plain)
    except FieldError as error:
        raise InputError(f"{file}: {placed(error.field, error.message)}") from None
    except (OverflowError, RecursionError) as error:
        raise InputError(f"{file}: {error}") from None


def read_value(cls: type[T], file: str) -> T:
    """Read a value. Raises InputError naming file and place."""
    return decode(cls, read_plain(file), file)


def write_value(file: str, item: object) -> None:
    """Write a value's canonical JSON; equal values give equal files."""
    write_text(file, canonical_json(item) + "\n")


def placed(pointer: str, message: str) -> str:
    """A sentence that names its place once."""
    if not pointer or pointer == "/" or message.startswith(pointer):
        return message
    return f"{pointer}: {message}"


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is not a JSON number")
