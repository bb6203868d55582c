"""`headroom train inss` without torch: what it says before any training, and how its files are written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.cli.files import write_bytes
from app.cli.output import CommandError, Exit
from app.cli.program import run
from lab.cli import training
from solvers.errors import InputError


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment that has none."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("training",):
        monkeypatch.delitem(sys.modules, f"lab.learning.{name}", raising=False)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_one_line_names_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["train", "inss", "--out", str(tmp_path / "actor.json")])
    said = capsys.readouterr().err
    assert status == Exit.NEEDS_EXTRA
    how = 'pip install ".[rl]" in a checkout of Headroom'
    assert said == f"headroom: needs headroom-gpu[rl] (torch is missing): {how}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "words"),
    [("-", "names a file"), ("{folder}", "this is a folder"), ("{folder}/none/actor.json", "no folder")],
)
def test_where_nothing_can_be_written_nothing_is_trained(
    out: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "inss", "--out", out.format(folder=tmp_path)]) == Exit.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "bert"], "--models goes with --fleet"),
        (["--fleet", "2xt4"], "--fleet wants --models"),
        (["--fleet", "gone.json"], "or a file: gone.json is none"),
        (["--fleet", "2xt4", "--models", "bert", "--setting", "six"], "give --fleet or --setting"),
        (["--fleet", "2xabacus", "--models", "bert"], "'2xabacus' is no GPUs to train for"),
        (["--setting", "seven"], "known are six, eight"),
        (["--name", "Edge"], "small letters"),
    ],
)
def test_what_cannot_be_trained_for_is_said_before_torch_is_loaded(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "inss", "--out", str(tmp_path / "actor.json"), *arguments]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_hyper_parameters_are_read_as_numbers_words_or_refused() -> None:
    assert training._read("penalty=50") == ("penalty", 50)
    assert training._read("discount=0.9") == ("discount", 0.9)
    assert training._read("entropy=heads") == ("entropy", "heads")
    for wrong in ("penalty", "=3"):
        with pytest.raises(InputError, match="PARAMETER=VALUE"):
            training._read(wrong)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "actor.json.checkpoint"
    write_bytes(str(path), b"first")
    write_bytes(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(CommandError, match="none"):
        write_bytes(str(tmp_path / "none" / "x"), b"")
