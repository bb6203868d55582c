"""`python -m benchmarks.calibrate_truth [--fit | --write | --surfaces]`: errors of the committed coefficients.

Owns the order. Reads the sources from the folder that HEADROOM_DATA names; those that may not be redistributed leave
nothing but coefficients here. `--fit` also makes fits again.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.calibrate_truth import (
    clocks,
    igniter,
    neighbours,
    own,
    printed,
    rapp,
    slices,
    speeds,
    studies,
    table,
    training,
)
from lab.world import replays


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrate_truth", description=__doc__)
    parser.add_argument("--surfaces", action="store_true", help="write what worlds replay, and no more")
    parser.add_argument("--write", action="store_true", help="write the table of errors, and no more")
    parser.add_argument("--fit", action="store_true", help="fit anew what is told")
    asked = parser.parse_args()
    data = Path(os.environ.get("HEADROOM_DATA", ""))
    if not (data / "igniter-v100").is_dir():
        sys.exit("HEADROOM_DATA does not name a folder with igniter-v100")
    rows = studies.rows_of(data)
    if asked.surfaces:
        replays.STORE.write_text(studies.stored_text(rows), encoding="utf-8")
        return
    if asked.write:
        table.write(data, rows)
        return
    for source in (rapp, igniter, slices, training, clocks, speeds, own, neighbours, printed):
        print(f"-- {source.__name__.rsplit('.', 1)[-1]}")
        source.report(data, asked.fit)


if __name__ == "__main__":
    main()
