"""Where the example files lie: at the top level of a checkout, inside an installed wheel, or in a container image."""

from __future__ import annotations

from pathlib import Path

from solvers.errors import NotFoundError


def examples_path() -> Path:
    """The folder of examples. Raises NotFoundError when this installation brings none."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "examples_bundle", package.parent / "examples", Path("/usr/share/headroom/examples"))
    for candidate in candidates:
        if (candidate / "traffic.yaml").is_file():
            return candidate
    raise NotFoundError(f"no examples beside {package}; run from a checkout, or name files yourself")
