"""Parameters of the simulated world: what its GPUs are and how hungry its networks are.

Two tables, and the rule for names that are in neither. Planners never see them; they see profiles and reports. Where
the numbers come from:

* alexnet, resnet50, vgg19, ssd-resnet50: least-squares fits (`benchmarks.calibrate_truth`) to the solo latencies that
  the authors of iGniter (Xu et al., IEEE TPDS 34(3), 2023) published for a V100 under MPS with TensorRT FP32. Mean
  absolute error 1.6, 1.6, 0.8 and 1.0 %, worst cell 10.3, 8.1, 5.3 and 6.2 %. Licence: their repository
  (icloud-ecnu/igniter, b1ff2ab) states none, so nothing of their files is handed on; kept here are coefficients of our
  own formula, fitted by our own code; interference is set by hand to the size they show. Sources whose
  licence restricts use went into no number of this module (docs/decisions/0004).
* vgg16, inception-v3, mobilenet: scaled from those by throughput ratios on a whole A100 published with ParvaGPU (SC'24,
  MIT licence).
* all other networks: scaled from resnet50 or vgg19 by floating-point operations, our estimate. `transformer-mt` and
  `gpt2` generate tokens one after the other, so most of their time does not shrink with the share.
* `-tfs`: four networks as TensorFlow Serving runs them in HetSev's paper, which leaves a V100 idle for much of each
  request: the host's milliseconds are set so that replicas without share limits gain and suffer what the paper prints
  (`lab.claims.hetsev`); the transformer fills the SMs of a beam search. No measurement of them is public.
* power intensities: a least-squares fit of `truth.dynamic_power_w` to the 36 power readings of the same V100 data
  (mean error 3.2 %, worst 9.9 %); other networks by kinship.
* GPU types: SMs, memory, power limits, bandwidths and clock ranges of the vendor's data sheets. `sm_speed` is set so
  that a T4 takes about twice a V100's time on resnet50 (NVIDIA's DeepLearningExamples tables show 22.4 and 11.5 ms) and
  an A100 about 0.55 of it; the others are estimates from data sheets. `context_w` is an estimate but for the V100.

What differs on one GPU type alone stands at the end.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any


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
    like: str = ""
    """The type whose measured networks hold for this one too: a slice behaves like its GPU, a smaller memory alike."""

    @property
    def clock_mhz_sm_max(self) -> int:
        return self.clocks_mhz_sm[-1]


@dataclass(frozen=True, slots=True)
class ModelTruth:
    """One network. Times are those of a V100 at its highest clock; work is in milliseconds times SMs."""

    name: str
    fixed_ms: float
    """Launching kernels and everything else that no GPU resource shortens."""
    io_ms_per_input: float
    work_ms_sm_per_input: float
    sms_needed_first: float
    """SMs that a batch of one can keep busy; a batch of b keeps `sms_needed_first * b ** parallel_exponent` busy."""
    parallel_exponent: float
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
    power_floor: float = 0.03
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
    ("a100", "NVIDIA A100-SXM4-80GB", 108, 81920, 1.36, 2039, 32, 50, 18, 400, 100, _clocks(210, 1410, 15)),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 108, 40960, 1.36, 1555, 32, 50, 18, 400, 100, _clocks(210, 1410, 15)),
    ("l4", "NVIDIA L4", 58, 23034, 1.35, 300, 32, 13, 5, 72, 40, _clocks(210, 2040, 15)),
    ("a10", "NVIDIA A10", 72, 23028, 1.32, 600, 32, 20, 8, 150, 100, _clocks(210, 1695, 15)),
    ("a30", "NVIDIA A30", 56, 24576, 1.36, 933, 32, 30, 10, 165, 100, _clocks(210, 1440, 15)),
    ("a40", "NVIDIA A40", 84, 46068, 1.32, 696, 32, 30, 45, 300, 100, _clocks(210, 1740, 15)),
    ("l40s", "NVIDIA L40S", 142, 46068, 1.45, 864, 32, 35, 70, 350, 100, _clocks(210, 2520, 15)),
    ("h100", "NVIDIA H100 80GB HBM3", 132, 81559, 2.2, 3350, 64, 70, 45, 700, 200, _clocks(345, 1980, 15)),
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
_LIKE = {"v100-16gb": "v100", "a100-40gb": "a100"}
GPUS: dict[str, GpuTruth] = {row[0]: replace(GpuTruth(*row), like=_LIKE.get(row[0], "")) for row in _GPUS}

# Columns in the order of ModelTruth: name, fixed, io, work, SMs of the first input, exponent, traffic of weights and
# of an input, kernels, L2 pressure, L2 and DRAM sensitivity, power intensity, MiB of weights and input, launch seconds.
_MODELS = """
resnet50         0.764  0.1281   37.89   28.7  0.872  0.102  0.09    80  0.27  0.19  0.08  1.33    98   48      6
vgg19            0.518  0.1374     113  253.8      0  0.574  0.12    29  0.26  0.05  0.07  1.34   548   64      9
alexnet          0.411  0.0459    6.92  197.5      0  0.244 0.006    20  0.23  0.08  0.13  1.59   233    8      4
ssd-resnet50     1.446  0.3933   165.8  116.7  0.172   0.09  0.25    93  0.28  0.08  0.05  1.27    77  110      8
resnet18          0.42  0.1281   16.67   28.7  0.872 0.0473  0.03    30  0.27  0.19  0.08  1.33    45   24   4.45
resnet101         1.45  0.1281   71.99   28.7  0.872   0.18  0.14   150  0.27  0.19  0.08  1.33   171   70   5.71
resnet152          2.1  0.1281   104.2   28.7  0.872  0.243   0.2   220  0.27  0.19  0.08  1.33   231   96   6.31
inception-v3       1.6  0.1281   32.59     20  0.872 0.0955  0.07   120  0.27  0.19  0.08  1.33    91   56   4.91
googlenet         0.95  0.1281   15.91     18  0.872 0.0283 0.045    70  0.27  0.19  0.08  1.33    27   30   4.27
mobilenet         0.55  0.1281   11.37   28.7  0.872 0.0147  0.12    55  0.27  0.25  0.08  1.06    14   27   4.14
mnasnet           0.55  0.1281   10.99   28.7  0.872 0.0178  0.11    55  0.27  0.24  0.08  1.06    17   26   4.17
efficientnet         1  0.1281   15.91   28.7  0.872 0.0221  0.16    95  0.27  0.28  0.08  1.06    21   36   4.21
densenet121        2.6  0.1281      36   28.7  0.872 0.0325  0.17   230  0.27  0.19  0.08  1.33    31   60   4.31
densenet161        3.1  0.1281   90.94   28.7  0.872  0.115   0.3   300  0.27  0.19  0.08  1.33   110  110    5.1
vgg16             0.46  0.1374   97.15  253.8      0  0.554  0.12    25  0.26  0.05  0.07  1.34   528   60   9.28
yolov5n            1.6     0.4   28.42     45  0.872 0.0084  0.16   110  0.27  0.19  0.08  1.33     8   70   4.08
yolov5s            1.7     0.4   83.36     60  0.872 0.0294  0.25   110  0.27  0.19  0.08  1.33    28  120   4.28
yolov5m            2.2     0.4   238.7     75  0.872 0.0851  0.45   150  0.27  0.19  0.08  1.33    81  210   4.81
yolov5l            2.7     0.4   511.5     90  0.872  0.187  0.75   190  0.27  0.19  0.08  1.33   178  300   5.78
yolov5x            3.2     0.4   947.2    110  0.872  0.348   1.1   230  0.27  0.19  0.08  1.33   331  430   7.31
yolos                3     0.4   265.2     70  0.872  0.124  0.09   200  0.27  0.19   0.2  1.33   118  260   5.18
bert-medium        0.9   0.004   53.09     60    0.3  0.166  0.12    80  0.26  0.05  0.07  1.34   158   14   5.58
bert-base          1.5   0.004   135.6     70    0.3  0.439  0.05   150  0.26  0.05  0.16  1.34   418   26   8.18
bert-large         2.9   0.004   440.5     90    0.3   1.34  0.12   300  0.26  0.05  0.16  1.34  1278   60   16.8
roberta            1.5   0.004   137.8     70    0.3    0.5  0.05   150  0.26  0.05  0.18  1.34   476   26   8.76
vit-base           1.4  0.1374     192    110    0.3  0.346   0.1   140  0.26  0.05  0.07  1.34   330   40    7.3
transformer-mt      42    0.01   170.5      9    0.8    4.2  0.15   900  0.27  0.19   0.3  0.93   168   60   5.68
resnet50-tfs      0.15   0.925   37.89   28.7  0.872  0.102  0.09    80  0.27  0.19  0.08  1.33    98   48      6
inception-v3-tfs  0.29   0.737   32.59     20  0.872 0.0955  0.07   120  0.27  0.19  0.08  1.33    91   56   4.91
ssd-resnet50-tfs  0.26   3.895   165.8  116.7  0.172   0.09  0.25    93  0.28  0.08  0.05  1.27    77  110      8
transformer-tfs  3.375   8.107   443.3     40    0.3    4.2  0.15   900  0.27  0.19   0.3  0.93   168   60   5.68
gpt2                70    0.01   416.8     12    0.8     15   0.5  1600  0.27  0.19  0.35  0.93   498  150   8.98
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
        fixed_ms=base.fixed_ms * scale * draw("fixed", 0.4, 2.0),
        sms_needed_first=draw("width", 15.0, 115.0),
        traffic_gb_weights=memory_mib * 1.05e-3,
        l2_sensitivity=draw("l2", 0.05, 0.25),
        dram_sensitivity=draw("dram", 0.05, 0.3),
        memory_mib_weights=memory_mib,
        memory_mib_per_input=draw("activations", 20.0, 80.0),
        launch_s=4.0 + memory_mib / 100.0,
    )


# --- What holds for a network on one GPU type alone, and how many SMs training a network can use
#
# Where the numbers come from:
#
# * a100: least-squares fits (`python -m benchmarks.calibrate_truth`) to the throughput of one process on five MIG sizes
#   and up to nine batch sizes, published with ParvaGPU (SC'24, MIT licence); slices are
#   `solvers.sim.truth.truth.mig_truth`. Mean error 4 to 7 % by network, worst cell 14 to 38 %.
# * rtx-2080ti: solved for what Morak's paper prints (`lab.claims.morak`): GoogLeNet's throughput and power alone and
#   as four, and the knees of the share. What the paper does not print is an estimate.
# * its last two columns, which GoogLeNet on that type alone has: solved for the two latencies that the paper prints
#   beside those throughputs. Nobody measured copies or gaps; every other pair has none.
# * SMs that training uses: fits to iteration times on MIG slices of an A100 published with MISO (SoCC'22, MIT licence);
#   mean error 2 to 6 % by network and batch size, 8 to 25 % for one number by network, which is what is kept here.

# GPU type, network, fixed, io, work, SMs of the first input, exponent, traffic of weights and of an input,
# power intensity and floor; where they are known, copy and gap of an input.
_TIMES = """
a100  bert-large    0      5.193  104    8.39   0.767  1.34    0  1.34 0.03
a100  densenet121   0      0.0956 54.49  3.573  1      0.0325  0  1.33 0.03
a100  inception-v3  0      0.0928 31.21  2.691  1      0.0955  0  1.33 0.03
a100  mobilenet     0      0.12   22.64  3.892  1      0.0147  0  1.06 0.03
a100  resnet50      0      0.0508 41.97  7.335  1      0.102   0.0588  1.33 0.03
a100  resnet101     0      0      69.15  6.135  1      0.18    0.0297  1.33 0.03
a100  resnet152     0      0      97.44  5.871  1      0.243   0  1.33 0.03
a100  vgg16         0.770  0      55.24  252.4  0      0.554   0.246  1.34 0.03
a100  vgg19         0.979  0      66.6   318.5  0      0.574   0.255  1.34 0.03
rtx-2080ti googlenet 0.95 0.2643 16.79 11  0.872 0.0283 0.045 0.6005 0.6639 0.0248 0.0498
rtx-2080ti mobilenet 0.55 0.2643 12.01 3.5 0.872 0.0147 0.12  0.48   0.6639
rtx-2080ti resnet50  0.764 0.2643 40.01 9  0.872 0.102  0.09  0.6    0.6639
rtx-2080ti resnet101 1.45 0.2643 76.02 9   0.872 0.18   0.14  0.6    0.6639
"""
_TRAINING_SMS = {
    "bert": 120.0,
    "mobilenet": 23.0,
    "resnet": 48.0,
    "deepspeech": 39.0,
    "neumf": 32.0,
    "cyclegan": 139.0,
    "embedding": 32.0,
}
TRAINING_SMS_ELSE = 120.0
"""Estimate for networks that nobody measured: large batches of large inputs fill a GPU."""


_COLUMNS = (
    "fixed_ms", "io_ms_per_input", "work_ms_sm_per_input", "sms_needed_first", "parallel_exponent",
    "traffic_gb_weights", "traffic_gb_per_input", "power_intensity", "power_floor",
    "copy_ms_per_input", "gap_ms_per_input",
)  # fmt: skip
PAIRS: dict[tuple[str, str], dict[str, Any]] = {
    (row[0], key_of(row[1])): dict(zip(_COLUMNS, map(float, row[2:]), strict=False))
    for row in map(str.split, _TIMES.strip().splitlines())
}
"""What of a network's parameters is another on one GPU type."""


@lru_cache(maxsize=4096)
def _on(gpu_name: str, name: str) -> ModelTruth:
    model = model_truth(name)
    return replace(model, **PAIRS.get((gpu_name, key_of(model.name)), {}))


def model_on(gpu: GpuTruth, name: str) -> ModelTruth:
    return _on(gpu.like or gpu.name, name)


@lru_cache(maxsize=1024)
def training_sms(name: str) -> float:
    """SMs that training this network can keep busy."""
    key = key_of(name)
    return next((sms for part, sms in _TRAINING_SMS.items() if part in key), TRAINING_SMS_ELSE)
