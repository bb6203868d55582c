"""Parameters of the simulated world: what its GPUs are and how hungry its networks are.

Two tables, and the rule for names that are in neither. Planners never see them; they see profiles and reports. A
network comes with the software that runs it. Fits and errors: `benchmarks.calibrate_truth`, `docs/lab/simulator.md`.
Where the numbers come from:

* thirteen networks in eager PyTorch: fits to the times that RaPP's authors (HAS-GPU, 2025; Apache-2.0) published for a
  V100 under MPS. Most wait for their host.
* `-trt` and ssd-resnet50: TensorRT engines on a V100 by iGniter's authors (Xu et al., IEEE TPDS 34(3), 2023). Licence:
  their repository (icloud-ecnu/igniter, b1ff2ab) states none, so nothing of their files is handed on; kept here are
  coefficients of our own formula, fitted by our own code; interference is set by hand to the size they show. Sources
  whose licence restricts use went into no number of this module (docs/decisions/0004).
* resnet152, yolo*: scaled from RaPP's by floating-point operations; bert*, roberta, vit-base from vgg19, with the
  host's time of a compiled runtime. Our estimate. `transformer-mt` and `gpt2` generate tokens one after the other, so
  most of their time does not shrink with the share.
* `-tfs`: four networks as TensorFlow Serving runs them in HetSev's paper, which leaves a V100 idle for much of each
  request: the host's milliseconds are set so that replicas without share limits gain and suffer what the paper prints
  (`lab.claims.hetsev`). On a 2080 Ti as INFless (ASPLOS'22, no licence stated) measured it, below.
* power intensities: a fit of `truth.dynamic_power_w` to the 36 power readings of iGniter's V100; others by kinship.
* activations: 0.8 of the sum of a network's outputs, by gpulet's processes; no more than a size.
* GPU types: SMs, memory, power limits, bandwidths and clock ranges of the vendor's data sheets. `sm_speed` is set so
  that a T4 takes about twice a V100's time on resnet50 where the GPU is what a batch waits for (NVIDIA's tables show
  22.4 and 11.5 ms) and an A100 about 0.55 of it; the others are estimates from data sheets. `context_w` is an estimate
  but for the V100, the A100, whose idle watts are Acme's (NSDI'24, CC BY 4.0), and the H200, whose are our own.

What differs on one GPU type alone stands at the end.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from solvers.sim.truth.replay import Replay


@dataclass(frozen=True, slots=True)
class GpuTruth:
    name: str
    product: str
    sm_count: int
    memory_mib: int
    sm_speed: float
    """One SM against one SM of a V100, both at their highest clock."""
    memory_bandwidth_gb_per_s: float
    pcie_bandwidth_gb_per_s: float
    idle_w: float
    """Of an empty board."""
    context_w: float
    """Added by the first process that holds a context, even if it never executes."""
    tdp_w: float
    power_limit_w_min: float
    clocks_mhz_sm: tuple[int, ...]
    """Every SM clock that can be locked, rising."""
    sm_granularity: int = 2
    host_speed: float = 1.0
    """Of the machine around it, against the one that the V100 was measured in."""
    uncore_part: float = 0.0
    """Of the power of full work, what does not follow the SM clock."""
    voltage_floor: float = 0.7
    """Part of the highest clock below which the voltage falls no further."""
    replay: Replay | None = None
    """A study whose measurements stand in for the laws."""
    bandwidth_part: float = 0.5
    """Part of the SMs that can draw the whole DRAM bandwidth; below it, bandwidth shrinks in proportion."""
    slowdown_per_neighbour: float = 0.06
    """What a busy neighbour that serves adds to a batch's time, whatever it runs."""
    slowdown_per_training: float = 0.06
    """The same of one that trains, before what training presses more."""
    neighbours_norm: float = 1.0
    """How what several neighbours add comes together: 1 is their sum, more the less each further one matters."""
    like: str = ""
    """The type whose measured networks hold for this one too: a slice behaves like its GPU, a smaller memory alike."""

    @property
    def clock_mhz_sm_max(self) -> int:
        return self.clocks_mhz_sm[-1]


@dataclass(frozen=True, slots=True)
class ModelTruth:
    """One network. Times are those of a V100 at its highest clock; work is in milliseconds times SMs."""

    name: str
    host_ms: float
    """The host's time to issue all kernels, on the machine that the V100 was measured in; the GPU works meanwhile."""
    io_ms_per_input: float
    work_ms_sm_per_input: float
    sms_needed_first: float
    """SMs that the middling class of kernels keeps busy with one input; with b inputs b times as many."""
    spread: float
    """How much wider the wide class is than the middling one, and that than the narrow one."""
    traffic_gb_weights: float
    traffic_gb_per_input: float
    kernels: float
    l2_pressure: float
    l2_sensitivity: float
    dram_sensitivity: float
    power_intensity: float
    memory_mib_weights: float
    memory_mib_per_input: float
    launch_s: float
    power_floor: float = 0.0
    """Part of the power of full work that executing draws even where the SMs wait."""
    copy_ms_per_input: float = 0.0
    """Copying an input to the GPU while the batch before executes: part of an answer's time, not of the cycle."""
    gap_ms_per_input: float = 0.0
    """The host's work between batches: part of the cycle, inside `io_ms_per_input`, but not of an answer's time."""


def _clocks(low_mhz: int, high_mhz: int, step_mhz: float) -> tuple[int, ...]:
    return tuple(int(low_mhz + k * step_mhz) for k in range(int((high_mhz - low_mhz) / step_mhz) + 1))


# name, product, SMs, memory MiB, SM speed, DRAM GB/s, PCIe GB/s, idle W, context W, TDP W, lowest limit W, clocks MHz
_GPUS = (
    ("t4", "Tesla T4", 40, 15360, 1.0, 320, 16, 10, 4, 70, 60, _clocks(300, 1590, 15)),
    ("v100-16gb", "Tesla V100-SXM2-16GB", 80, 16384, 1.0, 900, 16, 25, 28.5, 300, 150, _clocks(135, 1530, 7.5)),
    ("v100", "Tesla V100-SXM2-32GB", 80, 32768, 1.0, 900, 16, 25, 28.5, 300, 150, _clocks(135, 1530, 7.5)),
    ("a100", "NVIDIA A100-SXM4-80GB", 108, 81920, 1.36, 2039, 32, 60, 34, 400, 100, _clocks(210, 1410, 15)),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 108, 40960, 1.36, 1555, 32, 60, 34, 400, 100, _clocks(210, 1410, 15)),
    ("l4", "NVIDIA L4", 58, 23034, 1.35, 300, 32, 13, 5, 72, 40, _clocks(210, 2040, 15)),
    ("a10", "NVIDIA A10", 72, 23028, 1.32, 600, 32, 20, 8, 150, 100, _clocks(210, 1695, 15)),
    ("a30", "NVIDIA A30", 56, 24576, 1.36, 933, 32, 30, 10, 165, 100, _clocks(210, 1440, 15)),
    ("a40", "NVIDIA A40", 84, 46068, 1.32, 696, 32, 30, 45, 300, 100, _clocks(210, 1740, 15)),
    ("l40s", "NVIDIA L40S", 142, 46068, 1.45, 864, 32, 35, 70, 350, 100, _clocks(210, 2520, 15)),
    ("h100", "NVIDIA H100 80GB HBM3", 132, 81559, 2.2, 3350, 64, 70, 45, 700, 200, _clocks(345, 1980, 15)),
    ("h200", "NVIDIA H200", 132, 143771, 2.2, 4800, 64, 80, 51, 700, 200, _clocks(345, 1980, 15)),
    ("p40", "Tesla P40", 30, 22919, 1.2, 346, 16, 12, 38, 250, 125, _clocks(544, 1531, 21)),
    ("p100", "Tesla P100-PCIE-16GB", 56, 16280, 0.8, 732, 16, 26, 6, 250, 125, _clocks(544, 1328, 14)),
    ("rtx-2060", "GeForce RTX 2060", 30, 6144, 0.92, 336, 16, 8, 22, 160, 125, _clocks(300, 2100, 15)),
    ("rtx-2060-super", "GeForce RTX 2060 SUPER", 34, 8192, 0.92, 448, 16, 9, 25, 175, 125, _clocks(300, 2100, 15)),
    ("rtx-2080ti", "GeForce RTX 2080 Ti", 68, 11264, 0.92, 616, 16, 15, 40, 250, 100, _clocks(300, 2100, 15)),
    ("rtx-3080", "GeForce RTX 3080", 68, 10240, 1.3, 760, 32, 20, 60, 320, 100, _clocks(210, 2100, 15)),
    ("rtx-3080ti", "GeForce RTX 3080 Ti", 80, 12288, 1.3, 912, 32, 20, 66, 350, 100, _clocks(210, 2100, 15)),
    ("rtx-3090", "GeForce RTX 3090", 82, 24576, 1.3, 936, 32, 25, 75, 350, 100, _clocks(210, 2100, 15)),
    ("rtx-4090", "GeForce RTX 4090", 128, 24564, 1.5, 1008, 32, 20, 45, 450, 150, _clocks(210, 3105, 15)),
)
# Machine's speed, part of power that does not follow the SM clock, where the voltage ends: what is measured of a chip
# holds for all boards with it. A machine is as old as its GPU: the A100's against the V100's is fitted, others are
# estimates.
_CHIPS = {
    (1.0, 0.0, 0.7): ("v100", "v100-16gb"),
    (1.5, 0.0, 0.5): ("p100",),
    (1.5, 0.5, 1.0): ("p40",),
    (1.5, 0.0, 0.75): ("t4", "rtx-2060", "rtx-2060-super", "rtx-2080ti"),
    (2.8, 0.0, 0.7): ("a100", "a100-40gb", "a30", "h100", "h200"),
    (2.8, 0.0, 0.8): ("a10", "a40", "l4", "l40s", "rtx-3080", "rtx-3080ti", "rtx-3090", "rtx-4090"),
}
_OF_CHIP = {name: chip for chip, names in _CHIPS.items() for name in names}
# What this project measured of its own GPUs and no data sheet says; what neighbours add is a fit to 24 slowdowns of the
# H100, to 76 of the H200, and how they come together to 27 of three at once there.
_MEASURED: dict[str, dict[str, Any]] = {
    "h100": {"bandwidth_part": 1.0, "slowdown_per_neighbour": 0.23},
    "h200": {
        "bandwidth_part": 1.0,
        "slowdown_per_neighbour": 0.119,
        "slowdown_per_training": 0.0,
        "neighbours_norm": 2.8,
    },
}
_LIKE = {"v100-16gb": "v100", "a100-40gb": "a100"}


def _board(row: Any) -> GpuTruth:
    host_speed, uncore, floor = _OF_CHIP[row[0]]
    bare, like = GpuTruth(*row), _LIKE.get(row[0], "")
    chip = replace(bare, host_speed=host_speed, uncore_part=uncore, voltage_floor=floor, like=like)
    return replace(chip, **_MEASURED.get(row[0], {}))


GPUS: dict[str, GpuTruth] = {row[0]: _board(row) for row in _GPUS}

# Columns in the order of ModelTruth: name, host, io, work, SMs of the first input, spread, traffic of weights and
# of an input, kernels, L2 pressure, L2 and DRAM sensitivity, power intensity, MiB of weights and input, launch seconds.
_MODELS = """
resnet50          17.28   0.05439 56.09 6.029 2.478   0.4037   0.009   80 0.27 0.19 0.08 1.29   98 38.4    6
vgg19            0.2513    0.6779 144.5 55.59 3.181   0.8418   0.012   29 0.26 0.05 0.07 1.36  548 51.2    9
alexnet            2.29   0.01228  7.53     4 2.598   0.1225 0.05111   20 0.23 0.08 0.13 1.72  233  6.4    4
ssd-resnet50      4.527    0.5961 181.2   400 3.704     0.36   0.025   93 0.28 0.08 0.05 1.25   77   88    8
resnet18          8.843   0.09107 16.02 8.035 2.159   0.1892 0.06137   30 0.27 0.19 0.08 1.29   45 19.2 4.45
resnet101          30.2    0.2299 94.54 46.67 2.343   0.5569  0.1106  150 0.27 0.19 0.08 1.29  171   56 5.71
resnet152         46.51    0.2299 151.3 46.67 2.343   0.7518  0.1548  220 0.27 0.19 0.08 1.29  231 76.8 6.31
inception-v3      13.22 0.0001518  44.6 4.241 3.513   0.3819  0.1209  120 0.27 0.19 0.08 1.29   91 44.8 4.91
googlenet         21.18   0.04679 21.18     4     4  0.02705 0.02743   70 0.27 0.19 0.08 1.29   27   24 4.27
mobilenet         8.056   0.01663 15.87     4 3.557 0.008275 0.01566   55 0.27 0.25 0.08 1.03   14 21.6 4.14
mnasnet           14.16     0.023  11.4 15.97 2.887 0.006317 0.01294   55 0.27 0.24 0.08 1.03   17 20.8 4.17
efficientnet      27.14   0.05698 11.64 26.93 3.807  0.02205  0.1408   95 0.27 0.28 0.08 1.03   21 28.8 4.21
densenet121       30.18 0.0001001 49.95 4.272 3.923  0.01037 0.01914  230 0.27 0.19 0.08 1.29   31   48 4.31
densenet161       44.07   0.07576 139.9  6.46 2.333  0.07433 0.07877  300 0.27 0.19 0.08 1.29  110   88  5.1
vgg16             6.248    0.3037 127.6 73.54 2.498   0.3672   0.012   25 0.26 0.05 0.07 1.36  528   48 9.28
yolov5n 16.5 0.4 42.06 45 2 0.0084 0.16 110 0.27 0.19 0.08 1.29 8 56 4.08
yolov5s 16.5 0.4 123.4 60 2 0.0294 0.25 110 0.27 0.19 0.08 1.29 28 96 4.28
yolov5m 22.5 0.4 353.3 75 2 0.0851 0.45 150 0.27 0.19 0.08 1.29 81 168 4.81
yolov5l 28.5 0.4 757 90 2 0.187 0.75 190 0.27 0.19 0.08 1.29 178 240 5.78
yolov5x 34.5 0.4 1402 110 2 0.348 1.1 230 0.27 0.19 0.08 1.29 331 344 7.31
yolos 30 0.4 392.5 70 2 0.124 0.09 200 0.27 0.19 0.2 1.29 118 208 5.18
bert-medium       4.267     0.004 67.96    30   2.5    0.166    0.12   80 0.26 0.05 0.07 1.36  158 11.2 5.58
bert-base             8     0.004 173.6    40   2.5    0.439    0.05  150 0.26 0.05 0.16 1.36  418 20.8 8.18
bert-large           16     0.004 563.8    60   2.5     1.34    0.12  300 0.26 0.05 0.16 1.36 1278   48 16.8
roberta               8     0.004 176.4    40   2.5      0.5    0.05  150 0.26 0.05 0.18 1.36  476 20.8 8.76
vit-base          7.467    0.1374 245.8    60   2.5    0.346     0.1  140 0.26 0.05 0.07 1.36  330   32  7.3
transformer-mt       42      0.01 252.3     9     2      4.2    0.15  900 0.27 0.19  0.3  0.9  168   48 5.68
resnet50-tfs       0.15     0.925 37.89  28.7     2    0.102    0.09   80 0.27 0.19 0.08 1.29   98 38.4    6
inception-v3-tfs   0.29     0.737 32.59    20     2   0.0955    0.07  120 0.27 0.19 0.08 1.29   91 44.8 4.91
ssd-resnet50-tfs   0.26     3.895 165.8 116.7     2     0.09    0.25   93 0.28 0.08 0.05 1.25   77   88    8
transformer-tfs   3.375     8.107 443.3    40     2      4.2    0.15  900 0.27 0.19  0.3  0.9  168   48 5.68
gpt2                 70      0.01 616.9    12     2       15     0.5 1600 0.27 0.19 0.35  0.9  498  120 8.98
resnet50-trt     0.8645    0.1764 42.94 41.75     4    0.408   0.009   80 0.27 0.19 0.08 1.29   98 38.4    6
vgg19-trt        0.3157    0.1655 120.6   151 1.626   0.8768 0.02892   29 0.26 0.05 0.07 1.36  548 51.2    9
alexnet-trt      0.7912   0.06331 6.819  84.8 3.975     0.49   0.002   20 0.23 0.08 0.13 1.72  233  6.4    4
"""
MODELS: dict[str, ModelTruth] = {
    columns[0]: ModelTruth(columns[0], *(float(column) for column in columns[1:]))
    for columns in (line.split() for line in _MODELS.strip().splitlines())
}

_ALIASES = {
    "ssd": "ssd-resnet50",
    "transformer": "transformer-mt",
    "inception": "inception-v3",
    "mobilenetv1": "mobilenet",
    "mobilenetv2": "mobilenet",
    "mobilenetv3": "mobilenet",
    "mobilenetv3large": "mobilenet",
    "mnasnet10": "mnasnet",
    "efficientnetb0": "efficientnet",
    "bert": "bert-base",
    "yolov5": "yolov5s",
    "gpt2small": "gpt2",
}
_SIZES = {"nano": 0.3, "tiny": 0.35, "small": 0.6, "medium": 1.6, "base": 2.0, "large": 5.0, "xl": 9.0, "huge": 12.0}


def key_of(name: str) -> str:
    """A name without case, spaces and dashes: how networks are looked up."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


_BY_KEY = {key_of(name): model for name, model in MODELS.items()}
_BY_KEY |= {alias: MODELS[name] for alias, name in _ALIASES.items()}


def gpu_truth(name: str) -> GpuTruth | None:
    """The GPU type of this name (case does not matter), or None: a world has no unknown hardware."""
    return GPUS.get(name.lower())


@lru_cache(maxsize=1024)
def model_truth(name: str) -> ModelTruth:
    """The network of this name. One that is in no table gets parameters that depend on its name alone: a size word in
    it sets the scale, a checksum of it sets the rest, so every process of every run agrees on them.
    """
    key = key_of(name)
    return _BY_KEY.get(key) or _derived(name, key)


def _derived(name: str, key: str) -> ModelTruth:
    def draw(purpose: str, low: float, high: float) -> float:
        return low + (high - low) * zlib.crc32(f"{key}/{purpose}".encode()) / 2**32

    scale = next((factor for word, factor in _SIZES.items() if word in key), 1.0)
    base, memory_mib = MODELS["resnet50"], scale * draw("memory", 40.0, 240.0)
    return replace(
        base,
        name=name,
        work_ms_sm_per_input=base.work_ms_sm_per_input * scale * draw("work", 0.5, 2.0),
        host_ms=base.host_ms * scale * draw("fixed", 0.4, 2.0),
        sms_needed_first=draw("width", 3.0, 25.0),
        traffic_gb_weights=memory_mib * 1.05e-3,
        l2_sensitivity=draw("l2", 0.05, 0.25),
        dram_sensitivity=draw("dram", 0.05, 0.3),
        memory_mib_weights=memory_mib,
        memory_mib_per_input=draw("activations", 16.0, 64.0),
        launch_s=4.0 + memory_mib / 100.0,
    )


# --- What holds for a network on one GPU type alone, and how many SMs training a network can use
#
# Where the numbers come from:
#
# * a100: least-squares fits (`python -m benchmarks.calibrate_truth`) to the throughput of one process on five MIG sizes
#   and up to nine batch sizes, published with ParvaGPU (SC'24, MIT licence); slices are
#   `lab.world.truth.mig_truth`. Mean error 2 to 7 % by network.
# * rtx-2080ti: solved for what Morak's paper prints (`lab.claims.morak`): GoogLeNet's throughput and power alone and
#   as four, and the knees of the share. What the paper does not print is an estimate.
# * its last two columns, which GoogLeNet on that type alone has: solved for the two latencies that the paper prints
#   beside those throughputs. Nobody measured copies or gaps; every other pair has none.
# * SMs that training uses: fits to iteration times on MIG slices of an A100 published with MISO (SoCC'22, MIT licence);
#   mean error 9 to 23 % for one number by network.
# * h100: fits to this project's own recordings (tests/recordings/h100, Apache-2.0): PyTorch at half precision, so its
#   tensor cores work, and all but resnet50 as one CUDA graph, which is one launch. Mean error 2 to 6 %; of power 9 %.
# * h200: fits to recordings of one (tests/recordings/h200, Apache-2.0), as on the h100; mean error 2 to 7 %, of power
#   6 %. How many kernels of a graph a neighbour holds up is fitted to slowdowns at batches of 16, 4 and 1.
# * factors on the h100: what that precision and machine do to networks that nobody measured there, told by the one of
#   the same software that somebody did (5, 20 and 32 % off there; from one ResNet-50 to the other 14 and 21 %). A
#   transformer's is large: what others have of bert-base is an estimate by fp32 convolutions, without tensor cores. On
#   the h200 two tell the engines' (16 and 24 %), and one each the others' (8 and 18 %).
# * -tfs on the rtx-2080ti: fits to INFless' times with four cores, mean error 2 to 6 %.

# GPU type, network, host, io, work, SMs of the first input, spread, traffic of weights and of an input,
# power intensity and floor; where they are known, copy and gap of an input.
_TIMES = """
a100 bert-large    33.12 5.785 100.1 62.46 2.532 1.306 0.012 1.36
a100 densenet121   30.3 0.1842 30.8 4.901 2.367 0.13 0.2796 1.29
a100 inception-v3  24.93 0.1499 28.95 14.09 1.126 0.382 0.01844 1.29
a100 mobilenet     12.65 0.1697 10.44 11.74 3.432 0.0588 0.1375 1.03
a100 resnet50      11.9 0.1592 22.06 14.27 3.586 0.3692 0.2394 1.29
a100 resnet101     21.85 0.1646 36.33 11.8 4 0.6379 0.3462 1.29
a100 resnet152     36.93 0.1061 90.32 153.4 1.233 0.972 0.0861 1.29
a100 vgg16         2.093 0.2205 55.96 104.9 3.929 0.9178 0.1083 1.36
a100 vgg19         1.502 0.2299 66.17 93.37 4 1.016 0.1222 1.36
h100 resnet50       10.68 0.08654 21.28 82.41 2.204 0.1173 0.00424 0.773
h100 resnet50-trt   0.9703 0.1554 4.831 12 13.82 0.2745 0.1315 2.07
h100 mobilenet      0.09259 0.04505 0.2791 1 16 0.0004138 0.07864 2.18
h100 bert-base      0.4312 0.04835 6.548 24.49 10 0.02195 0.03748 2.14
h200 resnet50       8.311 0.07148 20.21 7.157 4.929 0.3666 0.02058 0.775
h200 resnet50-trt   0.881 0.1165 4.417 12 15.14 0.3848 0.1998 1.87
h200 mobilenet      0.08889 0.04123 0.2621 1 16 0.0004138 0.1136 1.91
h200 vgg19-trt      0.5563 0.1567 23.29 141.3 14.55 0.5905 0.2892 1.63
h200 bert-base      0.4297 0.03399 6.548 24.5 10.07 0.02195 0.06049 1.93
rtx-2080ti googlenet  1.425 0.22978244 18.95601324 10 2 0.0283 0.045 0.62289831 0.72503813 0.0248 0.0498
rtx-2080ti mobilenet  0.825 0.2298 13.56 5 2 0.0147 0.12 0.498 0.725
rtx-2080ti resnet50   1.146 0.2298 45.17 12 2 0.102 0.09 0.622 0.725
rtx-2080ti resnet101  2.175 0.2298 85.83 12 2 0.18 0.14 0.622 0.725
rtx-2080ti resnet50-tfs      16.18 9.972 63.3 4.048 3.997 0.07339 0.02016 0.6 0.6639
rtx-2080ti mobilenet-tfs     116.8 10.64 28.91 60 2.5 0.0147 0.12 0.6 0.6639
rtx-2080ti ssd-resnet50-tfs  123.8 35.99 107.3 4 4 0.05768 0.09306 0.6 0.6639
"""
_TRAINING_SMS = {
    "bert": 130.0,
    "mobilenet": 30.0,
    "resnet": 37.0,
    "deepspeech": 52.0,
    "neumf": 32.0,
    "cyclegan": 145.0,
    "embedding": 42.0,
}
TRAINING_SMS_ELSE = 130.0
"""Estimate for networks that nobody measured: large batches of large inputs fill a GPU."""


_COLUMNS = (
    "host_ms", "io_ms_per_input", "work_ms_sm_per_input", "sms_needed_first", "spread",
    "traffic_gb_weights", "traffic_gb_per_input", "power_intensity", "power_floor",
    "copy_ms_per_input", "gap_ms_per_input",
)  # fmt: skip
PAIRS: dict[tuple[str, str], dict[str, Any]] = {
    (row[0], key_of(row[1])): dict(zip(_COLUMNS, map(float, row[2:]), strict=False))
    for row in map(str.split, _TIMES.strip().splitlines())
}
"""What of a network's parameters is another on one GPU type."""
_LAUNCHES = {
    "h100": {"resnet50-trt": 1.0, "mobilenet": 1.0, "bert-base": 1.0},
    "h200": {"resnet50-trt": 1.0, "mobilenet": 29.0, "vgg19-trt": 1.0, "bert-base": 12.0},
}
for _gpu, _graphs in _LAUNCHES.items():
    for _name, _kernels in _graphs.items():
        PAIRS[_gpu, key_of(_name)]["kernels"] = _kernels

_HALF_PRECISION = {
    "h100": {
        "eager": {"work_ms_sm_per_input": 0.39, "host_ms": 0.53},
        "engine": {"work_ms_sm_per_input": 0.51, "host_ms": 0.50},
        "transformer": {"work_ms_sm_per_input": 0.038, "host_ms": 0.20},
    },
    "h200": {
        "eager": {"work_ms_sm_per_input": 0.38, "host_ms": 0.67},
        "engine": {"work_ms_sm_per_input": 0.41, "host_ms": 0.50},
        "transformer": {"work_ms_sm_per_input": 0.041, "host_ms": 0.20},
    },
}
"""Factors on what other GPUs' measurements say of a network, by its software."""
_ENGINES = {"ssd-resnet50", "resnet50-trt", "vgg19-trt", "alexnet-trt"}
_TRANSFORMERS = {"bert-medium", "bert-base", "bert-large", "roberta", "vit-base"}
_UNLIKE = {"transformer-mt", "gpt2", *(name for name in MODELS if name.endswith("-tfs"))}
"""Tokens one after the other, and servers: nobody measured any such at half precision."""


def _software(name: str) -> str:
    kinds = (("engine", _ENGINES), ("transformer", _TRANSFORMERS), ("", _UNLIKE))
    return next((kind for kind, names in kinds if name in names), "eager")


@lru_cache(maxsize=4096)
def _on(gpu_name: str, name: str) -> ModelTruth:
    model = model_truth(name)
    own = PAIRS.get((gpu_name, key_of(model.name)))
    if own is None:
        factors = _HALF_PRECISION.get(gpu_name, {}).get(_software(model.name), {})
        own = {column: factor * getattr(model, column) for column, factor in factors.items()}
    return replace(model, **own)


def model_on(gpu: GpuTruth, name: str) -> ModelTruth:
    return _on(gpu.like or gpu.name, name)


@lru_cache(maxsize=1024)
def training_sms(name: str) -> float:
    """SMs that training this network can keep busy."""
    key = key_of(name)
    return next((sms for part, sms in _TRAINING_SMS.items() if part in key), TRAINING_SMS_ELSE)
