"""Runs on a Ray cluster of this machine's own: the same results as here, to the last byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROBE = """
import sys
from pathlib import Path
from lab.arena.workers import run_on_ray
from lab.arena.running import RunEnded
from lab.arena.store import ResultFolder
from lab.arena.workers import run_here
from tests.unit.lab.arena.fake import scenario, tasks

# Spawned processes import this module again: they must not begin anew.
if __name__ == "__main__":
    base = Path(sys.argv[1])
    wanted = tasks([scenario(base, "one", fails="greedy"), scenario(base, "two")], ["hetsev", "k8s_hpa", "greedy"])
    for name, engine in (("here", run_here), ("ray", run_on_ray)):
        folder = ResultFolder(base / name)
        folder.want(wanted)
        engine(wanted, 2, lambda event: folder.put(event.finished) if isinstance(event, RunEnded) else None)
        folder.write_tables()
"""


@pytest.mark.integration
def test_ray_gives_the_same_files(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    # A process of its own: Ray leaves threads and changes signal handlers.
    environment = {
        "PYTHONPATH": str(ROOT),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, str(probe), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names = {path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*") if path.is_file()}
    results = {name for name in names if name.parts[0] not in ("times", "failures")}
    assert len(results) == 12 + 5
    for name in results:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name
