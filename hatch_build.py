"""Compiles the C sources of `solvers.engines` when a wheel is built, and for an editable install.

A wheel then is for one platform, and for any Python 3, since the libraries know nothing of Python. Without a compiler
the build ends with one line that says what to install.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = Path("solvers/engines/compiled.py")


class Libraries(BuildHookInterface[Any]):
    """See the module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the libraries among what the wheel carries."""
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("compiled", root / COMPILED)
        if spec is None or spec.loader is None:
            sys.exit(f"{COMPILED} is missing")
        compiled = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiled)
        try:
            libraries = [compiled.library(source) for source in compiled.sources()]
        except compiled.CompilerError as error:
            sys.exit(str(error))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"] += [str(path.relative_to(root)) for path in libraries]
