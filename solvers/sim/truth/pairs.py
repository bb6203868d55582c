"""What holds for a network on one GPU type alone, and how many SMs training a network can use.

Owns two tables that correct `solvers.sim.truth.catalogue`; a pair without a row is scaled from the V100 as that module
says. Where the numbers come from:

* a100: least-squares fits (`python -m benchmarks.calibrate_truth`) to the throughput of one process on five MIG sizes
  and up to nine batch sizes, published with ParvaGPU (SC'24, MIT licence); slices are
  `solvers.sim.truth.truth.mig_truth`. Mean error 4 to 7 % by network, worst cell 14 to 38 %.
* rtx-2080ti: solved for what Morak's paper prints (`lab.claims.fixtures`): GoogLeNet's throughput and power alone and
  as four, and the knees of the share. What the paper does not print is an estimate.
* its last two columns, which GoogLeNet on that type alone has: solved for the two latencies that the paper prints
  beside those throughputs. Nobody measured copies or gaps; every other pair has none.
* SMs that training uses: fits to iteration times on MIG slices of an A100 published with MISO (SoCC'22, MIT licence);
  mean error 2 to 6 % by network and batch size, 8 to 25 % for one number by network, which is what is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from solvers.sim.truth.catalogue import GpuTruth, ModelTruth, key_of, model_truth

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


@dataclass(frozen=True, slots=True)
class Pair:
    """What of a network's parameters is another on one GPU type."""

    fixed_ms: float
    io_ms_per_input: float
    work_ms_sm_per_input: float
    sms_needed_first: float
    parallel_exponent: float
    traffic_gb_weights: float
    traffic_gb_per_input: float
    power_intensity: float
    power_floor: float
    copy_ms_per_input: float = 0.0
    gap_ms_per_input: float = 0.0


def _pairs() -> dict[tuple[str, str], Pair]:
    rows = (line.split() for line in _TIMES.strip().splitlines())
    return {(row[0], key_of(row[1])): Pair(*(float(column) for column in row[2:])) for row in rows}


PAIRS = _pairs()


@lru_cache(maxsize=4096)
def _on(gpu_name: str, name: str) -> ModelTruth:
    model = model_truth(name)
    pair = PAIRS.get((gpu_name, key_of(model.name)))
    if pair is None:
        return model
    return replace(
        model,
        fixed_ms=pair.fixed_ms,
        io_ms_per_input=pair.io_ms_per_input,
        work_ms_sm_per_input=pair.work_ms_sm_per_input,
        sms_needed_first=pair.sms_needed_first,
        parallel_exponent=pair.parallel_exponent,
        traffic_gb_weights=pair.traffic_gb_weights,
        traffic_gb_per_input=pair.traffic_gb_per_input,
        power_intensity=pair.power_intensity,
        power_floor=pair.power_floor,
        copy_ms_per_input=pair.copy_ms_per_input,
        gap_ms_per_input=pair.gap_ms_per_input,
    )


def model_on(gpu: GpuTruth, name: str) -> ModelTruth:
    """The network as it runs on this GPU type."""
    return _on(gpu.like or gpu.name, name)


@lru_cache(maxsize=1024)
def training_sms(name: str) -> float:
    """SMs that training this network can keep busy."""
    key = key_of(name)
    return next((sms for part, sms in _TRAINING_SMS.items() if part in key), TRAINING_SMS_ELSE)
