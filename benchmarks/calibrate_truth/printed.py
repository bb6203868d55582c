"""GoogLeNet on an RTX 2080 Ti: the coefficients that give what Morak's paper prints.

Owns the solution behind one row of `solvers.sim.truth.catalogue`; two states give two cycles, two powers and two
latencies, hence two coefficients of each: all that is printed is used up. The others of the row are estimates that
leave the printed knee where it is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from lab.claims.morak.rules import Triple, knees_2080ti, morak_triples
from solvers.sim.truth.catalogue import GPUS, model_on
from solvers.sim.truth.truth import POWER_OF_MEMORY, Resident, execution_ms, idle_power_w, parts

TURING = GPUS["rtx-2080ti"]


def solved(triples: tuple[Triple, Triple]) -> tuple[np.ndarray, np.ndarray]:
    """io and work, then power at full work and the part of it that any work draws; from the committed ones onwards."""
    model, clock = model_on(TURING, "googlenet"), TURING.clock_mhz_sm_max
    ones = [Resident(model="googlenet", share_pct_sm=each.share_pct_sm, batch=each.batch) for each in triples]
    neighbours = [
        execution_ms(TURING, one, clock, [one] * (each.replicas - 1)) / execution_ms(TURING, one, clock)
        for one, each in zip(ones, triples, strict=True)
    ]
    wanted_ms = np.array([_cycle_ms(each, each.throughput_rps_stated) for each in triples]) / neighbours

    def off(point: np.ndarray) -> np.ndarray:
        tried = replace(model, io_ms_per_input=point[0], work_ms_sm_per_input=point[1])
        return np.array([parts(TURING, tried, one, clock).total_ms for one in ones]) / wanted_ms - 1.0

    times = least_squares(off, [model.io_ms_per_input, model.work_ms_sm_per_input], xtol=1e-14, ftol=1e-14).x
    powers, watts = [], []
    for each, one in zip(triples, ones, strict=True):
        alone = parts(TURING, model, one, clock)
        full_w = each.replicas * (TURING.tdp_w - TURING.idle_w - TURING.context_w) / alone.total_ms
        working_ms = alone.core_ms + POWER_OF_MEMORY * (alone.used_ms - alone.core_ms)
        idle_ms = alone.used_ms / alone.device_ms * (alone.total_ms - alone.device_ms)
        powers.append((full_w * working_ms, full_w * idle_ms))
        watts.append(each.power_w_stated - idle_power_w(TURING, [one]))
    both, floor = np.linalg.solve(np.array(powers), np.array(watts))
    return times, np.array([both, floor / both])


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
