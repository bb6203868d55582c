"""`python -m tests.fuzz [--inputs N] [--seed S] [--only NAME]`: feed every reader; what breaks one is kept.

Tells inputs, defects, the processor time of the slowest input of each, and how much memory the process grew by.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import sys
import time
from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).with_name("corpus")
SLOW_S = 4.0
"""Of a processor, for an input of 64 KiB at most: what takes longer hangs on a larger one."""


def defect_of(target: Target, data: bytes) -> str:
    """What a reader raises that is no answer; empty where all is well."""
    try:
        target.read(data)
    except target.answers:
        return ""
    except Exception as error:  # noqa: BLE001 - any other is what is looked for
        return f"{type(error).__name__}: {error}"
    return ""


def keep(target: Target, data: bytes) -> Path:
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
    file.write_bytes(data)
    return file


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader; default: 20000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="readers whose names hold this")
    asked = parser.parse_args()
    defects = 0
    for target in (target for target in TARGETS if asked.only in target.name):
        stream = random.Random(f"{asked.seed} {target.name}")
        seen: set[str] = set()
        slowest_s, before_kib, began_s = 0.0, _rss_kib(), time.process_time()
        for _ in range(asked.inputs):
            data = mutated(target.seeds, stream)
            at_s = time.process_time()
            defect = defect_of(target, data)
            spent_s = time.process_time() - at_s
            slowest_s = max(slowest_s, spent_s)
            if spent_s > SLOW_S:
                defect = defect or "it takes too long"
            if defect and defect[:60] not in seen:
                seen.add(defect[:60])
                sys.stdout.write(f"  {target.name}: {defect[:200]} ({keep(target, data).name})\n")
        defects += len(seen)
        sys.stdout.write(
            f"{target.name:15} {asked.inputs} inputs, {len(seen)} defects, slowest {1000 * slowest_s:.0f} ms, "
            f"{(_rss_kib() - before_kib) / 1024:.0f} MiB more, {time.process_time() - began_s:.0f} CPU s\n"
        )
        sys.stdout.flush()
    return 1 if defects else 0


def _rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
