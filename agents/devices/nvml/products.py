"""Which GPU type a product name means, and how many SMs it has where the driver does not tell.

Owns the names: drivers spell one product in several ways ("Tesla T4", "NVIDIA T4"), the control plane knows GPU types
by the names of its catalogue (a test holds this table against it). A product that is not listed becomes a type named
after itself; its SM count is then unknown unless the driver or a probe tells.
"""

from __future__ import annotations

import re

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

MEMORY_LOCK_COSTLY = frozenset(("rtx-5090",))
"""GPU types on which a lower memory clock was reported to cost 16 to 32 % without any sign of it."""

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
