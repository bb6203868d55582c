"""GoogLeNet on an RTX 2080 Ti: the coefficients that give what Morak's paper prints.

Owns the solution behind one row of `solvers.sim.truth.catalogue`; two states give two cycles, two powers and two
latencies, hence two coefficients of each: all that is printed is used up. The others of the row are estimates that
leave the printed knee where it is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims.morak.rules import Triple, knees_2080ti, morak_triples
from solvers.sim.truth.catalogue import GPUS, model_on
from solvers.sim.truth.truth import POWER_OF_MEMORY, Resident, execution_ms, idle_power_w, wanted

TURING = GPUS["rtx-2080ti"]


def solved(triples: tuple[Triple, Triple]) -> tuple[np.ndarray, np.ndarray]:
    """io and work, then power at full work and the part of it that any work draws; from the committed ones onwards.

    Both laws are linear in what is solved for, given the slowdown by neighbours and the SMs in use.
    """
    model, clock = model_on(TURING, "googlenet"), TURING.clock_mhz_sm_max
    times, shapes, powers, watts = [], [], [], []
    for triple in triples:
        one = Resident(model="googlenet", share_pct_sm=triple.share_pct_sm, batch=triple.batch)
        alone_ms, slowed_ms = execution_ms(TURING, one, clock), _cycle_ms(triple, triple.throughput_rps)
        running, filled = wanted(TURING, one, clock)
        io_ms = model.io_ms_per_input * triple.batch
        compute_ms = model.work_ms_sm_per_input * triple.batch / (filled * TURING.sm_count * TURING.sm_speed)
        wanted_ms = _cycle_ms(triple, triple.throughput_rps_stated)
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


def shift_solved(triples: tuple[Triple, Triple]) -> np.ndarray:
    """Copy and gap of an input: copies of all replicas share a link, each replica has a gap of its own."""
    shapes = [(each.replicas * each.batch, -each.batch) for each in triples]
    shifts = [each.latency_ms_stated - _cycle_ms(each, each.throughput_rps_stated) for each in triples]
    return np.linalg.solve(np.array(shapes, dtype=float), np.array(shifts))


def _cycle_ms(triple: Triple, throughput_rps: float) -> float:
    return 1000.0 * triple.replicas * triple.batch / throughput_rps


def report(data: Path, fitting: bool) -> None:
    """Print the committed states beside the printed ones, and when fitting the solution."""
    del data
    triples = morak_triples()
    for each in triples:
        print(
            f"{each.replicas} of {each.share_pct_sm} %: {each.throughput_rps:.0f}/s of {each.throughput_rps_stated:.0f}"
            f", {each.latency_ms:.1f} ms of {each.latency_ms_stated}, {each.power_w:.1f} W of {each.power_w_stated:.0f}"
        )
    print("knees:", ", ".join(f"{model} {share_pct} %" for model, share_pct in knees_2080ti().items()))
    if fitting:
        (io, work), (intensity, floor) = solved(triples)
        copy, gap = shift_solved(triples)
        print(f"io {io:.4f}, work {work:.2f}, power intensity {intensity:.4f}, floor {floor:.4f}")
        print(f"copy {copy:.4f}, gap {gap:.4f}")
