"""`python -m tests.kills [--kills N] [--seed S] [--each K]`: lives of a control plane under random kills and freezes.

A life that breaks a promise tells its story, and the next one begins.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter

from tests.integration.faults.house import Postgres
from tests.kills.life import Life
from tests.scratch import clear_after_us, make_own


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="faults in all; default: 100")
    parser.add_argument("--each", type=int, default=40, help="faults of one life; default: 40")
    parser.add_argument("--seed", type=int, default=1, help="of the first life; default: 1")
    asked = parser.parse_args()
    faults: Counter[str] = Counter()
    number, broken, began_s = asked.seed, [], time.monotonic()
    clear_after_us(make_own())
    postgres = Postgres()
    try:
        while faults.total() < asked.kills:
            life = Life(postgres, number)
            try:
                life.live(min(asked.each, asked.kills - faults.total()))
            except AssertionError as error:
                broken.append(number)
                sys.stdout.write(f"{error}\n")
            finally:
                life.end()
            faults += life.faults
            sys.stdout.write(f"life {number}: {faults.total()} faults, {time.monotonic() - began_s:.0f} s\n")
            sys.stdout.flush()
            number += 1
    finally:
        postgres.end()
    counted = ", ".join(f"{count} {name}" for name, count in faults.most_common())
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in spent)
    lives = f"{faults.total()} faults in {number - asked.seed} lives, broken: {broken or 'none'}"
    sys.stdout.write(f"{lives}; {counted}; {cpu_s:.0f} CPU s\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
