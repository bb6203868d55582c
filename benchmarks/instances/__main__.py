"""Writes an instance as a snapshot file: `python -m benchmarks.instances family --gpus 1000 --services 200 --seed 1
--out S.json[.gz]`; names of other systems instead of `family` turn their inputs (in HEADROOM_DATA) into snapshots.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.instances.igniter import igniter_snapshot
from benchmarks.instances.inferno import inferno
from benchmarks.instances.melange import melange_slices
from benchmarks.instances.openb import openb_snapshot
from benchmarks.instances.parvagpu import Files, parvagpu_snapshot
from benchmarks.instances.rented import inferno_snapshot, melange_snapshot
from benchmarks.sources.rows import SourceMissingError, data_folder
from lab.benches.rolling.problems import InfernoCase
from solvers.domain.codec import canonical_json
from solvers.domain.snapshot import Snapshot


def main() -> int:
    """Parse, make, write."""
    asked = _parser().parse_args()
    try:
        snapshot = make(asked)
    except SourceMissingError as error:
        print(error, file=sys.stderr)
        return 2
    write(snapshot, asked.out)
    gpus = len(snapshot.devices) + sum(offer.count_max for offer in snapshot.offers)
    print(f"{asked.out}: {gpus} GPUs, {len(snapshot.services)} services")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instances", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    family = kinds.add_parser("family", help="the synthetic family")
    family.add_argument("--gpus", type=int, default=1000)
    family.add_argument("--services", type=int, default=200)
    sample = kinds.add_parser("inferno", help="Inferno's sample; replicas on one GPU only")
    sample.add_argument("--size", choices=("small", "large"), default="large")
    sample.add_argument("--copies", type=int, default=1)
    sample.add_argument("--capacity", type=float, default=1.0)
    sample.add_argument("--load", type=float, default=1.0)
    slices = kinds.add_parser("melange", help="buckets of requests on GPUs to rent")
    slices.add_argument("--buckets", type=int, default=36)
    slices.add_argument("--types", type=int, default=6)
    slices.add_argument("--slices", type=int, default=8)
    slices.add_argument("--rate", type=float, default=100.0)
    scenario = kinds.add_parser("parvagpu", help="a scenario of ParvaGPU on whole A100s")
    scenario.add_argument("--scenario", type=int, default=1)
    scenario.add_argument("--gpus", type=int, default=20)
    scenario.add_argument("--latency-file", type=Path)
    scenario.add_argument("--rate-file", type=Path)
    example = kinds.add_parser("igniter", help="iGniter's three services")
    example.add_argument("--gpus", type=int, default=3)
    pods = kinds.add_parser("openb", help="nodes and pods of the openb cluster")
    pods.add_argument("--pods", default="default", help="default, gpushare60, gpuspec33, multigpu50")
    for kind in kinds.choices.values():
        kind.add_argument("--seed", type=int, default=1)
        kind.add_argument("--out", type=Path, required=True, help="the file to write; .gz compresses it")
    return parser


def make(asked: argparse.Namespace) -> Snapshot:
    """The snapshot that was asked for."""
    data = data_folder()
    match asked.kind:
        case "family":
            return family_snapshot(asked.gpus, asked.services, asked.seed)
        case "inferno":
            case = InfernoCase(
                size=asked.size, copies=asked.copies, capacity=asked.capacity, load=asked.load, seed=asked.seed
            )
            return inferno_snapshot(inferno(data, case), f"inferno-{asked.size}-{asked.copies}")
        case "melange":
            problem = melange_slices(asked.buckets, asked.types, asked.slices, asked.rate, asked.seed)
            return melange_snapshot(problem, f"melange-{asked.buckets}x{asked.types}")
        case "parvagpu":
            both = asked.latency_file and asked.rate_file
            files = Files(latency=asked.latency_file, rate=asked.rate_file) if both else None
            return parvagpu_snapshot(data, asked.scenario, asked.gpus, files)
        case "igniter":
            return igniter_snapshot(data, asked.gpus)
        case _:
            return openb_snapshot(data, asked.pods)


def write(snapshot: Snapshot, path: Path) -> None:
    """As canonical JSON."""
    text = canonical_json(snapshot).encode()
    path.write_bytes(gzip.compress(text, compresslevel=5, mtime=0) if path.suffix == ".gz" else text)


if __name__ == "__main__":
    sys.exit(main())
