"""Morak's evaluation: throughput, limits and energy on simulated boards and in simulated worlds.

Baselines are counted as the paper counts them, with everything they serve, also while they break a limit; the notes
tell as well what was served within both limits. Where a stated figure is not reached, ablations say what each knob is
worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from lab.claims.claim import ClaimEvidence, Effort, figure
from lab.claims.morak.boards import (
    BASELINES,
    NETWORKS,
    PERIODS,
    BoardCut,
    ContenderTally,
    Contest,
    GovernedLimits,
    gain_pct,
    mean_tally,
)
from lab.claims.runs import mean_metric, outcomes
from solvers.control.records import GovernorSettings

THROUGHPUT, ENERGY = "morak-150w-100ms", "morak-150w-300ms"
CAPS_AND_LIMITS = (THROUGHPUT, ENERGY, "morak-110w-100ms", "morak-200w-100ms", "morak-150w-50ms")
UNPARTITIONED = "whole_gpu@morak"
"""Morak's controller on whole GPUs."""


def in_worlds(scenario: str, metric: str, effort: Effort, contenders: Sequence[str] = ()) -> dict[str, float]:
    """Means over seeds of Morak, of its baselines and of further contenders."""
    runs = outcomes(scenario, ("morak", *BASELINES, *contenders), effort)
    return {name: mean_metric(some, metric) for name, some in runs.items()}


def over_cap_pct(effort: Effort) -> dict[str, float]:
    """The worst of all scenarios: how much of the time of devices was above their caps, by contender."""
    every = [in_worlds(scenario, "power_over_cap_pct", effort) for scenario in CAPS_AND_LIMITS]
    return {name: max(found[name] for found in every) for name in every[0]}


GAINS_PCT = {"clipper_l": 130.9, "clipper_p": 110.3, "dfs": 67.7, "batchdvfs": 70.5}
"""The paper gives four figures and no names; they are read in the order in which it introduces the baselines."""
SAVED_PCT_LEAST, SAVED_PCT_MOST = 22.2, 50.2
KEPT_PART = 0.99
CAPS_W = tuple(range(110, 201, 10))
LIMITS_MS = tuple(range(50, 301, 50))
PARTS_OF_LIMITS = (0.8, 0.9, 0.95)
"""What alpha and beta are tried at: the paper states neither."""
SWEEP_PERIODS = 240
HOSTED = ("resnet50-tfs", "inception-v3-tfs", "ssd-resnet50-tfs")
"""Served by a stack that leaves the GPU idle for much of the time: a world in which sharing pays more."""


def _baselines(limits: GovernedLimits, effort: Effort, periods: int = PERIODS) -> dict[str, ContenderTally]:
    contests = {name: Contest(controller=name, cut=BoardCut.WHOLE, limits=limits) for name in BASELINES}
    return {name: mean_tally(contest, effort.seeds, periods) for name, contest in contests.items()}


def throughput(effort: Effort) -> ClaimEvidence:
    limits = GovernedLimits(power_w_cap=150.0, latency_ms=100.0)
    ours = Contest(controller="morak", cut=BoardCut.SAME, limits=limits)
    mine, others = mean_tally(ours, effort.seeds), _baselines(limits, effort)
    gains = {name: gain_pct(mine.total_rps, found.total_rps) for name, found in others.items()}
    kept = {name: gain_pct(mine.kept_rps, found.kept_rps) for name, found in others.items()}
    world = in_worlds(THROUGHPUT, "throughput_rps", effort, contenders=(UNPARTITIONED,))
    in_world = {name: gain_pct(world["morak"], number) for name, number in world.items() if name != "morak"}
    reached = all(min(gains[name], in_world[name]) >= wanted for name, wanted in GAINS_PCT.items())
    note = (
        f"{in_world[UNPARTITIONED]:+.1f} % over the same controller on whole GPUs; on boards alone "
        f"{mine.total_rps:.0f} requests/s, over {_listed(gains)}; "
        f"counting what is served within both limits alone: {_listed(kept)}. "
        f"{_ablations(ours, mine, effort)}. "
        "The paper's own triples bound what sharing adds on GoogLeNet at 16.25 % for 2.6 % more power, where DFS "
        "already runs it at batch 64 within 2 W of this cap; of the other networks it prints no shared state: "
        "the truth's are estimates"
    )
    measured = f"{world['morak']:.0f} requests/s in the world; over {_listed(in_world)}"
    return figure(measured, reached=reached, note=note)


def _listed(gains_pct: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {gain:+.1f} %" for name, gain in gains_pct.items())


def _ablations(ours: Contest, mine: ContenderTally, effort: Effort) -> str:
    """What is lost with each knob off, and what changes with what the paper leaves open or the truth estimates."""
    knobs = {
        "no partitioning": replace(ours, cut=BoardCut.WHOLE),
        "three networks on each board": replace(ours, cut=BoardCut.MIXED),
        "batch fixed at 8": replace(ours, batch_fixed=8),
        "clock fixed at its highest": replace(ours, clock_fixed=ours.gpu.clock_mhz_sm_max),
    }
    told = []
    for name, contest in knobs.items():
        found = mean_tally(contest, effort.seeds)
        told.append(f"{name} {gain_pct(found.total_rps, mine.total_rps):+.1f} % (kept {100 * found.kept_part:.0f} %)")
    gpu = ours.gpu
    truths = {
        "twice the memory bandwidth": replace(gpu, memory_bandwidth_gb_per_s=2.0 * gpu.memory_bandwidth_gb_per_s),
        "half the power of SMs": replace(gpu, tdp_w=0.5 * (gpu.tdp_w + gpu.idle_w + gpu.context_w)),
    }
    for name, truth in truths.items():
        told.append(f"{name}: {_against_best(replace(ours, gpu=truth), effort):+.1f} % over the best baseline")
    hosted = replace(ours, networks=HOSTED)
    told.append(f"networks that wait for their host: {_against_best(hosted, effort):+.1f} % over the best baseline")
    swept = [
        mean_tally(replace(ours, settings=GovernorSettings(power_low_part=alpha, latency_low_part=beta)), 1)
        for alpha, beta in product(PARTS_OF_LIMITS, PARTS_OF_LIMITS)
    ]
    changes = [gain_pct(found.total_rps, mine.total_rps) for found in swept]
    return (
        f"Ablations: {', '.join(told)}; alpha and beta in 0.8, 0.9, 0.95: {min(changes):+.1f} to "
        f"{max(changes):+.1f} %, kept in {100 * min(found.kept_part for found in swept):.1f} % of periods at least"
    )


def _against_best(ours: Contest, effort: Effort) -> float:
    mine = mean_tally(ours, effort.seeds)
    others = (mean_tally(replace(ours, controller=name, cut=BoardCut.WHOLE), effort.seeds) for name in BASELINES)
    return gain_pct(mine.total_rps, max(found.total_rps for found in others))


def limits_kept(effort: Effort) -> ClaimEvidence:
    worst, broken = 1.0, []
    hot: dict[str, float] = dict.fromkeys(BASELINES, 0.0)
    late: dict[str, float] = dict.fromkeys(BASELINES, 0.0)
    for cap_w, limit_ms in product(CAPS_W, LIMITS_MS):
        limits = GovernedLimits(power_w_cap=float(cap_w), latency_ms=float(limit_ms))
        for cut in (BoardCut.MIXED, BoardCut.SAME):
            mine = mean_tally(Contest(controller="morak", cut=cut, limits=limits), effort.seeds, SWEEP_PERIODS)
            worst = min(worst, mine.kept_part)
            if mine.kept_part < KEPT_PART:
                broken.append(f"{cut} {cap_w} W {limit_ms} ms {100 * mine.kept_part:.1f} %")
        for name, found in _baselines(limits, effort, SWEEP_PERIODS).items():
            hot[name], late[name] = max(hot[name], found.hot_part), max(late[name], found.late_part)
    over = over_cap_pct(effort)
    if over["morak"] > 100.0 * (1.0 - KEPT_PART):
        broken.append(f"in the world {over['morak']:.1f} % of the time above the cap")
    contrast = min(hot["clipper_l"], over["clipper_l"]) > 0.0 and all(
        late[name] > 0.0 for name in ("clipper_p", "dfs", "batchdvfs")
    )
    parts = ", ".join(f"{name} {100 * hot[name]:.0f}/{100 * late[name]:.0f}" for name in BASELINES)
    return figure(
        (
            f"Morak keeps both in {100 * worst:.1f} % of periods at worst of {len(CAPS_W) * len(LIMITS_MS)} settings; "
            f"baselines break power/latency in at worst (% of periods) {parts}; in the world, time above the cap at "
            f"worst: {', '.join(f'{name} {part:.1f} %' for name, part in over.items())}"
        ),
        reached=not broken and contrast,
        note="; ".join(broken),
    )


def energy(effort: Effort) -> ClaimEvidence:
    limits = GovernedLimits(power_w_cap=150.0, latency_ms=300.0)
    others = _baselines(limits, effort)
    best = {name: min(found.energy_j[name] for found in others.values()) for name in NETWORKS}
    saved = {}
    for cut in (BoardCut.SAME, BoardCut.MIXED, BoardCut.WHOLE):
        mine = mean_tally(Contest(controller="morak", cut=cut, limits=limits), effort.seeds)
        saved[cut] = {name: 100.0 * (1.0 - mine.energy_j[name] / best[name]) for name in NETWORKS}
    found = saved[BoardCut.SAME]
    world = in_worlds(ENERGY, "energy_j_per_request", effort)
    least = min(number for name, number in world.items() if name != "morak")
    in_world = 100.0 * (1.0 - world["morak"] / least)
    reached = (
        in_world >= SAVED_PCT_LEAST and min(found.values()) >= SAVED_PCT_LEAST and max(found.values()) >= SAVED_PCT_MOST
    )
    return figure(
        (
            f"saved per request against the best baseline: {in_world:+.1f} % in the world ({world['morak']:.4f} J); on "
            f"boards alone {_listed(found)}"
        ),
        reached=reached,
        note=(
            "boards cut for copies of one network, as the paper's one bar per network; "
            f"boards shared by three networks, energy by share: {_listed(saved[BoardCut.MIXED])}; "
            f"without partitioning: {_listed(saved[BoardCut.WHOLE])}. "
            "The paper's own triples give 11.7 % for GoogLeNet (0.0950 to 0.0839 J)"
        ),
    )
