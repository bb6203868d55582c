"""Files that others read while they change: written beside and moved into place, so that nobody sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> bool:
    """Make a file hold this text; False when it does already. Mode 0644, or the one that it had. Raises OSError."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
        mode = path.stat().st_mode & 0o777
    except (FileNotFoundError, UnicodeDecodeError):
        mode = 0o644
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(scratch).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(scratch).unlink()
        raise
    return True
