"""The user guide's table of settings is the truth about `Settings`."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from app.settings import Settings

GUIDE = Path(__file__).parents[3] / "docs" / "guide.md"
_ROW = re.compile(r"^\| `(HEADROOM_[A-Z_]+)` \| (?:`([^`]*)`)? ?\| (.+) \|$", re.MULTILINE)


def test_every_setting_is_documented_with_its_default() -> None:
    table = GUIDE.read_text(encoding="utf-8").partition("<!-- settings")[2].partition("<!-- end of settings -->")[0]
    documented = {variable: default for variable, default, _ in _ROW.findall(table)}
    assert documented == {f"HEADROOM_{field.name.upper()}": str(field.default) for field in fields(Settings)}
    assert all(len(meaning) > 10 for _, _, meaning in _ROW.findall(table))
