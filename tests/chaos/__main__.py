"""Seeded histories of the shell: `python -m tests.chaos [--seeds A-B]`. One that breaks a promise tells its story.

Whoever interrupts it is told how far it came. With `--mutants`, promises are taken out of the product one at a time,
and it tells after how many histories each is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.chaos.life import Lived, Stage, live_all, missed_after, stage, take_little
from tests.chaos.mutants import MUTANTS, planted
from tests.integration.postgres import embedded_binaries, running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0-99", metavar="A-B", help="which histories; default: 0-99")
    parser.add_argument("--mutants", action="store_true", help="take promises out and see whether that is told")
    parser.add_argument("--processes", type=int, default=1, help="among how many they are shared out")
    asked = parser.parse_args()
    take_little()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if asked.mutants:
        with running(embedded_binaries()) as server:
            return _mutants(stage(server), seeds)
    parts = [seeds[place :: asked.processes] for place in range(asked.processes)]
    if asked.processes == 1:
        return _told([live_all(seeds)])
    with ProcessPoolExecutor(asked.processes, get_context("spawn"), take_little) as pool:
        return _told(list(pool.map(live_all, parts, range(asked.processes))))


def _told(parts: Sequence[Lived]) -> int:
    faults = sum((part.faults for part in parts), Counter[str]())
    broken = sorted(seed for part in parts for seed in part.broken)
    counted = ", ".join(f"{count} {name}" for name, count in faults.most_common())
    lived, spent_s = sum(part.histories for part in parts), sum(part.spent_s for part in parts)
    sys.stdout.write(f"{lived} histories, {len(broken)} broken {broken or ''}; {counted}; {spent_s:.0f} CPU s\n")
    return 1 if broken else 0


def _mutants(ready: Stage, seeds: range) -> int:
    unseen = 0
    for mutant in MUTANTS:
        with planted(mutant):
            number = missed_after(ready, seeds)
        unseen += number is None
        sys.stdout.write(f"{mutant.name}: {'not missed' if number is None else f'missed in history {number}'}\n")
        sys.stdout.flush()
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
