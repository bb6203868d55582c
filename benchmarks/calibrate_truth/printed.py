"""GoogLeNet on an RTX 2080 Ti: the coefficients that give the throughput and power that Morak's paper prints.

Owns the solution behind one row of `solvers.sim.catalogue_pairs`; two states give two times and two powers, hence two
coefficients of time and two of power. The others of the row are estimates that leave the printed knee where it is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from solvers.sim.catalogue import GPUS
from solvers.sim.catalogue_pairs import model_on
from solvers.sim.fixtures import Triple, knees_2080ti, morak_triples
from solvers.sim.truth import POWER_OF_MEMORY, Resident, execution_ms, idle_power_w, wanted

TURING = GPUS["rtx-2080ti"]


def solved(triples: tuple[Triple, Triple]) -> tuple[np.ndarray, np.ndarray]:
    """io and work, then power at full work and the part of it that any work draws; from the committed ones onwards.

    Both laws are linear in what is solved for, given the slowdown by neighbours and the SMs in use.
    """
    model, clock = model_on(TURING, "googlenet"), TURING.clock_mhz_sm_max
    times, shapes, powers, watts = [], [], [], []
    for triple in triples:
        one = Resident(model="googlenet", share_pct_sm=triple.share_pct_sm, batch=triple.batch)
        alone_ms, slowed_ms = execution_ms(TURING, one, clock), triple.latency_ms
        running, filled = wanted(TURING, one, clock)
        io_ms = model.io_ms_per_input * triple.batch
        compute_ms = model.work_ms_sm_per_input * triple.batch / (filled * TURING.sm_count * TURING.sm_speed)
        wanted_ms = 1000.0 * triple.replicas * triple.batch / triple.throughput_rps_stated
        rest_ms = alone_ms - io_ms - compute_ms
        times.append(wanted_ms * alone_ms / slowed_ms - rest_ms)
        shapes.append((triple.batch, compute_ms / model.work_ms_sm_per_input))
        full_w = triple.replicas * filled * (TURING.tdp_w - TURING.idle_w - TURING.context_w)
        memory_ms = running * alone_ms - compute_ms
        working = (compute_ms + POWER_OF_MEMORY * memory_ms) / alone_ms
        powers.append((full_w * working, full_w * (1.0 - working)))
        watts.append(triple.power_w_stated - idle_power_w(TURING, [one]))
    both, floor = np.linalg.solve(np.array(powers), np.array(watts))
    return np.linalg.solve(np.array(shapes), np.array(times)), np.array([both, floor / both])


def report(data: Path, fitting: bool) -> None:
    """Print the committed states beside the printed ones, and when fitting the solution."""
    del data
    triples = morak_triples()
    for each in triples:
        print(
            f"{each.replicas} of {each.share_pct_sm} %: {each.throughput_rps:.0f}/s of {each.throughput_rps_stated:.0f}"
            f", {each.latency_ms:.1f} ms of {each.latency_ms_stated}, {each.power_w:.1f} W of {each.power_w_stated:.0f}"
        )
    print("knees:", ", ".join(f"{knee.model} {knee.share_pct_sm} %" for knee in knees_2080ti()))
    if fitting:
        (io, work), (intensity, floor) = solved(triples)
        print(f"io {io:.4f}, work {work:.2f}, power intensity {intensity:.4f}, floor {floor:.4f}")
