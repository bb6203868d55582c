"""Temporary files in memory, where there is room."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30


def put_into_memory() -> None:
    """Unless told where they belong: processes crash here, never the kernel, so no disk need be waited for. A database
    of hundreds of files is copied there for nearly every integration test.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None
