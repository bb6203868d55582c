"""Which devices this host has, and everything about them that does not change while it runs, read once.

Devices are known by UUID only: the driver's index is kept as a number to show. A GPU in MIG mode is no device, its MIG
devices are. A GPU that cannot be opened is left out with a note instead of failing the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from agents.devices.nvml.binding import Nvml
from agents.errors import DeviceError, DriverError, NotFoundError, OutOfRangeError
from agents.wire import DeviceInventory, mirrored

# --- Which GPU type a product name means, and how many SMs it has where the driver does not tell
#
# A product that is not listed becomes a type named after itself; its SM count is then unknown unless the driver or a
# probe tells.


NAME_LENGTH_MAX = 63

PRODUCTS: dict[str, tuple[str, int]] = {
    "a10": ("a10", 72),
    "a100-80gb-pcie": ("a100-pcie-80gb", 108),
    "a100-pcie-40gb": ("a100-pcie-40gb", 108),
    "a100-sxm4-40gb": ("a100-40gb", 108),
    "a100-sxm4-80gb": ("a100", 108),
    "a10g": ("a10g", 80),
    "a16": ("a16", 10),
    "a2": ("a2", 10),
    "a30": ("a30", 56),
    "a40": ("a40", 84),
    "b200": ("b200", 148),
    "b300-sxm6-ac": ("b300", 148),
    "gh200-480gb": ("gh200", 132),
    "gtx-1080-ti": ("gtx-1080ti", 28),
    "h100-80gb-hbm3": ("h100", 132),
    "h100-nvl": ("h100-nvl", 132),
    "h100-pcie": ("h100-pcie", 114),
    "h200": ("h200", 132),
    "k80": ("k80", 13),
    "l4": ("l4", 58),
    "l40": ("l40", 142),
    "l40s": ("l40s", 142),
    "p100-pcie-16gb": ("p100", 56),
    "p100-sxm2-16gb": ("p100-sxm2", 56),
    "p4": ("p4", 20),
    "p40": ("p40", 30),
    "quadro-rtx-6000": ("quadro-rtx-6000", 72),
    "quadro-rtx-8000": ("quadro-rtx-8000", 72),
    "rtx-2060": ("rtx-2060", 30),
    "rtx-2060-super": ("rtx-2060-super", 34),
    "rtx-2080-ti": ("rtx-2080ti", 68),
    "rtx-3080": ("rtx-3080", 68),
    "rtx-3080-ti": ("rtx-3080ti", 80),
    "rtx-3090": ("rtx-3090", 82),
    "rtx-4090": ("rtx-4090", 128),
    "rtx-5090": ("rtx-5090", 170),
    "rtx-6000-ada-generation": ("rtx-6000-ada", 142),
    "rtx-a4000": ("rtx-a4000", 48),
    "rtx-a5000": ("rtx-a5000", 64),
    "rtx-a6000": ("rtx-a6000", 84),
    "rtx-pro-4500-blackwell-server-edition": ("rtx-pro-4500", 82),
    "rtx-pro-6000-blackwell-server-edition": ("rtx-pro-6000", 188),
    "t4": ("t4", 40),
    "t4g": ("t4g", 40),
    "titan-x-pascal": ("titan-x-pascal", 28),
    "v100-pcie-16gb": ("v100-pcie-16gb", 80),
    "v100-sxm2-16gb": ("v100-16gb", 80),
    "v100-sxm2-32gb": ("v100", 80),
    "a100-sxm-80gb": ("a100", 108),
}
"""By the product's key: GPU type, SMs of the whole GPU."""

CORES_PER_SM = {
    (3,): 192,
    (5,): 128,
    (6, 0): 64,
    (6,): 128,
    (7,): 64,
    (8, 0): 64,
    (8,): 128,
    (9,): 128,
    (10,): 128,
    (12,): 128,
}
"""CUDA cores of an SM by compute capability, or by its major number."""


def product_key(product: str) -> str:
    """A product's name without its maker and brand, as one word: "NVIDIA GeForce RTX 3090" is rtx-3090."""
    whole = product.lower().partition(" mig ")[0]
    words = re.sub(r"[^a-z0-9.]+", "-", whole).strip("-.")
    return re.sub(r"^(?:nvidia-|tesla-|geforce-)+", "", words)


def gpu_type_of(product: str) -> str:
    """Name of the GPU type in the catalogue, or the product's own name in the catalogue's alphabet."""
    key = product_key(product)
    known = PRODUCTS.get(key)
    return known[0] if known is not None else (key[:NAME_LENGTH_MAX].strip("-.") or "unknown")


def sm_count_of_product(product: str) -> int | None:
    """SMs of a whole GPU of this product; None when it is not listed."""
    known = PRODUCTS.get(product_key(product))
    return None if known is None else known[1]


def sm_count_of_cores(core_count: int, compute_capability: tuple[int, int]) -> int | None:
    """SMs from CUDA cores; None for architectures this table does not know, and for numbers that do not divide."""
    per_sm = CORES_PER_SM.get(compute_capability) or CORES_PER_SM.get(compute_capability[:1])
    if per_sm is None or core_count <= 0 or core_count % per_sm:
        return None
    return core_count // per_sm


MIB = 1 << 20
SLICE = "it is a slice: this belongs to its whole GPU"
MIG_ENABLED = 1
CLOCK_SM = 1
VOLTA = 7
"""Its first compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFacts:
    """A device as it was found. `board` is the handle of the whole GPU, `handle` the device's own; for a GPU that is
    not cut they are the same.
    """

    uuid: str
    board: object
    handle: object
    index: int
    product: str
    memory_mib: int
    sm_count: int | None
    sm_count_source: str
    clocks_mhz_sm: tuple[int, ...]
    power_limit_w_min: float
    power_limit_w_max: float
    power_limit_w_default: float | None
    driver_version: str
    cuda_version: int
    """13040 is 13.4; 0 where the driver tells none."""
    capabilities: dict[str, str]
    parent_uuid: str | None = None
    mig_profile: str | None = None
    gpu_instance: int | None = None

    @property
    def sliced(self) -> bool:
        return self.parent_uuid is not None

    def inventory(self) -> DeviceInventory:
        if self.sm_count is None:
            raise DriverError(f"{self.uuid}: its number of SMs is not known")
        return mirrored(DeviceInventory, self, gpu_type=gpu_type_of(self.product), capabilities=dict(self.capabilities))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevices:
    """What a look at the host gave: the devices, and a note for everything that is left out."""

    devices: tuple[BoardFacts, ...]
    notes: tuple[str, ...]


def look(nvml: Nvml) -> FoundDevices:
    devices: list[BoardFacts] = []
    notes: list[str] = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        try:
            board = nvml.call("nvmlDeviceGetHandleByIndex", index)
            found = _devices_of(nvml, board, index)
        except DeviceError as error:
            notes.append(f"GPU {index} is left out: {error}")
            continue
        devices.extend(found)
        if not found:
            notes.append(f"GPU {index} is left out: MIG is on and it has no MIG devices")
    return FoundDevices(devices=tuple(devices), notes=tuple(notes))


def _devices_of(nvml: Nvml, board: object, index: int) -> list[BoardFacts]:
    whole = _whole(nvml, board, index)
    mig_mode = nvml.maybe("nvmlDeviceGetMigMode", board)
    return [whole] if mig_mode is None or mig_mode[0] != MIG_ENABLED else _slices(nvml, whole)


def _whole(nvml: Nvml, board: object, index: int) -> BoardFacts:
    product = str(nvml.call("nvmlDeviceGetName", board))
    sm_count, source = _sm_count(nvml, board, product)
    clocks = _clocks(nvml, board)
    low_mw, high_mw, default_mw = _power_range(nvml, board)
    return BoardFacts(
        uuid=str(nvml.call("nvmlDeviceGetUUID", board)),
        board=board,
        handle=board,
        index=index,
        product=product,
        memory_mib=_memory_mib(nvml, board),
        sm_count=sm_count,
        sm_count_source=source,
        clocks_mhz_sm=clocks or _one_clock(nvml, board),
        power_limit_w_min=low_mw / 1000.0,
        power_limit_w_max=high_mw / 1000.0,
        power_limit_w_default=None if default_mw is None else default_mw / 1000.0,
        driver_version=str(nvml.call("nvmlSystemGetDriverVersion")),
        cuda_version=int(nvml.maybe("nvmlSystemGetCudaDriverVersion_v2") or 0),
        capabilities=_capabilities(nvml, board, listed=bool(clocks), power=default_mw is not None),
    )


def _slices(nvml: Nvml, whole: BoardFacts) -> list[BoardFacts]:
    """MIG devices of a GPU. Empty slots answer that there is nothing."""
    found = []
    for slot in range(nvml.maybe("nvmlDeviceGetMaxMigDeviceCount", whole.board) or 0):
        try:
            handle = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", whole.board, slot)
        except (NotFoundError, OutOfRangeError):
            continue
        attributes = nvml.call("nvmlDeviceGetAttributes", handle)
        capabilities = whole.capabilities | dict.fromkeys(("set_clock", "set_power"), SLICE)
        found.append(
            replace(
                whole,
                uuid=str(nvml.call("nvmlDeviceGetUUID", handle)),
                handle=handle,
                memory_mib=_memory_mib(nvml, handle),
                sm_count=int(attributes.multiprocessorCount),
                sm_count_source="attributes",
                capabilities=capabilities | {"set_persistence": SLICE, "set_compute_mode": ""},
                parent_uuid=whole.uuid,
                mig_profile=_profile(nvml, handle, attributes),
                gpu_instance=int(nvml.call("nvmlDeviceGetGpuInstanceId", handle)),
            )
        )
    return found


def _profile(nvml: Nvml, handle: object, attributes: Any) -> str:
    """A slice's geometry, which the driver writes at the end of its name: 1g.5gb, or 1c.3g.20gb for a part of it."""
    named = str(nvml.call("nvmlDeviceGetName", handle)).partition(" MIG ")[2]
    if named:
        return named
    slices, compute = int(attributes.gpuInstanceSliceCount), int(attributes.computeInstanceSliceCount)
    whole = f"{slices}g.{round(attributes.memorySizeMB / 1024)}gb"
    return whole if compute == slices else f"{compute}c.{whole}"


def _sm_count(nvml: Nvml, board: object, product: str) -> tuple[int | None, str]:
    """SMs of a whole GPU and who says so. Drivers tell CUDA cores at best; the table is for those that do not."""
    cores = nvml.maybe("nvmlDeviceGetNumGpuCores", board)
    capability = nvml.maybe("nvmlDeviceGetCudaComputeCapability", board)
    if cores is not None and capability is not None:
        counted = sm_count_of_cores(int(cores), (int(capability[0]), int(capability[1])))
        if counted is not None:
            return counted, "cores"
    return sm_count_of_product(product), "table"


def _memory_mib(nvml: Nvml, handle: object) -> int:
    """What processes can have: without what the driver keeps for itself, where it says how much that is."""
    found = nvml.maybe("nvmlDeviceGetMemoryInfo", handle, version=nvml.constant("nvmlMemory_v2"))
    if found is not None:
        return int((found.total - found.reserved) // MIB)
    return int(nvml.call("nvmlDeviceGetMemoryInfo", handle).total // MIB)


def _clocks(nvml: Nvml, board: object) -> tuple[int, ...]:
    """SM clocks at the highest memory clock: lower memory clocks come with few of them. Rising."""
    memory_clocks = nvml.maybe("nvmlDeviceGetSupportedMemoryClocks", board)
    if not memory_clocks:
        return ()
    return tuple(sorted(set(nvml.maybe("nvmlDeviceGetSupportedGraphicsClocks", board, max(memory_clocks)) or ())))


def _one_clock(nvml: Nvml, board: object) -> tuple[int, ...]:
    """The highest clock, where there is no table; it cannot be locked then."""
    found = nvml.maybe("nvmlDeviceGetMaxClockInfo", board, CLOCK_SM)
    return () if found is None else (int(found),)


def _power_range(nvml: Nvml, board: object) -> tuple[int, int, int | None]:
    """Lowest, highest and default limit, mW; without limits to set, what is enforced and None."""
    bounds = nvml.maybe("nvmlDeviceGetPowerManagementLimitConstraints", board)
    default = nvml.maybe("nvmlDeviceGetPowerManagementDefaultLimit", board)
    if bounds is not None and default is not None:
        return int(bounds[0]), int(bounds[1]), int(default)
    enforced = int(nvml.maybe("nvmlDeviceGetEnforcedPowerLimit", board) or 0)
    return enforced, enforced, None


def _capabilities(nvml: Nvml, board: object, *, listed: bool, power: bool) -> dict[str, str]:
    """What the device can do whoever asks: '' or why not. Whether this process may is for the setters to say."""
    major = (nvml.maybe("nvmlDeviceGetCudaComputeCapability", board) or (0, 0))[0]
    mig = nvml.maybe("nvmlDeviceGetMigMode", board)
    gpm = nvml.maybe("nvmlGpmQueryDeviceSupport", board)
    persistence = nvml.maybe("nvmlDeviceGetPersistenceMode", board)
    return {
        "set_clock": "" if listed and major >= VOLTA else "this product's SM clock cannot be locked",
        "set_power": "" if power else "this product's power limit cannot be set",
        "set_compute_mode": "",
        "set_persistence": "" if persistence is not None else "this driver has no persistence mode",
        "mps": "" if major >= VOLTA else "shares under MPS need Volta or newer",
        "mig": "this product has no MIG" if mig is None else "" if mig[0] == MIG_ENABLED else "MIG is off",
        "gpm": "" if gpm is not None and gpm.isSupportedDevice else "GPM needs Hopper or newer",
    }
