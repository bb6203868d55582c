"""How a GPU under MPS really behaves in the simulated world: time, power and memory of the replicas on one device.

Fake devices and the simulator obey it: pure functions over plain numbers, standard library only, because agents use it.
Nothing that plans may import it: planners know profiles and reports. Randomness is handed in as standard normal
numbers. It does not model L2 partitions, DRAM refresh, thermals or clock ramps. Calibration and its error:
`solvers.sim.truth.catalogue`. Two busy neighbours slow each other by a factor of 1.05 to 1.15 (training: more); the
1,200 slowdowns that iGniter's authors measured lie between 1.01 and 1.23, and `benchmarks.calibrate_truth` shows a mean
error of 0.030 beside 0.036 for always predicting their mean: right in size, hardly right pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solvers.sim.serving.serving import Served, serve
from solvers.sim.truth.catalogue import GpuTruth, ModelTruth, gpu_truth, model_on, model_truth, training_sms

# One door: agents may import this module and nothing else of the simulated world.
__all__ = ["GpuTruth", "Served", "gpu_truth", "serve"]

SHARE_OF_FULL_BANDWIDTH = 0.8
"""Part of the SMs that can draw the whole DRAM bandwidth; below it, bandwidth shrinks in proportion."""
CLOCK_EXPONENT_OF_POWER = 2.5
POWER_OF_MEMORY = 0.74
"""Watts of an SM that waits for DRAM, against one that computes."""
FULL_GPU, CROWDING = 1.42, 4.2
"""Overlapping shares: a GPU is full when kernels fill 1 / 1.42 of it all the time, and how sharp that edge is."""
OTHER_MODEL = 0.9
"""Of what a process wants, what meets a process of another network: their operators differ. An estimate."""
SLOWDOWN_PER_NEIGHBOUR = 0.045
LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR = 0.0025
LATENCY_NOISE = 0.03
"""Standard deviation of one batch's execution time, relative."""
PROCESS_MIB = 380.0
"""Device memory every process takes before it loads anything (driver context)."""
TRAINING_SERIAL_PART = 0.08
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


def _busy_sms(gpu: GpuTruth, model: ModelTruth, share_pct_sm: int, batch: int) -> float:
    """SMs kept busy: a smooth minimum of those given and those the batch can use."""
    return _filled(sm_count_of_share(gpu, share_pct_sm), model.sms_needed_first * batch**model.parallel_exponent)


def _filled(given: float, needed: float) -> float:
    return float((given**-2.0 + needed**-2.0) ** -0.5)


@dataclass(frozen=True, slots=True)
class _BatchParts:
    """Where the time of one batch goes, without neighbours, milliseconds."""

    fixed_ms: float
    compute_ms: float
    memory_ms: float
    traffic_gb: float

    @property
    def total_ms(self) -> float:
        return self.fixed_ms + self.compute_ms + self.memory_ms


def _parts(gpu: GpuTruth, model: ModelTruth, resident: Resident, clock_mhz_sm: float) -> _BatchParts:
    batch = resident.batch
    clock = clock_mhz_sm / gpu.clock_mhz_sm_max
    share = sm_count_of_share(gpu, resident.share_pct_sm) / gpu.sm_count
    bandwidth = gpu.memory_bandwidth_gb_per_s * min(1.0, share / SHARE_OF_FULL_BANDWIDTH) * (0.5 + 0.5 * clock)
    traffic = model.traffic_gb_weights + model.traffic_gb_per_input * batch
    busy = _busy_sms(gpu, model, resident.share_pct_sm, batch)
    return _BatchParts(
        fixed_ms=model.fixed_ms + model.io_ms_per_input * batch * 16.0 / gpu.pcie_bandwidth_gb_per_s,
        compute_ms=model.work_ms_sm_per_input * batch / (busy * gpu.sm_speed * clock),
        memory_ms=1000.0 * traffic / bandwidth,
        traffic_gb=traffic,
    )


def wanted(gpu: GpuTruth, resident: Resident, clock_mhz_sm: float) -> tuple[float, float]:
    """Part of a busy process's time in which its kernels run, and of that the part of the GPU they fill."""
    if resident.training:
        used = min(float(sm_count_of_share(gpu, resident.share_pct_sm)), training_sms(resident.model))
        return TRAINING_ON_GPU, used / gpu.sm_count
    model = model_on(gpu, resident.model)
    parts = _parts(gpu, model, resident, clock_mhz_sm)
    filled = _busy_sms(gpu, model, resident.share_pct_sm, resident.batch) / gpu.sm_count
    return (parts.compute_ms + parts.memory_ms) / parts.total_ms, filled


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


def slowdown(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident]
) -> tuple[float, float]:
    """Factor on every batch's time without neighbours, and milliseconds on top of it: what neighbours do to caches,
    DRAM and the launch queue, and to SMs where shares overlap.
    """
    model = model_on(gpu, resident.model)
    factor, busy_neighbours = 1.0, 0.0
    for neighbour in neighbours:
        if neighbour.busy <= 0.0:
            continue
        other = model_on(gpu, neighbour.model)
        parts = _parts(gpu, other, neighbour, clock_mhz_sm)
        dram = 1000.0 * parts.traffic_gb / (parts.total_ms * gpu.memory_bandwidth_gb_per_s)
        press = TRAINING_PRESSURE if neighbour.training else 1.0
        l2 = other.l2_pressure * (neighbour.share_pct_sm / 100.0) ** 0.5
        pressure = model.l2_sensitivity * l2 + model.dram_sensitivity * min(1.0, dram)
        factor += neighbour.busy * (SLOWDOWN_PER_NEIGHBOUR + press * pressure)
        busy_neighbours += neighbour.busy
    overlap, crowded = _crowding(gpu, resident, clock_mhz_sm, neighbours)
    # The law of overlapping shares was fitted to whole times, so it stands in for what disjoint shares do.
    factor = 1.0 + (1.0 - overlap) * (factor - 1.0) + (crowded - 1.0)
    return factor, (1.0 - overlap) * model.kernels * LAUNCH_MS_PER_KERNEL_AND_NEIGHBOUR * busy_neighbours


def execution_ms(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident] = (), noise: float = 0.0
) -> float:
    """Milliseconds of one batch. `noise` is a standard normal number: 0 gives the mean."""
    model = model_on(gpu, resident.model)
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)
    mean_ms = _parts(gpu, model, resident, clock_mhz_sm).total_ms * factor + extra_ms
    return mean_ms * max(0.5, 1.0 + LATENCY_NOISE * noise)


def execution_curve_ms(
    gpu: GpuTruth, resident: Resident, clock_mhz_sm: float, neighbours: Sequence[Resident] = ()
) -> tuple[float, ...]:
    """Milliseconds of batches of 1, 2, … up to the resident's batch limit."""
    model = model_on(gpu, resident.model)
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)
    sizes = range(1, resident.batch + 1)
    loads = (
        Resident(model=resident.model, share_pct_sm=resident.share_pct_sm, batch=size, training=resident.training)
        for size in sizes
    )
    return tuple(_parts(gpu, model, load, clock_mhz_sm).total_ms * factor + extra_ms for load in loads)


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
    within = _filled(whole, needed) / _filled(sm_count_of_share(gpu, resident.share_pct_sm), needed)
    parallel = between * within * gpu.clock_mhz_sm_max / clock_mhz_sm
    factor, extra_ms = slowdown(gpu, resident, clock_mhz_sm, neighbours)
    return reference_ms * (TRAINING_SERIAL_PART + (1.0 - TRAINING_SERIAL_PART) * parallel) * factor + extra_ms


def dynamic_power_w(gpu: GpuTruth, resident: Resident, clock_mhz_sm: float) -> float:
    """Watts a resident adds to a GPU that already holds an idle context, averaged over its busy and idle time."""
    model = model_on(gpu, resident.model)
    parts = _parts(gpu, model, resident, clock_mhz_sm)
    working = (parts.compute_ms + POWER_OF_MEMORY * parts.memory_ms) / parts.total_ms
    active = model.power_floor + (1.0 - model.power_floor) * working
    used = _busy_sms(gpu, model, resident.share_pct_sm, resident.batch) / gpu.sm_count
    clock: float = (clock_mhz_sm / gpu.clock_mhz_sm_max) ** CLOCK_EXPONENT_OF_POWER
    return model.power_intensity * (gpu.tdp_w - gpu.idle_w - gpu.context_w) * used * active * clock * resident.busy


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
    return PROCESS_MIB + found.memory_mib_weights + found.memory_mib_per_input * batch


def launch_s(model: str, gpu: GpuTruth | None = None) -> float:
    """Seconds from starting the process to being ready to serve; on a known GPU with the weights' way over its PCIe."""
    found = model_truth(model)
    return found.launch_s + (0.0 if gpu is None else swap_s(gpu, found.memory_mib_weights))


def swap_s(gpu: GpuTruth, memory_mib: float) -> float:
    """Seconds to move this much between host and device, one way."""
    return memory_mib * 1.048576e-3 / (PCIE_PART * gpu.pcie_bandwidth_gb_per_s)
