"""`python -m benchmarks.calibrate_truth [--fit]`: errors of the committed coefficients, source by source.

Owns the order. Reads the sources from the folder that HEADROOM_DATA names; those that may not be redistributed leave
nothing but coefficients here. `--fit` also makes fits again.
"""

import os
import sys
from pathlib import Path

from benchmarks.calibrate_truth import clocks, igniter, printed, slices, speeds, training


def main() -> None:
    """Print all of it."""
    data = Path(os.environ.get("HEADROOM_DATA", ""))
    if not (data / "igniter-v100").is_dir():
        sys.exit("HEADROOM_DATA does not name a folder with igniter-v100")
    fitting = "--fit" in sys.argv[1:]
    for source in (igniter, slices, training, clocks, speeds, printed):
        print(f"-- {source.__name__.rsplit('.', 1)[-1]}")
        source.report(data, fitting)


if __name__ == "__main__":
    main()
