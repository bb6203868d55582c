"""Morak's printed numbers and knees, what must hold of its controller whatever it meets, and its evaluation.

Morak prints GoogLeNet's throughput and latency for the same state, and one time cannot meet both: 64 inputs in 38.4 ms
are 1,667 a second, not 1,600 (+4.2 %), four times 16 in 35.2 ms are 1,818, not 1,860 (-2.2 %). Our reading, which the
paper does not state: the cycle of batches holds host's work that is in no answer's time, and an answer's time holds a
copy that is in no cycle (`answer_shift_ms`). Its two numbers were solved from the two latencies, so that these are met
says nothing about the reading. The paper locks no clock there: the highest is taken. The knees are those of a batch of
one; the paper does not say which.

Properties are checked on random devices, readings and limits drawn from a seed, each with what was seen and what went
wrong; a check that found too little to check says so and fails.

Throughput, limits and energy are seen on simulated boards and in simulated worlds. Baselines are counted as the paper
counts them, with everything they serve, also while they break a limit; the notes tell as well what was served within
both limits. Where a stated figure is not reached, ablations say what each knob is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from lab.claims.claim import ClaimEvidence, ClaimStatus, Effort, figure, found, listed, mean_metric, outcomes
from lab.claims.morak.boards import (
    BASELINES,
    NETWORKS,
    PERIODS,
    BoardCut,
    ContenderTally,
    Contest,
    GovernedCourse,
    GovernedDevice,
    GovernedLimits,
    GovernedPart,
    Period,
    board,
    gain_pct,
    govern,
    knee_pct,
    mean_tally,
)
from lab.world.truth import answer_shift_ms
from solvers.control.controllers import controller
from solvers.control.governor import TABLE, Ends, wish_of
from solvers.control.records import (
    DeviceEnvelope,
    DeviceReading,
    GovernorSettings,
    ReplicaEnvelope,
    ReplicaReading,
    ReplicaWish,
    Setting,
    Zone,
)
from solvers.sim.truth.truth import GpuTruth, Resident, board_power_w, execution_ms

KNEES_STATED_PCT = {"mobilenet": 20, "googlenet": 30, "resnet101": 30}
DRAWN_FROM = ("googlenet", "mobilenet", "resnet101", "resnet50", "vgg19", "inception-v3")
READINGS = 40
SETTLED_AFTER = 240
STEADY = 60
BACK_WITHIN = 20
CALIBRATED_PCT = 1.0


@dataclass(slots=True)
class PropertiesSeen:
    checked: int = 0
    broken: int = 0
    first: str = ""

    def note(self, held: bool, what: str) -> None:
        self.checked += 1
        self.broken += not held
        if not held and not self.first:
            self.first = what


def table_is_total() -> PropertiesSeen:
    """Every state with every combination of ends has one wish, which can be granted and helps the worse limit."""
    seen = PropertiesSeen()
    for power, latency in product(Zone, Zone):
        for ends in product((False, True), repeat=4):
            reached = Ends(batch_lowest=ends[0], batch_highest=ends[1], clock_lowest=ends[2], clock_highest=ends[3])
            wish = wish_of(power, latency, reached)
            grows = wish in (ReplicaWish.BATCH_UP, ReplicaWish.CLOCK_UP)
            sound = not reached.blocks(wish) and not (power is Zone.HIGH and grows)
            seen.note(
                sound and not (latency is Zone.HIGH and wish is ReplicaWish.BATCH_UP), f"{power} {latency} {ends}"
            )
    seen.note(set(TABLE) == set(product(Zone, Zone)), "rows")
    return seen


def periods_are_sound(gpu: GpuTruth, examples: int) -> PropertiesSeen:
    """Under random readings: a clock of the table, at most one change of it, a wish at every third bad period."""
    seen, loop, drawn = PropertiesSeen(), controller("morak"), np.random.default_rng(3)
    for _ in range(examples):
        envelope = _envelope(gpu, drawn)
        state = loop.first(envelope, Setting(batches=(1,) * len(envelope.replicas), clock_mhz_sm=600))
        bad = 0
        for _ in range(READINGS):
            decision = loop.step(envelope, state, _reading(envelope, drawn))
            new, old = decision.state.setting.clock_mhz_sm, state.setting.clock_mhz_sm
            moved = {ReplicaWish.HOLD: new == old, ReplicaWish.CLOCK_UP: new > old, ReplicaWish.CLOCK_DOWN: new < old}[
                decision.clock
            ]
            bad = bad + 1 if decision.bad else 0
            asked = decision.repartition is not None
            seen.note(new in envelope.clocks_mhz_sm and moved, f"clock {old} to {new} as {decision.clock}")
            seen.note(asked == (bad == GovernorSettings().bad_periods_max), f"asked {asked} after {bad} bad periods")
            bad, state = 0 if asked else bad, decision.state
    return seen


def _envelope(gpu: GpuTruth, drawn: np.random.Generator) -> DeviceEnvelope:
    count = int(drawn.integers(1, 5))
    first = int(drawn.integers(0, len(gpu.clocks_mhz_sm) - 2))
    return DeviceEnvelope(
        uuid="GPU-0",
        power_w_cap=float(drawn.uniform(60.0, gpu.tdp_w)),
        clocks_mhz_sm=gpu.clocks_mhz_sm[first:],
        replicas=tuple(
            ReplicaEnvelope(
                replica=f"r{position}",
                batch_min=1,
                batch_max=int(drawn.integers(1, 129)),
                latency_ms_limit=float(drawn.uniform(20.0, 300.0)),
                share_pct_sm=100 // count,
            )
            for position in range(count)
        ),
    )


def _reading(envelope: DeviceEnvelope, drawn: np.random.Generator) -> DeviceReading:
    cap_w = envelope.power_w_cap or 0.0
    return DeviceReading(
        power_w=float(cap_w * drawn.uniform(0.6, 1.15)),
        replicas=tuple(
            ReplicaReading(replica=each.replica, latency_ms=float((each.latency_ms_limit or 0.0) * part))
            for each, part in zip(envelope.replicas, drawn.uniform(0.5, 1.2, len(envelope.replicas)), strict=True)
        ),
    )


def steady_and_back(gpu: GpuTruth, examples: int) -> tuple[PropertiesSeen, PropertiesSeen, int]:
    """From batch 1 at 600 MHz under constant load: whether it settles inside both limits and stays; whether it is back
    inside within so many periods after both limits changed; and the longest such way. Only where the smallest batches
    at the lowest clock leave room below both limits.
    """
    steady, back, longest, drawn = PropertiesSeen(), PropertiesSeen(), 0, np.random.default_rng(4)
    loop = controller("morak")
    while steady.checked < examples:
        before = _device(gpu, drawn)
        after = replace(before, limits=_limits(drawn))
        if not (_can_keep(before) and _can_keep(after)):
            continue
        start = Setting(batches=(1,) * len(before.parts), clock_mhz_sm=600)
        settled = govern(before, loop, start, _quiet(SETTLED_AFTER + STEADY))
        last = settled.periods[-STEADY:]
        still = len({period.setting for period in last}) == 1
        steady.note(still and all(period.keeps(before.limits) for period in last), f"{before.parts} {before.limits}")
        way = govern(after, loop, settled.state, _quiet(BACK_WITHIN + 1)).periods
        taken = next((at for at, period in enumerate(way) if period.keeps(after.limits)), BACK_WITHIN + 1)
        back.note(taken <= BACK_WITHIN, f"{before.parts} {before.limits} to {after.limits}")
        longest = max(longest, taken)
    return steady, back, longest


def _device(gpu: GpuTruth, drawn: np.random.Generator) -> GovernedDevice:
    count = int(drawn.integers(1, 5))
    names = drawn.choice(len(DRAWN_FROM), count)
    parts = tuple(GovernedPart(model=DRAWN_FROM[name], share_pct_sm=100 // count, batch_max=64) for name in names)
    return GovernedDevice(gpu=gpu, parts=parts, limits=_limits(drawn), clocks_mhz_sm=gpu.clocks_mhz_sm)


def _limits(drawn: np.random.Generator) -> GovernedLimits:
    return GovernedLimits(power_w_cap=float(drawn.uniform(100.0, 220.0)), latency_ms=float(drawn.uniform(50.0, 300.0)))


def _quiet(periods: int) -> GovernedCourse:
    return GovernedCourse(periods=periods, seed=0, latency_noise=0.0, power_noise=0.0)


def _can_keep(device: GovernedDevice) -> bool:
    lowest = Setting(batches=(1,) * len(device.parts), clock_mhz_sm=device.clocks_mhz_sm[0])
    least: Period = govern(device, controller("morak"), lowest, _quiet(1)).periods[0]
    limits = GovernedLimits(power_w_cap=0.95 * device.limits.power_w_cap, latency_ms=0.9 * device.limits.latency_ms)
    return least.keeps(limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Triple:
    """A state of a GPU: throughput of all its replicas, latency of one, watts of the board; ours, then printed."""

    replicas: int
    share_pct_sm: int
    batch: int
    throughput_rps: float
    latency_ms: float
    power_w: float
    throughput_rps_stated: float
    latency_ms_stated: float
    power_w_stated: float


def _triple(gpu: GpuTruth, replicas: int, batch: int, stated: tuple[float, float, float]) -> Triple:
    one = Resident(model="googlenet", share_pct_sm=100 // replicas, batch=batch)
    clock = gpu.clock_mhz_sm_max
    others = [one] * (replicas - 1)
    cycle_ms = execution_ms(gpu, one, clock, others)
    return Triple(
        replicas=replicas,
        share_pct_sm=one.share_pct_sm,
        batch=batch,
        throughput_rps=1000.0 * replicas * batch / cycle_ms,
        latency_ms=cycle_ms + answer_shift_ms(gpu, one, others),
        power_w=board_power_w(gpu, [one] * replicas, clock, gpu.tdp_w),
        throughput_rps_stated=stated[0],
        latency_ms_stated=stated[1],
        power_w_stated=stated[2],
    )


def morak_triples() -> tuple[Triple, Triple]:
    """GoogLeNet on an RTX 2080 Ti: alone on the whole of it, and as four on a quarter each."""
    gpu = board()
    return _triple(gpu, 1, 64, (1600.0, 38.4, 152.0)), _triple(gpu, 4, 16, (1860.0, 35.2, 156.0))


def knees_2080ti() -> dict[str, int]:
    return {model: knee_pct(board(), model) for model in KNEES_STATED_PCT}


def triples(_effort: Effort) -> ClaimEvidence:
    alone, shared = morak_triples()
    changes = [
        gain_pct(getattr(shared, field), getattr(alone, field))
        for field in ("throughput_rps_stated", "latency_ms_stated", "power_w_stated")
    ]
    exact = [round(change, digits) for change, digits in zip(changes, (2, 2, 1), strict=True)] == [16.25, -8.33, 2.6]
    pairs = [
        (each.throughput_rps, each.throughput_rps_stated, each.power_w, each.power_w_stated) for each in (alone, shared)
    ]
    off = [max(abs(gain_pct(rate, said)), abs(gain_pct(watts, cap))) for rate, said, watts, cap in pairs]
    slow = [gain_pct(each.latency_ms, each.latency_ms_stated) for each in (alone, shared)]
    printed = [
        gain_pct(1000.0 * each.replicas * each.batch / each.latency_ms_stated, each.throughput_rps_stated)
        for each in (alone, shared)
    ]
    within = max(*off, *map(abs, slow)) <= CALIBRATED_PCT
    return ClaimEvidence(
        measured=(
            f"throughput {alone.throughput_rps:.0f} and {shared.throughput_rps:.0f}/s, power {alone.power_w:.1f} and "
            f"{shared.power_w:.1f} W (at most {max(off):.2f} % off), latency {alone.latency_ms:.1f} and "
            f"{shared.latency_ms:.1f} ms ({slow[0]:+.1f}, {slow[1]:+.1f} %); changes recomputed: {exact}"
        ),
        status=ClaimStatus.FAIL if not exact else ClaimStatus.PASS if within else ClaimStatus.NOT_REPRODUCED,
        note=(
            "six numbers are printed and six parameters were solved from them: this is calibration and predicts "
            f"nothing. A batch in the printed latency is not the printed throughput ({printed[0]:+.1f} and "
            f"{printed[1]:+.1f} %); our reading, which the paper does not state: copies of inputs are in an answer's "
            "time and not in the cycle, the host's work between batches the other way round"
        ),
    )


def knees(_effort: Effort) -> ClaimEvidence:
    seen = knees_2080ti()
    return ClaimEvidence(
        measured=", ".join(f"{model} {share_pct} %" for model, share_pct in seen.items()),
        status=ClaimStatus.PASS if seen == KNEES_STATED_PCT else ClaimStatus.FAIL,
        note="on curves of a batch of one; the paper does not say which batch its figure shows",
    )


def controller_keeps_rules(effort: Effort) -> ClaimEvidence:
    table, periods = table_is_total(), periods_are_sound(board(), effort.examples)
    broken = table.broken + periods.broken
    measured = f"{table.checked} states with ends, {periods.checked} checks of periods, {broken} broken"
    return found(measured, [each.first for each in (table, periods) if each.broken])


def settles(effort: Effort) -> ClaimEvidence:
    steady, back, longest = steady_and_back(board(), effort.examples)
    measured = (
        f"{steady.checked - steady.broken} of {steady.checked} settle inside both limits and stay, "
        f"{back.checked - back.broken} are back within 20 periods after a step (longest {longest})"
    )
    return found(measured, [each.first for each in (steady, back) if each.broken])


THROUGHPUT, ENERGY = "morak-150w-100ms", "morak-150w-300ms"
CAPS_AND_LIMITS = (THROUGHPUT, ENERGY, "morak-110w-100ms", "morak-200w-100ms", "morak-150w-50ms")
UNPARTITIONED = "whole_gpu@morak"
"""Morak's controller on whole GPUs."""


def in_worlds(scenario: str, metric: str, effort: Effort, contenders: Sequence[str] = ()) -> dict[str, float]:
    """Means over seeds of Morak, of its baselines and of further contenders."""
    runs = outcomes(scenario, ("morak", *BASELINES, *contenders), effort)
    return {name: mean_metric(some, metric) for name, some in runs.items()}


GAINS_PCT = {"clipper_l": 130.9, "clipper_p": 110.3, "dfs": 67.7, "batchdvfs": 70.5}
"""The paper gives four figures and no names; they are read in the order in which it introduces the baselines."""
SAVED_PCT_LEAST, SAVED_PCT_MOST = 22.2, 50.2
KEPT_PART = 0.99
CAPS_W = tuple(range(110, 201, 10))
LIMITS_MS = tuple(range(50, 301, 50))
PARTS_OF_LIMITS = (0.8, 0.9, 0.95)
"""What alpha and beta are tried at: the paper states neither."""
SWEEP_PERIODS = 240
PERCENT = "{:+.1f} %"
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
        f"{mine.total_rps:.0f} requests/s, over {listed(gains, PERCENT)}; "
        f"counting what is served within both limits alone: {listed(kept, PERCENT)}. "
        f"{_ablations(ours, mine, effort)}. "
        "The paper's own triples bound what sharing adds on GoogLeNet at 16.25 % for 2.6 % more power, where DFS "
        "already runs it at batch 64 within 2 W of this cap; of the other networks it prints no shared state: "
        "the truth's are estimates"
    )
    measured = f"{world['morak']:.0f} requests/s in the world; over {listed(in_world, PERCENT)}"
    return figure(measured, reached=reached, note=note)


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
        for name, theirs in _baselines(limits, effort, SWEEP_PERIODS).items():
            hot[name], late[name] = max(hot[name], theirs.hot_part), max(late[name], theirs.late_part)
    every = [in_worlds(scenario, "power_over_cap_pct", effort) for scenario in CAPS_AND_LIMITS]
    over = {name: max(found[name] for found in every) for name in every[0]}
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
            f"boards alone {listed(found, PERCENT)}"
        ),
        reached=reached,
        note=(
            "boards cut for copies of one network, as the paper's one bar per network; "
            f"boards shared by three networks, energy by share: {listed(saved[BoardCut.MIXED], PERCENT)}; "
            f"without partitioning: {listed(saved[BoardCut.WHOLE], PERCENT)}. "
            "The paper's own triples give 11.7 % for GoogLeNet (0.0950 to 0.0839 J)"
        ),
    )
