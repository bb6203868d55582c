"""Libraries are made from their sources once, and a missing compiler is one line."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from solvers.engines import compiled


def test_a_changed_source_is_compiled_anew_and_its_old_library_goes(tmp_path: Path) -> None:
    source = tmp_path / "sums.c"
    source.write_text("long answer(void) { return 1; }\n")
    first = compiled.library(source)
    assert compiled.library(source) == first
    assert ctypes.CDLL(str(first)).answer() == 1
    source.write_text("long answer(void) { return 2; }\n")
    second = compiled.library(source)
    assert ctypes.CDLL(str(second)).answer() == 2
    assert list(tmp_path.glob("_sums*")) == [second]
    # A library that an earlier version left under a module's name goes, too, where nothing has to be compiled.
    (tmp_path / "_sums-abc.so").touch()
    assert compiled.library(source) == second
    assert list(tmp_path.glob("_sums*")) == [second]


@pytest.mark.parametrize("what", ["no compiler", "no C"])
def test_what_cannot_be_compiled_says_so_in_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "sums.c"
    source.write_text("long answer(void) { return 1; }\n" if what == "no compiler" else "no C at all\n")
    if what == "no compiler":
        monkeypatch.setattr(compiled.os, "posix_spawnp", _missing)
    with pytest.raises(compiled.CompilerError, match="install a C compiler") as caught:
        compiled.library(source)
    assert "\n" not in str(caught.value)


def _missing(*_: object) -> int:
    raise FileNotFoundError


def test_every_source_here_has_a_library() -> None:
    assert [source.stem for source in compiled.sources()] == ["anneal", "contents", "exchange"]
    assert all(compiled.library(source).exists() for source in compiled.sources())
