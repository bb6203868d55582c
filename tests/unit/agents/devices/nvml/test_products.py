"""Products become the GPU types of the catalogue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.devices.nvml.inventory import PRODUCTS, gpu_type_of, product_key, sm_count_of_cores, sm_count_of_product

CATALOGUE = json.loads(
    (Path(__file__).resolve().parents[5] / "app" / "library" / "gpu_types.json").read_text(encoding="utf-8")
)


def catalogue() -> list[dict[str, object]]:
    items = CATALOGUE if isinstance(CATALOGUE, list) else next(v for v in CATALOGUE.values() if isinstance(v, list))
    assert len(items) > 40
    return items


def test_the_table_agrees_with_the_catalogue() -> None:
    for item in catalogue():
        product = str(item["product"])
        assert gpu_type_of(product) == item["name"], product
        assert sm_count_of_product(product) == item["sm_count"], product
    assert {name for name, _ in PRODUCTS.values()} == {str(item["name"]) for item in catalogue()}


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA T4", "t4"),
        ("GeForce RTX 2080 Ti", "rtx-2080ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080ti"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb"),
        ("NVIDIA Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("Graphics Device", "graphics-device"),
        ("(?)", "unknown"),
    ],
)
def test_products_have_types(product: str, gpu_type: str) -> None:
    assert gpu_type_of(product) == gpu_type


def test_an_unknown_product_has_no_sm_count() -> None:
    assert sm_count_of_product("NVIDIA GeForce RTX 3060") is None
    assert len(gpu_type_of("x" * 200)) == 63
    assert product_key("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx-pro-6000-blackwell-server-edition"


@pytest.mark.parametrize(
    ("cores", "capability", "sm_count"),
    [
        (2560, (7, 5), 40),
        (5120, (7, 0), 80),
        (6912, (8, 0), 108),
        (9216, (8, 6), 72),
        (16896, (9, 0), 132),
        (18944, (10, 0), 148),
        (24064, (12, 0), 188),
        (6913, (8, 0), None),
        (0, (8, 0), None),
        (1000, (99, 0), None),
    ],
)
def test_cores_give_sms(cores: int, capability: tuple[int, int], sm_count: int | None) -> None:
    assert sm_count_of_cores(cores, capability) == sm_count
