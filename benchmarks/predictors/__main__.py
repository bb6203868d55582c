"""Every predictor on every suitable public data set: `python -m benchmarks.predictors [--quick | --full]`.

By default it takes some minutes and prints the tables; `--full` is what `docs/lab/models.md` is written from. Needs the
folder of public measurements in HEADROOM_DATA. Runs on one core.

    python -m benchmarks.predictors --full --write                      everything anew, into the page and the plots
    python -m benchmarks.predictors --full --write --predictors mudi    only this one, in place of its stored numbers
    python -m benchmarks.predictors --report                            page and plots again from the stored numbers
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictors", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a minute: little of everything")
    size.add_argument("--full", action="store_true", help="everything")
    parser.add_argument("--predictors", default="", help="only these suites, separated by commas")
    parser.add_argument("--datasets", default="", help="only these data sets, separated by commas")
    parser.add_argument("--parts", default="solo,groups,speed,claims", help="only these parts")
    parser.add_argument("--write", action="store_true", help="store the numbers, write the page and the plots")
    parser.add_argument("--report", action="store_true", help="run nothing, write page and plots from stored numbers")
    return parser.parse_args()


def main() -> int:
    """Run what is asked for and show or store it."""
    if any(os.environ.get(name) != value for name, value in ONE_CORE.items()):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.predictors", *sys.argv[1:]], os.environ | ONE_CORE)
    from benchmarks.predictors import plots, results, tables
    from benchmarks.predictors.run import run
    from benchmarks.sources.rows import SourceMissingError

    asked = arguments()
    began = time.perf_counter()
    found = results.load() if asked.write or asked.report else results.Results()
    if not asked.report:
        try:
            run(asked, found)
        except SourceMissingError as missing:
            print(missing, file=sys.stderr)
            return 2
    if not (asked.write or asked.report):
        print(tables.whole_part(found), tables.document_part(found), sep="\n\n")
        print(f"\n{time.perf_counter() - began:.0f} s")
        return 0
    results.save(found)
    tables.write_document(found)
    for path in plots.draw(found):
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
