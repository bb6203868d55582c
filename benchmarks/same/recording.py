"""Records the cycles that `cycles` replays: `python -m benchmarks.same.recording`, in simulated worlds.

Cycles of planners that remember are first cycles, so that none needs a state.
"""

from __future__ import annotations

import gzip
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.same.cycles import ENDING, FOLDER
from lab.arena.contenders import PlannersOf, entry_of, tuned_entries
from lab.arena.loading import load
from lab.world.world import World
from solvers.cycle.record import CycleRecord
from solvers.domain.codec import canonical_json

SCENARIOS = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
POLICY = ("work_units=50",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One cycle of a scenario's run that is kept."""

    scenario: str
    contender: str
    cycle: int = 1

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return FOLDER / f"{self.scenario}-{self.contender}-{self.cycle}{ENDING}"

    @property
    def source(self) -> Path:
        """The scenario: one that comes with Headroom, or one that lies beside the records."""
        return next(path for folder in (FOLDER, SCENARIOS) if (path := folder / f"{self.scenario}.yaml").exists())


RECORDINGS = (
    Recording(scenario="first", contender="headroom"),
    Recording(scenario="first", contender="greedy", cycle=3),
    Recording(scenario="first", contender="hetsev", cycle=4),
    Recording(scenario="bursts-and-faults", contender="greedy", cycle=6),
    Recording(scenario="training-in-slack", contender="headroom"),
    Recording(scenario="training-in-slack", contender="mudi", cycle=3),
    Recording(scenario="power-budget", contender="headroom"),
    Recording(scenario="inss-small", contender="inss", cycle=2),
    Recording(scenario="pools", contender="headroom"),
)


def recorded(wanted: Recording) -> CycleRecord:
    """Run a scenario until that cycle is over."""
    bench = load(wanted.source, None)
    assert isinstance(bench, World)
    (entry,) = tuned_entries([entry_of(wanted.contender)], [], POLICY)
    run = bench.begin(entry.contender, 0, PlannersOf(()))
    found: list[CycleRecord] = []

    def watch() -> None:
        if run.journal.closed == wanted.cycle and run.journal.record is not None:
            found.append(run.journal.record)
            raise _EnoughError

    with suppress(_EnoughError):
        run.go(_unheard, watch)
    return found[0]


def _unheard(part: float) -> None:
    """Nobody waits for progress."""


class _EnoughError(Exception):
    """The cycle is there."""


def main() -> None:
    """Record all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for wanted in RECORDINGS:
        text = canonical_json(recorded(wanted))
        wanted.path.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{wanted.path.name}: {wanted.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
