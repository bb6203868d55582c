"""What a lock file's distributions take on disk, as they are installed beside the running interpreter."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==", re.MULTILINE)


def locked(text: str) -> list[str]:
    """Names of a hash-pinned lock, as they are pinned."""
    return NAME.findall(text)


def size_mb(name: str) -> float | None:
    """Millions of bytes that its files take, compiled bytecode left out; None where it is not installed."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return None
    paths = [Path(str(each.locate())) for each in files if each.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
