"""Seeded histories of the shell: `python -m tests.chaos [--seeds A-B]`. One that breaks a promise tells its story.

Whoever interrupts it is told how far it came. With `--mutants`, promises are taken out of the product one at a time,
and it tells after how many histories each is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

from tests.chaos.life import Stage, life_of, missed_after, stage
from tests.chaos.mutants import MUTANTS, planted
from tests.integration.postgres import embedded_binaries, running


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0-99", metavar="A-B", help="which histories; default: 0-99")
    parser.add_argument("--mutants", action="store_true", help="take promises out and see whether that is told")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    with running(embedded_binaries()) as server:
        ready = stage(server)
        return _mutants(ready, seeds) if asked.mutants else _histories(ready, seeds)


def _histories(ready: Stage, seeds: range) -> int:
    faults: Counter[str] = Counter()
    broken, lived, began_s = [], 0, time.process_time()
    with contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            with life_of(ready, seed) as life:
                told = life.broken()
            lived += 1
            if told:
                broken.append(seed)
                sys.stdout.write(f"{told}\n")
                sys.stdout.flush()
            faults += life.faults
    counted = ", ".join(f"{count} {name}" for name, count in faults.most_common())
    spent_s = time.process_time() - began_s
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
