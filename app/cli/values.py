"""Domain values in files: canonical JSON, compressed where the name ends with `.gz`, `-` for standard input or output.

Owns what is said of a file that cannot be read: one line with the file and a JSON pointer to the place. It refuses to
know what a value is for.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any, TypeVar

from app.cli.modelling.files import STANDARD, check_target, read_bytes, write_text
from solvers.domain.codec import canonical_json, from_plain
from solvers.errors import FieldError, InputError

__all__ = ["STANDARD", "check_target", "decode", "placed", "read_plain", "read_value", "write_text", "write_value"]

T = TypeVar("T")


def read_plain(file: str) -> Any:
    """The JSON in a file. Raises InputError naming the file and what is wrong with it."""
    body = read_bytes(file)
    try:
        text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
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
