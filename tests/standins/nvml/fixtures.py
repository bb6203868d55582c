"""Fixtures around the stand-in, to be imported into a conftest.

Owns the one compilation of a test session. A C compiler is a development dependency: without one these tests fail and
say so.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standins.nvml import NvmlStandIn
from tests.standins.nvml.double import installed

SOURCE = Path(__file__).with_name("nvml.c")
SONAME = "libnvidia-ml.so.1"


def compile_library(folder: Path, soname: str = SONAME) -> Path:
    """Build the C stand-in; give each session a folder of its own. Without its soname no loader takes it for a driver
    it has loaded already.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("no C compiler: the tests of GPU hosts compile a stand-in driver (Debian: apt-get install gcc)")
    built = folder / SONAME
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", *([f"-Wl,-soname,{soname}"] if soname else [])]
    run = subprocess.run(
        [compiler, *flags, "-o", str(built), str(SOURCE), "-lm"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if run.returncode != 0:
        pytest.fail(f"the stand-in driver does not compile:\n{run.stderr}")
    return built


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stand-in."""
    return compile_library(tmp_path_factory.mktemp("libnvidia-ml"))


@pytest.fixture
def nvml_host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NvmlStandIn]:
    """A host whose GPUs the binding of this process sees; `@pytest.mark.parametrize("nvml_host", [("t4", "h100")],
    indirect=True)` says which.
    """
    host = NvmlStandIn(tmp_path / "nvml", getattr(request, "param", ("t4",)))
    with installed(host.double()):
        yield host
    host.close()
