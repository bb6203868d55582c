"""Rates of services from public data: instances alive of the DLRM cluster, buckets of Azure's LLM requests.

Owns the reading and the counting. It refuses to keep rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from app.arena.kinds import Context
from app.arena.sources import rows

DLRM, AZURE = "alibaba-dlrm-2025", "azure-llm-2023"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Requests of like lengths: mean lengths, and rates over equal stretches."""

    name: str
    input_tokens: float
    output_tokens: float
    rates_rps: tuple[float, ...]


def dlrm_counts(context: Context, services: int) -> dict[str, list[int]]:
    """Instances alive hour by hour, of so many services, the largest. Raises InputError where the data is missing."""
    read = rows(context, ("dlrm",), DLRM, "gpu_instances_per_app_hourly.csv")
    names = [name for name in read[0] if name != "t_h"]
    alive = {name: [int(row[name]) for row in read] for name in names}
    largest = sorted(names, key=lambda name: (-sum(alive[name]), name))[:services]
    return {name: alive[name] for name in largest}


def azure_buckets(
    context: Context, traces: tuple[str, ...], bin_s: float, edges: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[Bucket]:
    """Buckets between edges of prompt and answer lengths, the last of each open. Raises InputError."""
    found: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
    last_s = float("inf")
    for trace in traces:
        read = [
            (float(row["t_s"]), int(row["in_tokens"]), int(row["out_tokens"]))
            for row in rows(context, ("azure", "traces"), AZURE, f"{trace}.csv")
        ]
        last_s = min(last_s, max(row[0] for row in read))
        for row in read:
            found[bisect_left(edges[0], row[1]), bisect_left(edges[1], row[2])].append(row)
    bins = max(1, int(last_s // bin_s))
    return [
        Bucket(
            name=f"in-{key[0]}-out-{key[1]}",
            input_tokens=max(1.0, sum(row[1] for row in part) / len(part)),
            output_tokens=max(1.0, sum(row[2] for row in part) / len(part)),
            rates_rps=_rates(part, bin_s, bins),
        )
        for key, part in sorted(found.items())
    ]


def _rates(part: list[tuple[float, int, int]], bin_s: float, bins: int) -> tuple[float, ...]:
    counts = [0] * bins
    for at_s, _, _ in part:
        if int(at_s // bin_s) < bins:
            counts[int(at_s // bin_s)] += 1
    return tuple(count / bin_s for count in counts)
