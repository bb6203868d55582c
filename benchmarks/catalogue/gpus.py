"""Specifications of GPU products, one row each, as the vendor's data sheets give them.

Rates are dense (no sparsity): FP32 of the ordinary cores, TF32 and FP16 of the tensor cores with FP32 accumulation
where they exist. Products without tensor cores have the FP16 rate of their ordinary cores, which is far below FP32 on
P4, P40, GTX 10 and TITAN X (nobody uses it there) and FP32's own on the K80. Memory is what NVML reports, with ECC
where it is on by default. A board with several GPUs (K80, A16) is listed per GPU.

Estimates, not facts of data sheets: idle power; the lowest power limit (of a few products the vendor's tool shows
other values on other boards); the TDP of one GPU of a K80 or A16; the lowest SM clock and the step between clocks,
which are those of the product line; everything of the B300 and the RTX PRO 4500 but memory, bandwidth and TDP.
"""

from __future__ import annotations

from dataclasses import dataclass

from solvers.domain.device import GpuType, MigProfile, PriceRow
from solvers.domain.ids import GpuTypeName

# name | product (as NVML names it) | SMs | memory MiB | TDP, idle, lowest, highest limit W |
# DRAM GB/s, host link GB/s per direction | FP32, TF32, FP16 TFLOPS | SM clock low-high/step | MPS clients | MIG table
_TABLE = """
k80              | Tesla K80                       |  13 |  11441 |  150  26 100  150 |  240  16 |  4.37     -   4.37 | 562-875/13    | 16 |
p4               | Tesla P4                        |  20 |   7611 |   75   7  60   75 |  192  16 |   5.5     -  0.086 | 455-1531/12.6 | 16 |
p40              | Tesla P40                       |  30 |  22919 |  250  12 125  250 |  346  16 | 11.76     -  0.183 | 544-1531/21   | 16 |
p100             | Tesla P100-PCIE-16GB            |  56 |  16280 |  250  26 125  250 |  732  16 |   9.3     -   18.7 | 544-1328/14   | 16 |
p100-sxm2        | Tesla P100-SXM2-16GB            |  56 |  16280 |  300  30 150  300 |  732  16 |  10.6     -   21.2 | 544-1480/13   | 16 |
titan-x-pascal   | TITAN X (Pascal)                |  28 |  12196 |  250  15 125  300 |  480  16 |  10.97    -  0.171 | 139-1911/12.7 | 16 |
gtx-1080ti       | GeForce GTX 1080 Ti             |  28 |  11178 |  250  12 125  300 |  484  16 |  11.34    -  0.177 | 139-1911/12.7 | 16 |
v100             | Tesla V100-SXM2-32GB            |  80 |  32768 |  300  25 150  300 |  900  16 |  15.7     -  125   | 135-1530/7.5  | 48 |
v100-16gb        | Tesla V100-SXM2-16GB            |  80 |  16384 |  300  25 150  300 |  900  16 |  15.7     -  125   | 135-1530/7.5  | 48 |
v100-pcie-16gb   | Tesla V100-PCIE-16GB            |  80 |  16384 |  250  24 100  250 |  900  16 |  14       -  112   | 135-1380/7.5  | 48 |
t4               | Tesla T4                        |  40 |  15360 |   70  10  60   70 |  320  16 |   8.1     -   65   | 300-1590/15   | 48 |
t4g              | NVIDIA T4G                      |  40 |  15360 |   70  10  60   70 |  320  16 |   8.1     -   65   | 300-1590/15   | 48 |
rtx-2060         | GeForce RTX 2060                |  30 |   6144 |  160   8 125  160 |  336  16 |   6.45    -   25.8 | 300-2100/15   | 48 |
rtx-2060-super   | GeForce RTX 2060 SUPER          |  34 |   8192 |  175   9 125  175 |  448  16 |   7.18    -   28.7 | 300-2100/15   | 48 |
rtx-2080ti       | GeForce RTX 2080 Ti             |  68 |  11264 |  250  15 100  250 |  616  16 |  13.45    -   53.8 | 300-2100/15   | 48 |
quadro-rtx-6000  | Quadro RTX 6000                 |  72 |  24576 |  260  15 100  260 |  672  16 |  16.3     -  130.5 | 300-2100/15   | 48 |
quadro-rtx-8000  | Quadro RTX 8000                 |  72 |  49152 |  260  15 100  260 |  672  16 |  16.3     -  130.5 | 300-2100/15   | 48 |
a2               | NVIDIA A2                       |  10 |  15356 |   60   5  40   60 |  200  16 |   4.5     9   18   | 210-1770/15   | 48 |
a10              | NVIDIA A10                      |  72 |  23028 |  150  20 100  150 |  600  32 |  31.2  62.5  125   | 210-1695/15   | 48 |
a10g             | NVIDIA A10G                     |  80 |  23028 |  300  20 100  300 |  600  32 |  35      35   70   | 210-1710/15   | 48 |
a16              | NVIDIA A16                      |  10 |  15356 | 62.5   6  40 62.5 |  200   8 |   4.5     9   17.9 | 210-1755/15   | 48 |
a30              | NVIDIA A30                      |  56 |  24576 |  165  30 100  165 |  933  32 |  10.3    82  165   | 210-1440/15   | 48 | a30
a40              | NVIDIA A40                      |  84 |  46068 |  300  30 100  300 |  696  32 |  37.4  74.8  149.7 | 210-1740/15   | 48 |
a100             | NVIDIA A100-SXM4-80GB           | 108 |  81920 |  400  50 100  400 | 2039  32 |  19.5   156  312   | 210-1410/15   | 48 | a100-80
a100-40gb        | NVIDIA A100-SXM4-40GB           | 108 |  40960 |  400  50 100  400 | 1555  32 |  19.5   156  312   | 210-1410/15   | 48 | a100-40
a100-pcie-40gb   | NVIDIA A100-PCIE-40GB           | 108 |  40960 |  250  35 150  250 | 1555  32 |  19.5   156  312   | 210-1410/15   | 48 | a100-40
a100-pcie-80gb   | NVIDIA A100 80GB PCIe           | 108 |  81920 |  300  45 150  300 | 1935  32 |  19.5   156  312   | 210-1410/15   | 48 | a100-80
rtx-a4000        | NVIDIA RTX A4000                |  48 |  16376 |  140  10 100  140 |  448  32 |  19.2  38.3   76.7 | 210-2100/15   | 48 |
rtx-a5000        | NVIDIA RTX A5000                |  64 |  24564 |  230  15 100  230 |  768  32 |  27.8  55.6  111.1 | 210-2100/15   | 48 |
rtx-a6000        | NVIDIA RTX A6000                |  84 |  49140 |  300  20 100  300 |  768  32 |  38.7  77.4  154.8 | 210-2100/15   | 48 |
rtx-3080         | NVIDIA GeForce RTX 3080         |  68 |  10240 |  320  20 100  320 |  760  32 |  29.8  29.8   59.5 | 210-2100/15   | 48 |
rtx-3080ti       | NVIDIA GeForce RTX 3080 Ti      |  80 |  12288 |  350  20 100  350 |  912  32 |  34.1  34.1   68.2 | 210-2100/15   | 48 |
rtx-3090         | NVIDIA GeForce RTX 3090         |  82 |  24576 |  350  25 100  350 |  936  32 |  35.6  35.6   71   | 210-2100/15   | 48 |
l4               | NVIDIA L4                       |  58 |  23034 |   72  13  40   72 |  300  32 |  30.3  60.5  121   | 210-2040/15   | 48 |
l40              | NVIDIA L40                      | 142 |  46068 |  300  35 100  300 |  864  32 |  90.5  90.5  181   | 210-2490/15   | 48 |
l40s             | NVIDIA L40S                     | 142 |  46068 |  350  35 100  350 |  864  32 |  91.6   183  362   | 210-2520/15   | 48 |
rtx-4090         | NVIDIA GeForce RTX 4090         | 128 |  24564 |  450  20 150  450 | 1008  32 |  82.6  82.6  165.2 | 210-3105/15   | 48 |
rtx-6000-ada     | NVIDIA RTX 6000 Ada Generation  | 142 |  49140 |  300  20 100  300 |  960  32 |  91.1 182.1  364.2 | 210-3105/15   | 48 |
h100             | NVIDIA H100 80GB HBM3           | 132 |  81559 |  700  70 200  700 | 3350  64 |  66.9 494.7  989.4 | 345-1980/15   | 48 | h100
h100-pcie        | NVIDIA H100 PCIe                | 114 |  81559 |  350  50 200  350 | 2039  64 |  51.2   378  756   | 210-1755/15   | 48 | h100-pcie
h100-nvl         | NVIDIA H100 NVL                 | 132 |  95830 |  400  60 200  400 | 3938  64 |    60 417.5  835   | 345-1980/15   | 48 | h100-96
gh200            | NVIDIA GH200 480GB              | 132 |  97871 |  900  80 200  900 | 4000 450 |    67 494.7  989.4 | 345-1980/15   | 48 | h100-96
h200             | NVIDIA H200                     | 132 | 143771 |  700  75 200  700 | 4800  64 |  66.9 494.7  989.4 | 345-1980/15   | 48 | h200
b200             | NVIDIA B200                     | 148 | 183359 | 1000 140 200 1000 | 7700  64 |    75  1125 2250   | 120-1965/15   | 48 | b200
b300             | NVIDIA B300 SXM6 AC             | 148 | 275040 | 1100 150 200 1100 | 7700 128 |    75  1125 2250   | 120-1965/15   | 48 |
rtx-5090         | NVIDIA GeForce RTX 5090         | 170 |  32607 |  575  25 400  575 | 1792  64 | 104.8 104.8  209.5 | 180-3090/15   | 48 |
rtx-pro-4500     | NVIDIA RTX PRO 4500 Blackwell Server Edition | 82 | 32623 | 165 15 100 165 | 800 64 | 50 100 200       | 180-2610/15   | 48 |
rtx-pro-6000     | NVIDIA RTX PRO 6000 Blackwell Server Edition | 188 | 97887 | 600 35 300 600 | 1597 64 | 120 251.9 503.8 | 180-2430/15   | 48 | rtx-pro-6000
"""  # noqa: E501

# name, SMs, memory MiB, how many at most
_MIG = {
    "a30": "1g.6gb 14 5952 4, 2g.12gb 28 11968 2, 4g.24gb 56 24000 1",
    "a100-40": "1g.5gb 14 4864 7, 1g.10gb 14 9984 4, 2g.10gb 28 9984 3, 3g.20gb 42 20096 2, 4g.20gb 56 20096 1, "
    "7g.40gb 98 40448 1",
    "a100-80": "1g.10gb 14 9728 7, 1g.20gb 14 19968 4, 2g.20gb 28 19968 3, 3g.40gb 42 40448 2, 4g.40gb 56 40448 1, "
    "7g.80gb 98 80896 1",
    "h100": "1g.10gb 16 9984 7, 1g.20gb 26 20096 4, 2g.20gb 32 20096 3, 3g.40gb 60 40448 2, 4g.40gb 64 40448 1, "
    "7g.80gb 132 80896 1",
    "h100-pcie": "1g.10gb 14 9984 7, 1g.20gb 22 20096 4, 2g.20gb 28 20096 3, 3g.40gb 46 40448 2, 4g.40gb 56 40448 1, "
    "7g.80gb 114 80896 1",
    "h100-96": "1g.12gb 16 11264 7, 1g.24gb 26 22528 4, 2g.24gb 32 22528 3, 3g.48gb 60 47104 2, 4g.48gb 64 47104 1, "
    "7g.96gb 132 95232 1",
    "h200": "1g.18gb 16 16384 7, 1g.35gb 26 33280 4, 2g.35gb 32 33280 3, 3g.71gb 60 71168 2, 4g.71gb 64 71168 1, "
    "7g.141gb 132 143360 1",
    "b200": "1g.23gb 18 22016 7, 1g.45gb 30 44544 4, 2g.45gb 36 44544 3, 3g.90gb 70 90112 2, 4g.90gb 72 90112 1, "
    "7g.180gb 148 182272 1",
    "rtx-pro-6000": "1g.24gb 46 24192 4, 2g.48gb 94 48512 2, 4g.96gb 188 97216 1",
}


@dataclass(frozen=True)
class _Row:
    name: str
    product: str
    sm_count: int
    memory_mib: int
    power_w: tuple[float, ...]
    links: tuple[float, ...]
    rates: tuple[float | None, ...]
    clocks: str
    mps_clients: int
    mig: str


def _rows() -> list[_Row]:
    rows = []
    for line in _TABLE.strip().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        rates = tuple(None if cell == "-" else float(cell) for cell in cells[6].split())
        rows.append(
            _Row(
                name=cells[0],
                product=cells[1],
                sm_count=int(cells[2]),
                memory_mib=int(cells[3]),
                power_w=tuple(float(cell) for cell in cells[4].split()),
                links=tuple(float(cell) for cell in cells[5].split()),
                rates=rates,
                clocks=cells[7],
                mps_clients=int(cells[8]),
                mig=cells[9],
            )
        )
    return rows


def _clocks(text: str) -> tuple[int, ...]:
    span, step = text.split("/")
    low, high = (int(part) for part in span.split("-"))
    clocks = [int(low + index * float(step)) for index in range(int((high - low) / float(step)) + 1)]
    return (*clocks, *(() if clocks[-1] == high else (high,)))


def _mig(text: str) -> tuple[MigProfile, ...]:
    profiles = []
    for part in text.split(","):
        name, sms, memory_mib, most = part.split()
        profiles.append(MigProfile(name=name, sm_count=int(sms), memory_mib=int(memory_mib), instances_max=int(most)))
    return tuple(profiles)


def gpu_types(prices: dict[str, tuple[PriceRow, ...]]) -> tuple[GpuType, ...]:
    """Every product of the table in rising order of its name, with its prices (by name; none where there are none)."""
    return tuple(
        GpuType(
            name=GpuTypeName(row.name),
            product=row.product,
            sm_count=row.sm_count,
            memory_mib=row.memory_mib,
            tdp_w=row.power_w[0],
            idle_w=row.power_w[1],
            power_limit_w_min=row.power_w[2],
            power_limit_w_max=row.power_w[3],
            memory_bandwidth_gb_per_s=row.links[0],
            pcie_bandwidth_gb_per_s=row.links[1],
            fp32_tflops=row.rates[0] or 0.0,
            tf32_tflops=row.rates[1],
            fp16_tflops=row.rates[2] or 0.0,
            clocks_mhz_sm=_clocks(row.clocks),
            mps_clients_max=row.mps_clients,
            mig_profiles=_mig(_MIG[row.mig]) if row.mig else (),
            prices=prices.get(row.name, ()),
        )
        for row in sorted(_rows(), key=lambda row: row.name)
    )
