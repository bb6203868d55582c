"""How a GPU under MPS really behaves in the simulated world: time, power and memory of the replicas on one device.

Fake devices and the simulator obey it: pure functions over plain numbers, standard library only, because agents use it.
Nothing that plans may import it: planners know profiles and reports. Randomness is handed in as standard normal
numbers. It does not model L2 partitions, DRAM refresh, thermals or clock ramps. Calibration and its error:
`solvers.sim.truth.catalogue`. Two busy neighbours slow each other by a factor of 1.05 to 1.15 (training: more), on an
H100 by 1.2 to 1.3, on an H200 by 1.1 to 1.3; the 1,200 slowdowns that iGniter's authors measured lie between 1.01 and
1.23, and `benchmarks.calibrate_truth` shows a mean error of 0.032 beside 0.036 for always predicting their mean: right
in size, hardly right pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import add
from typing import overload

from solvers.sim.serving.serving import Served, serve
from solvers.sim.truth.catalogue import GpuTruth, ModelTruth, gpu_truth, key_of, model_on, model_truth, training_sms

# One door: agents may import this module and nothing else of the simulated world.
__all__ = ["GpuTruth", "Served", "gpu_truth", "serve"]

BANDWIDTH_REACHED = 0.8
"""Of the data sheet's bandwidth, what kernels reach."""
POWER_OF_MEMORY = 0.32
"""Watts of an SM that waits for DRAM, against one that computes."""
FULL_GPU, CROWDING = 1.19, 5.8
"""Overlapping shares: a GPU is full when kernels fill 1 / 1.19 of it all the time, and how sharp that edge is."""
OTHER_MODEL = 0.9
"""Of what a process wants, what meets a process of another network: their operators differ. An estimate."""
LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR = 0.0025
LATENCY_NOISE = 0.03
"""Standard deviation of one batch's execution time, relative."""
PROCESS_MIB = 560.0
"""Device memory every process takes before it loads anything: context, handles, workspaces. Tally's BERT leaves 1,030
MiB for it on an A100, gpulet's nine networks some 300 on GeForce cards: between the two.
"""
SEGMENT_MIB = 20.0
"""An allocator takes whole segments."""
TRAINING_SERIAL_PART = 0.08
TRAINING_SPREAD = 2.0
"""How much wider the wide kernels of training are than the middling, and those than the narrow."""
TRAINING_PRESSURE = 1.3
TRAINING_ON_GPU = 0.9
"""Part of an iteration in which a training job's kernels are on the GPU."""
PCIE_PART = 0.6
"""Of the nominal bandwidth, what copies of whole tensors reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One replica process on a device. `busy` is the part of its time it executes; training presses memory harder."""

    model: str
    share_pct_sm: int
    batch: int = 1
    busy: float = 1.0
    training: bool = False


def sm_count_of_share(gpu: GpuTruth, share_pct_sm: int) -> int:
    """SMs a share gives: rounded down to the granularity, at least one unit."""
    units = (share_pct_sm * gpu.sm_count) // (100 * gpu.sm_granularity)
    return max(1, units) * gpu.sm_granularity


@dataclass(frozen=True, slots=True)
class _BatchParts:
    """Where the time of one batch goes, without neighbours, milliseconds."""

    total_ms: float
    device_ms: float
    """The GPU's part of it; host and GPU work at once."""
    used_ms: float
    """Time in which the whole GPU would have done what the SMs in use did."""
    core_ms: float
    """Of that, what computes instead of waiting for DRAM."""
    traffic_gb: float

    @property
    def running(self) -> float:
        """Part of the time in which kernels run."""
        return min(1.0, self.device_ms / self.total_ms)


def part_of_gpu(gpu: GpuTruth, share_pct_sm: int) -> float:
    """Of the whole GPU's SMs, those that a share gives; a slice's share is a part of its GPU."""
    whole = gpu_truth(gpu.like or gpu.name) or gpu
    return sm_count_of_share(gpu, share_pct_sm) / whole.sm_count


def parts(gpu: GpuTruth, model: ModelTruth, resident: Resident, clock_mhz_sm: float) -> _BatchParts:
    """The host issues a batch's kernels class after class while the GPU executes those before: what waits for DRAM,
    then wide, middling and narrow kernels, each on the SMs that it can use.
    """
    batch, sms = resident.batch, sm_count_of_share(gpu, resident.share_pct_sm)
    drawn = min(1.0, sms / gpu.sm_count / gpu.bandwidth_part)
    traffic = model.traffic_gb_weights + model.traffic_gb_per_input * batch
    memory_ms = 1000.0 * traffic / (BANDWIDTH_REACHED * gpu.memory_bandwidth_gb_per_s * drawn)
    work_ms = model.work_ms_sm_per_input * batch * gpu.clock_mhz_sm_max / (3.0 * gpu.sm_speed * clock_mhz_sm)
    middle = model.sms_needed_first * batch
    wide, middle, narrow = min(sms, middle * model.spread), min(sms, middle), min(sms, middle / model.spread)
    classes_ms = (memory_ms, work_ms / wide, work_ms / middle, work_ms / narrow)
    issuing_ms = model.host_ms / (len(classes_ms) * gpu.host_speed)
    done_ms = issued_ms = 0.0
    for class_ms in classes_ms:
        done_ms = max(done_ms + class_ms, issued_ms + max(class_ms, issuing_ms))
        issued_ms += issuing_ms
    copied_ms = model.io_ms_per_input * batch * 16.0 / gpu.pcie_bandwidth_gb_per_s
    core_ms = 3.0 * work_ms / gpu.sm_count
    used_ms = core_ms + memory_ms * wide / gpu.sm_count
    by_law = _BatchParts(copied_ms + done_ms, sum(classes_ms), used_ms, core_ms, traffic)
    return by_law if gpu.replay is None else _replayed(gpu, model, resident, clock_mhz_sm, by_law)


def _replayed(
    gpu: GpuTruth, model: ModelTruth, resident: Resident, clock_mhz_sm: float, by_law: _BatchParts
) -> _BatchParts:
    """The same batch in the time that was measured; what of it the GPU works is what the law says."""
    surface = gpu.replay.times.get((gpu.like or gpu.name, key_of(model.name))) if gpu.replay else None
    if surface is None:
        return by_law
    at_highest = by_law
    if clock_mhz_sm < gpu.clock_mhz_sm_max:
        at_highest = parts(replace(gpu, replay=None), model, resident, gpu.clock_mhz_sm_max)
    factor = surface.at(resident.batch, part_of_gpu(gpu, resident.share_pct_sm)) / at_highest.total_ms
    return _BatchParts(
        total_ms=factor * by_law.total_ms,
        device_ms=factor * by_law.device_ms,
        used_ms=factor * by_law.used_ms,
        core_ms=factor * by_law.core_ms,
        traffic_gb=by_law.traffic_gb,
    )


def wanted(gpu: GpuTruth, resident: Resident, clock_mhz_sm: float) -> tuple[float, float]:
    """Part of a busy process's time in which its kernels run, and of that the part of the GPU they fill."""
    if resident.training:
        used = min(float(sm_count_of_share(gpu, resident.share_pct_sm)), training_sms(resident.model))
        return TRAINING_ON_GPU, used / gpu.sm_count
    alone = parts(gpu, model_on(gpu, resident.model), resident, clock_mhz_sm)
    return alone.running, alone.used_ms / alone.device_ms


def _crowding(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident]
) -> tuple[float, float]:
    """How far shares overlap, 0 to 1, and the factor that follows: kernels queue for SMs that others hold, a smooth
    maximum of having them alone and of dividing what there is. Shares that add up to the GPU at most never do.
    """
    busy = [neighbour for neighbour in neighbours if neighbour.busy > 0.0]
    others_pct = sum(neighbour.share_pct_sm for neighbour in busy)
    over_pct = resident.share_pct_sm + others_pct - 100
    if not busy or over_pct <= 0:
        return 0.0, 1.0
    overlap = min(1.0, over_pct / others_pct)
    running, filled = wanted(gpu, resident, clock_mhz_sm)
    mine, total, weighted = FULL_GPU * running * filled, 0.0, 0.0
    for each in busy:
        each_running, each_filled = wanted(gpu, each, clock_mhz_sm)
        meets = 1.0 if each.model == resident.model and not each.training else OTHER_MODEL
        part = meets * overlap * FULL_GPU * each.busy * each_running * each_filled
        total, weighted = total + part, weighted + part * each_running
    total, weighted = total + mine, weighted + mine * running
    together, alone = (1.0 + total**CROWDING) ** (1.0 / CROWDING), (1.0 + mine**CROWDING) ** (1.0 / CROWDING)
    # Who is on the GPU for less of its time waits for less of it.
    return overlap, 1.0 + (together / alone - 1.0) * running * total / weighted


def filled(given: float, needed: float) -> float:
    """SMs that training keeps busy on average, of those given, if it can use so many."""
    widths = (needed * TRAINING_SPREAD, needed, needed / TRAINING_SPREAD)
    return len(widths) / sum(1.0 / min(given, width) for width in widths)


def slowdown(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident]
) -> tuple[float, float]:
    """Factor on every batch's time without neighbours, and milliseconds on top of it: what neighbours do to caches,
    DRAM and the launch queue, and to SMs where shares overlap.
    """
    model = model_on(gpu, resident.model)
    running = 1.0 if resident.training else parts(gpu, model, resident, clock_mhz_sm).running
    added: list[float] = []
    busy_neighbours = 0.0
    for neighbour in neighbours:
        if neighbour.busy <= 0.0:
            continue
        other = model_on(gpu, neighbour.model)
        theirs = parts(gpu, other, neighbour, clock_mhz_sm)
        taken_ms = theirs.device_ms if neighbour.training else theirs.total_ms
        dram = 1000.0 * theirs.traffic_gb / (taken_ms * gpu.memory_bandwidth_gb_per_s)
        measured = _beside(gpu, resident, neighbour)
        if measured is not None:
            added.append(neighbour.busy * (measured - 1.0))
            continue
        press = TRAINING_PRESSURE if neighbour.training else 1.0
        least = gpu.slowdown_per_training if neighbour.training else gpu.slowdown_per_neighbour
        l2 = other.l2_pressure * (neighbour.share_pct_sm / 100.0) ** 0.5
        pressure = model.l2_sensitivity * l2 + model.dram_sensitivity * min(1.0, dram)
        # What the GPU does meanwhile for others is hidden where the host is what a batch waits for.
        added.append(running * neighbour.busy * (least + press * pressure))
        busy_neighbours += neighbour.busy
    overlap, crowded = _crowding(gpu, resident, clock_mhz_sm, neighbours)
    # The law of overlapping shares was fitted to whole times, so it stands in for what disjoint shares do.
    factor = 1.0 + (1.0 - overlap) * (_together(added, gpu.neighbours_norm) - 1.0) + (crowded - 1.0)
    return factor, (1.0 - overlap) * model.kernels * LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR * busy_neighbours


def _together(added: Sequence[float], norm: float) -> float:
    """The factor of all neighbours, from what each adds alone."""
    if norm == 1.0 or len(added) < 2:
        return reduce(add, added, 1.0)
    powers = math.fsum(math.pow(max(0.0, each), norm) for each in added)
    return 1.0 + math.pow(powers, 1.0 / norm)


def _beside(gpu: GpuTruth, resident: Resident, neighbour: Resident) -> float | None:
    """The slowdown that a study measured for such a pair whose shares fit, if one did."""
    if gpu.replay is None or resident.training or neighbour.training:
        return None
    own, other = (key_of(model_truth(each.model).name) for each in (resident, neighbour))
    found = gpu.replay.slowdowns.get((gpu.like or gpu.name, own, other))
    mine, theirs = ((each.batch, part_of_gpu(gpu, each.share_pct_sm)) for each in (resident, neighbour))
    return None if found is None else found.at(*mine, *theirs)


def execution_ms(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident] = (), noise: float = 0.0
) -> float:
    """Milliseconds of one batch. `noise` is a standard normal number: 0 gives the mean."""
    model = model_on(gpu, resident.model)
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)
    mean_ms = parts(gpu, model, resident, clock_mhz_sm).total_ms * factor + extra_ms
    return mean_ms * max(0.5, 1.0 + LATENCY_NOISE * noise)


class BatchTimes(Sequence[float]):
    """Milliseconds of batches of 1, 2, …: each when it is first asked for, since a limit may be a million."""

    def __init__(self, batch_max: int, took_ms: Callable[[int], float]) -> None:
        self._batch_max, self._took_ms = batch_max, cache(took_ms)

    def __len__(self) -> int:
        return self._batch_max

    @overload
    def __getitem__(self, place: int) -> float: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[float, ...]: ...

    def __getitem__(self, place: int | slice) -> float | tuple[float, ...]:
        sizes = range(1, self._batch_max + 1)[place]
        return self._took_ms(sizes) if isinstance(sizes, int) else tuple(map(self._took_ms, sizes))


def execution_curve_ms(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident] = (), noise: float = 1.0
) -> BatchTimes:
    """Milliseconds of batches up to the resident's batch limit. `noise`: times the mean."""
    model = model_on(gpu, resident.model)
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)

    def took_ms(batch: int) -> float:
        load = Resident(
            model=resident.model, share_pct_sm=resident.share_pct_sm, batch=batch, training=resident.training
        )
        return (parts(gpu, model, load, clock_mhz_sm).total_ms * factor + extra_ms) * noise

    return BatchTimes(resident.batch, took_ms)


def training_iteration_ms(
    gpu: GpuTruth,
    resident: Resident,
    clock_mhz_sm: float,
    neighbours: Sequence[Resident],
    reference_ms: float,
    reference_gpu: GpuTruth,
) -> float:
    """Milliseconds of one training iteration, from its time on the whole of a reference GPU at its highest clock."""
    needed = training_sms(resident.model)
    # Between types training scales with all their SMs (large ones bring bandwidth too), within one as far as it fills.
    whole = (gpu_truth(gpu.like or gpu.name) or gpu).sm_count
    between = reference_gpu.sm_count * reference_gpu.sm_speed / (whole * gpu.sm_speed)
    within = filled(whole, needed) / filled(sm_count_of_share(gpu, resident.share_pct_sm), needed)
    measured = gpu.replay.iterations.get((gpu.like or gpu.name, key_of(resident.model))) if gpu.replay else None
    if measured is not None:
        # The part that no SM shortens is in what was measured.
        slower = measured.at(1, part_of_gpu(gpu, resident.share_pct_sm))
        within = (slower - TRAINING_SERIAL_PART) / (1.0 - TRAINING_SERIAL_PART)
    parallel = between * within * gpu.clock_mhz_sm_max / clock_mhz_sm
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)
    return reference_ms * (TRAINING_SERIAL_PART + (1.0 - TRAINING_SERIAL_PART) * parallel) * factor + extra_ms


def dynamic_power_w(gpu: GpuTruth, resident: Resident, clock_mhz_sm: float) -> float:
    """Watts a resident adds to a GPU that already holds an idle context, averaged over its busy and idle time."""
    model = model_on(gpu, resident.model)
    alone = parts(gpu, model, resident, clock_mhz_sm)
    clock = clock_mhz_sm / gpu.clock_mhz_sm_max
    # Voltage falls with the clock down to where it may fall no further; memory has a clock of its own.
    switched = clock * max(clock, gpu.voltage_floor) ** 2
    waiting = POWER_OF_MEMORY * (alone.used_ms - alone.core_ms)
    working = gpu.uncore_part * alone.used_ms + (1.0 - gpu.uncore_part) * (alone.core_ms + waiting) * switched
    idle = model.power_floor * alone.used_ms / alone.device_ms * (alone.total_ms - alone.device_ms) * switched
    used = (working + max(0.0, idle)) / alone.total_ms
    return model.power_intensity * (gpu.tdp_w - gpu.idle_w - gpu.context_w) * used * resident.busy


def idle_power_w(gpu: GpuTruth, residents: Sequence[Resident]) -> float:
    """Watts when nothing executes: deep idle when empty, more as soon as one process holds a context."""
    return gpu.idle_w + (gpu.context_w if residents else 0.0)


def board_power_w(gpu: GpuTruth, residents: Sequence[Resident], clock_mhz_sm: float, power_limit_w: float) -> float:
    """Watts of the board; the power limit holds as long as the lowest clock can hold it."""
    drawn = idle_power_w(gpu, residents) + sum(dynamic_power_w(gpu, resident, clock_mhz_sm) for resident in residents)
    return drawn if clock_mhz_sm <= gpu.clocks_mhz_sm[0] else min(drawn, power_limit_w)


def clock_reached_mhz(gpu: GpuTruth, residents: Sequence[Resident], clock_mhz_sm: int, power_limit_w: float) -> int:
    """SM clock a device really runs at: the wanted one, or the highest that keeps the power limit, or the lowest."""
    idle = idle_power_w(gpu, residents)
    at_wanted = sum(dynamic_power_w(gpu, resident, clock_mhz_sm) for resident in residents)
    if idle + at_wanted <= power_limit_w:
        return clock_mhz_sm
    below = [clock for clock in gpu.clocks_mhz_sm if clock < clock_mhz_sm]
    for clock in reversed(below):
        if idle + sum(dynamic_power_w(gpu, resident, clock) for resident in residents) <= power_limit_w:
            return clock
    return gpu.clocks_mhz_sm[0]


def memory_mib(model: str, batch: int) -> float:
    """Device memory of a replica process that has run batches of this size."""
    found = model_truth(model)
    held = found.memory_mib_weights + found.memory_mib_per_input * batch
    return PROCESS_MIB + SEGMENT_MIB * math.ceil(held / SEGMENT_MIB)


def launch_s(model: str, gpu: GpuTruth | None = None) -> float:
    """Seconds from starting the process to being ready to serve; on a known GPU with the weights' way over its PCIe."""
    found = model_truth(model)
    return found.launch_s + (0.0 if gpu is None else swap_s(gpu, found.memory_mib_weights))


def swap_s(gpu: GpuTruth, memory_mib: float) -> float:
    """Seconds to move this much between host and device, one way."""
    return memory_mib * 1.048576e-3 / (PCIE_PART * gpu.pcie_bandwidth_gb_per_s)
