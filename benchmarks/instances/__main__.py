"""Writes an instance as a snapshot file: `python -m benchmarks.instances family --gpus 1000 --services 200 --seed 1
--out S.json[.gz]`; names of other systems instead of `family` turn their inputs (in HEADROOM_DATA) into snapshots.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

from benchmarks.instances.family_snapshot import family_snapshot
from solvers.domain.codec import canonical_json
from solvers.domain.snapshot import Snapshot


def main() -> int:
    """Parse, make, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instances", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    family = kinds.add_parser("family", help="the synthetic family")
    family.add_argument("--gpus", type=int, default=1000)
    family.add_argument("--services", type=int, default=200)
    family.add_argument("--seed", type=int, default=1)
    family.set_defaults(make=lambda asked: family_snapshot(asked.gpus, asked.services, asked.seed))
    for kind in kinds.choices.values():
        kind.add_argument("--out", type=Path, required=True, help="the file to write; .gz compresses it")
    asked = parser.parse_args()
    snapshot: Snapshot = asked.make(asked)
    write(snapshot, asked.out)
    print(
        f"{asked.out}: {len(snapshot.devices)} devices, {len(snapshot.services)} services, {len(snapshot.tasks)} tasks"
    )
    return 0


def write(snapshot: Snapshot, path: Path) -> None:
    """As canonical JSON."""
    text = canonical_json(snapshot).encode()
    path.write_bytes(gzip.compress(text, compresslevel=5, mtime=0) if path.suffix == ".gz" else text)


if __name__ == "__main__":
    sys.exit(main())
