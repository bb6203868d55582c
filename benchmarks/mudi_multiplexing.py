"""What a job that comes costs Mudi, on 12 and on 1,000 GPUs: the decision, and the two ways of making it before.

A job comes to a fleet at work, with one and a half jobs on every GPU where the scenario has as many. `decision`: its
device, the whole tuner for the service there, and the split of what is left. `scored singly`: choosing alone, with
every device's slope worked out by itself. `whole plan`: the plan of all that the cycle makes of it.
Run: `python -m benchmarks.mudi_multiplexing [--scenarios mudi-small,mudi-large]`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from lab.claims.mudi.worlds import Deciding, deciding

LIMITS_MS = {12: 18.0, 1000: 30.0}
EVALUATIONS_MAX = 25


def told(found: Deciding) -> str:
    """One line."""
    decisions = np.array(found.decisions_ms)
    return (
        f"{found.devices:5d} GPUs, {found.jobs:5d} jobs: "
        f"decision {decisions.mean():7.3f} ms, worst {decisions.max():7.3f} ms; "
        f"scored singly {found.scored_singly_ms:8.3f} ms ({found.scored_singly_ms / decisions.mean():.1f} decisions); "
        f"whole plan {found.plan_ms:8.1f} ms ({found.plan_ms / decisions.mean():.0f} decisions); "
        f"at most {found.evaluations_most} batches tried"
    )


def main() -> int:
    """Fails where a decision takes longer than the paper's for that fleet, or a tuning tries too many batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", default="mudi-small,mudi-large")
    late = 0
    for scenario in parser.parse_args().scenarios.split(","):
        found = deciding(scenario)
        print(told(found), flush=True)
        limit_ms = LIMITS_MS.get(found.devices)
        late += limit_ms is not None and max(found.decisions_ms) > limit_ms
        late += found.evaluations_most > EVALUATIONS_MAX
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
