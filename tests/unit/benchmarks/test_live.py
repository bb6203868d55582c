"""What the running demo's looks come to: what stood beside what could be had, with what is left unserved."""

from __future__ import annotations

from pathlib import Path

from benchmarks.door import live
from benchmarks.door.live import Seen
from solvers.domain.codec import from_json
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot

PICTURE = Path(__file__).parents[2] / "golden" / "cases" / "mixed-fleet.snapshot.json"


def test_what_stood_is_held_against_a_plan_with_nothing_standing(tmp_path: Path) -> None:
    picture = from_json(Snapshot, PICTURE.read_bytes())
    stood = Objective(cost_usd_per_h=40.0, waiting_usd_per_h=0.5, unserved=12.0)
    cells = live.line(Seen(20.4, picture, stood, "as told"), 60, tmp_path).split(" | ")
    assert cells[:3] == ["| 20", "40.000 + 0.500", "as told"]
    afresh = sum(map(float, cells[3].split(" + ")))
    assert 0 < afresh < 40
    assert cells[4] == f"{40.5 / afresh - 1:+.1%}"
    assert cells[5].startswith("12.0 for ")


def test_a_process_tells_its_parent_and_its_seconds(tmp_path: Path) -> None:
    numbers = "S 41 41 41 0 -1 4194560 9 9 9 9 100 20 3 4 20 0 1 0 5 6"
    (tmp_path / "stat").write_text(f"42 (a (b) c) {numbers}")
    stat = live._stat(tmp_path)
    assert (stat[1], stat[11:15]) == (41, (100, 20, 3, 4))
    assert live._stat(tmp_path / "gone") == ()
