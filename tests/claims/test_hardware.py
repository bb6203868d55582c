"""Claims that a recording of a real GPU judges fail where the recording says otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lab.claims import hardware
from lab.claims.claim import ClaimStatus, Effort


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A copy of what the H100 said."""
    return Path(shutil.copytree(hardware.RECORDINGS / "h100", tmp_path / "h100"))


def test_a_request_that_failed_in_a_hand_over_is_told(told: Path) -> None:
    assert hardware.hand_over_loses_none(told).status is ClaimStatus.PASS
    whole = json.loads((told / "whole.json").read_text())
    changed = next(each for each in whole["findings"] if each["name"].endswith("since the change: no request failed"))
    changed["value"] = 1.0
    (told / "whole.json").write_text(json.dumps(whole))
    found = hardware.hand_over_loses_none(told)
    assert (found.status, found.measured.partition(" ")[0]) == (ClaimStatus.NOT_REPRODUCED, "1")


def test_without_a_change_nothing_was_handed_over(told: Path) -> None:
    whole = json.loads((told / "whole.json").read_text())
    whole["findings"] = [each for each in whole["findings"] if "since the change" not in each["name"]]
    (told / "whole.json").write_text(json.dumps(whole))
    assert hardware.hand_over_loses_none(told).status is ClaimStatus.NOT_REPRODUCED


def rewritten(told: Path, factor: float, *, identical: bool) -> None:
    """Make neighbours, or only those of the same network, cost so many times what they did."""
    lines = (told / "beside.csv").read_text().splitlines()
    names = lines[0].split(",")
    where, mine, theirs = (names.index(name) for name in ("latency_ms_mean", "network", "beside"))
    for place, line in enumerate(lines[1:], 1):
        cells = line.split(",")
        if cells[theirs] and (not identical or cells[mine] == cells[theirs]):
            cells[where] = str(factor * float(cells[where]))
        lines[place] = ",".join(cells)
    (told / "beside.csv").write_text("\n".join(lines) + "\n")


def test_slowdowns_are_judged_by_their_worst(told: Path) -> None:
    assert hardware.at_most_a_fifth(told).status is ClaimStatus.NOT_REPRODUCED
    rewritten(told, 0.88, identical=False)
    assert hardware.at_most_a_fifth(told).status is ClaimStatus.PASS


def test_equals_beside_each_other_have_to_be_slower_by_more_than_chance(told: Path) -> None:
    assert hardware.identical_slower(told).status is ClaimStatus.NOT_REPRODUCED
    rewritten(told, 1.2, identical=True)
    assert hardware.identical_slower(told).status is ClaimStatus.PASS


def test_every_board_has_to_agree(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "RECORDINGS", told.parent)
    judge = hardware.recorded(hardware.at_most_a_fifth, "beside")
    shutil.copytree(told, told.with_name("other"))
    rewritten(told, 0.88, identical=False)
    found = judge(Effort())
    assert found.status is ClaimStatus.NOT_REPRODUCED
    assert found.measured.startswith("h100: ")
    assert "; other: " in found.measured
    rewritten(told.with_name("other"), 0.88, identical=False)
    assert judge(Effort()).status is ClaimStatus.PASS


def test_without_recordings_nothing_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "RECORDINGS", tmp_path / "none")
    found = hardware.recorded(hardware.identical_slower, "beside")(Effort())
    assert (found.measured, found.status) == ("not run", ClaimStatus.NOT_REPRODUCED)
