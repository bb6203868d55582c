"""Price rows of the catalogue from the list prices of three clouds.

Owns which priced product is which GPU type and the choice of one instance per GPU type, region and way to pay: the
cheapest per GPU. The row of region `default` is the cheapest of the three regions in the east of the United States,
for sites that name their regions otherwise. It refuses instances with a fraction of a GPU: their price buys less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.sources.rows import Row, table
from solvers.domain.device import PriceKind, PriceRow

# Azure's NCv3 has the PCIe board; everything else with 16 GB of V100 in these tables is that one.
_NAMES = {
    ("a100", 40960): "a100-40gb",
    ("a100", 81920): "a100",
    ("a100-40gb", 40960): "a100-40gb",
    ("a100-40gb-sxm", 40960): "a100-40gb",
    ("a100-80gb", 81920): "a100",
    ("a100-80gb-pcie", 81920): "a100-pcie-80gb",
    ("a100-80gb-sxm", 81920): "a100",
    ("a10", 24576): "a10",
    ("a10g", 22888): "a10g",
    ("b200", 183359): "b200",
    ("b300", 275040): "b300",
    ("h100", 81920): "h100",
    ("h100-nvl", 96256): "h100-nvl",
    ("h100-sxm", 81920): "h100",
    ("h200", 144384): "h200",
    ("h200-sxm", 144384): "h200",
    ("l4", 22888): "l4",
    ("l4", 24576): "l4",
    ("l40s", 45776): "l40s",
    ("rtx-pro-4500", 32768): "rtx-pro-4500",
    ("rtx-pro-server-6000", 98304): "rtx-pro-6000",
    ("t4", 16384): "t4",
    ("t4g", 16384): "t4g",
    ("v100", 16384): "v100-pcie-16gb",
    ("v100", 32768): "v100",
}
_CLOUDS = {"aws": "AWS", "azure": "Azure", "gcp": "GCP"}
_DEFAULT_REGIONS = ("us-east-1", "eastus", "us-central1")
_YEAR = 2026


def read_prices(data: Path) -> dict[str, tuple[PriceRow, ...]]:
    """Price rows by GPU type's name. A priced product that is in no table is an error unless it is not NVIDIA's."""
    cheapest: dict[tuple[str, PriceKind, str], PriceRow] = {}
    rows = [row for row in table(data, "gpu-prices", "instances.csv") if row["manufacturer"] == "nvidia"]
    for name, price in (offer for row in rows for offer in _offers(row)):
        key = (name, price.kind, price.region)
        if key not in cheapest or price.usd_per_h < cheapest[key].usd_per_h:
            cheapest[key] = price
    found: dict[str, list[PriceRow]] = {}
    for key in sorted(cheapest):
        found.setdefault(key[0], []).append(cheapest[key])
    return {name: tuple(rows) for name, rows in found.items()}


def _offers(row: Row) -> Iterator[tuple[str, PriceRow]]:
    name = _NAMES[row["gpu"], int(row["gpu_mem_mib"])]
    count = int(row["gpu_count"])
    shared = "" if count == 1 else f" / {count}"
    for kind, column, words in (
        (PriceKind.ON_DEMAND, "usd_per_h_on_demand", "on-demand list price"),
        (PriceKind.SPOT, "usd_per_h_spot", "spot price"),
    ):
        if count < 1 or not row[column]:
            continue
        source = f"{_CLOUDS[row['cloud']]} {row['instance_type']}{shared}, {row['region']}, {words} {_YEAR}"
        regions = [row["region"], *(["default"] if row["region"] in _DEFAULT_REGIONS else [])]
        for region in regions:
            yield (
                name,
                PriceRow(kind=kind, usd_per_h=round(float(row[column]) / count, 4), region=region, source=source),
            )
