"""How long one decision of InSS takes: batches by bisection and the trained actor, eight networks on four GPUs.

Owns the table of CPU times and the promise they are held against: batches and actor together within 5 ms. The picture
is one that a running world put to the planner; curves of the profile are fitted before, as profiles stay the same from
cycle to cycle. `python -m benchmarks.inss_decision [scenario]`.
"""

from __future__ import annotations

import argparse
import sys

from lab.claims.inss.worlds import picture, times

PROMISED_MS = 5.0


def main() -> int:
    """Print the table; 1 when the promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inss_decision", description=__doc__)
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="of the arena's worlds")
    seen = times(picture(*parser.parse_args().scenario[:1]))
    together = seen.batches + seen.actor
    print(f"{seen.models} networks on {seen.gpus} GPUs, CPU ms, the quickest of several")
    rows = (("batches", seen.batches), ("actor", seen.actor), ("together", together), ("knapsack", seen.programme))
    for name, took in rows:
        print(f"{name:10} {took:8.2f}")
    print(f"promised: batches and actor together in {PROMISED_MS:g} ms")
    return int(together > PROMISED_MS)


if __name__ == "__main__":
    sys.exit(main())
