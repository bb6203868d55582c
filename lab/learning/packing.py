"""A trained actor as a distribution: a wheel with nothing but its text, the same bytes for the same actor.

Whoever runs planners installs it with pip; `solvers.extensions` then finds it by name.
"""

from __future__ import annotations

import base64
import hashlib
import io
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from solvers.extensions import ACTORS

_MODULE = """from importlib.resources import files

TEXT = files(__name__).joinpath("actor.json").read_text(encoding="utf-8")
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: headroom\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def packed(name: str, version: str, text: str) -> tuple[str, bytes]:
    """The wheel's file name and content."""
    module, release = f"headroom_actor_{name.replace('-', '_')}", f"0+{version}"
    about = f"{module}-{release}.dist-info"
    parts = {
        f"{module}/__init__.py": _MODULE,
        f"{module}/actor.json": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: headroom-actor-{name}\nVersion: {release}\n",
        f"{about}/WHEEL": _WHEEL,
        f"{about}/entry_points.txt": f"[{ACTORS}]\n{name} = {module}:TEXT\n",
    }
    lines = [f"{place},sha256={_digest(content)},{len(content.encode())}" for place, content in parts.items()]
    parts[f"{about}/RECORD"] = "".join(f"{line}\n" for line in (*lines, f"{about}/RECORD,,"))
    out = io.BytesIO()
    with ZipFile(out, "w") as wheel:
        for place, content in parts.items():
            wheel.writestr(ZipInfo(place), content, ZIP_DEFLATED)
    return f"{module}-{release}-py3-none-any.whl", out.getvalue()


def _digest(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
