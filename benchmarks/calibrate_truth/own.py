"""Times, slowdowns and power that this project measured itself on an H100 under MPS: what the laws make of them.

Nothing is fitted to them, so these errors are those of hardware that nobody's numbers have seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.calibrate_truth.studies import CAPTURED, OURS, TRAINING, headroom, rows_of
from benchmarks.sources.rows import H100
from lab.world.replays import CsvRows
from solvers.sim.truth.catalogue import GPUS, model_on
from solvers.sim.truth.truth import Resident, board_power_w, execution_ms, idle_power_w, parts

GPU = GPUS[H100]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Of one network beside another; either may train."""

    own: str
    other: str
    published: float
    modelled: float

    @property
    def serving(self) -> bool:
        return not self.own.startswith(TRAINING)

    @property
    def beside_training(self) -> bool:
        return self.other.startswith(TRAINING)


def _resident(network: str, share_pct: str, batch: str) -> Resident:
    name, training = network.removeprefix(TRAINING), network.startswith(TRAINING)
    model = name if training else CAPTURED[name]
    return Resident(model=model, share_pct_sm=int(share_pct), batch=int(batch), training=training)


def slowdowns(rows: CsvRows) -> list[Slowdown]:
    """Of medians; the last column tells what a law says of the same pair."""
    told, clock = rows(OURS, "beside.csv"), GPU.clock_mhz_sm_max
    alone = {(row["network"], row["share_pct"]): float(row["latency_ms_p50"]) for row in told if not row["beside"]}
    found = []
    for row in told:
        if not row["beside"]:
            continue
        mine = _resident(row["network"], row["share_pct"], row["batch"])
        theirs = _resident(row["beside"], row["beside_share_pct"], row["batch"])
        published = float(row["latency_ms_p50"]) / alone[row["network"], row["share_pct"]]
        modelled = execution_ms(GPU, mine, clock, (theirs,)) / execution_ms(GPU, mine, clock)
        found.append(Slowdown(row["network"], row["beside"], published, modelled))
    return found


@dataclass(frozen=True, slots=True)
class BoardPower:
    captured: bool
    published_w: float
    modelled_w: float


def power(rows: CsvRows) -> list[BoardPower]:
    """Of the board at the clock that it ran at, one worker executing without pause."""
    found = []
    for row in rows(OURS, "surface.csv"):
        captured = row["captured"] == "1"
        name = CAPTURED[row["network"]] if captured else row["network"]
        one = Resident(model=name, share_pct_sm=int(row["share_pct"]), batch=int(row["batch"]))
        watts = board_power_w(GPU, [one], int(row["clock_mhz"]), GPU.tdp_w)
        found.append(BoardPower(captured, float(row["power_w"]), watts))
    return found


def report(data: Path, fitting: bool) -> None:
    """Print errors by network; nothing is fitted."""
    del fitting
    rows = rows_of(data)
    ratios: dict[str, list[float]] = {}
    for (name, batch, part), published_ms in headroom(rows).items():
        one = Resident(model=name, share_pct_sm=min(100, int(np.ceil(100 * part - 1e-9))), batch=batch)
        law = parts(GPU, model_on(GPU, name), one, GPU.clock_mhz_sm_max).total_ms
        ratios.setdefault(name, []).append(law / published_ms)
    for name, each in ratios.items():
        print(f"{name:13} law / measured: median {np.median(each):.2f}, {min(each):.2f} to {max(each):.2f}")
    beside = slowdowns(rows)
    for serving, training in ((True, False), (True, True), (False, False), (False, True)):
        its = [each for each in beside if (each.serving, each.beside_training) == (serving, training)]
        published, modelled = np.array([(each.published, each.modelled) for each in its]).T
        print(
            f"{len(its)} slowdowns, {'serving' if serving else 'training'} beside "
            f"{'training' if training else 'serving'}: mean {published.mean():.3f} ({published.min():.3f} to "
            f"{published.max():.3f}), modelled {modelled.mean():.3f} ({modelled.min():.3f} to {modelled.max():.3f}); "
            f"mean error {np.abs(modelled - published).mean():.3f}"
        )
    watts = power(rows)
    off = [each.modelled_w / each.published_w - 1.0 for each in watts]
    print(f"{len(watts)} board powers: mean error {100 * np.mean(np.abs(off)):.1f} %, worst {100 * max(off):.1f} %")
    print(f"idle: {GPU.idle_w:.0f} W, {idle_power_w(GPU, [_resident('resnet50', '10', '1')]):.0f} W with a context")
