"""Rates of services from public data: instances alive of the DLRM cluster, buckets of LLM requests by length, mean
rates of many LLM services.

Owns the reading and the counting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from lab.arena.kinds import Context, Where, rows

DLRM, AZURE = "alibaba-dlrm-2025", "azure-llm-2023"
MUXSERVE = "muxserve-lmsys-rates"
TRACES = {
    "code": (AZURE, "code.csv"),
    "conv": (AZURE, "conv.csv"),
    "mooncake": ("mooncake-conversation", "conversation.csv"),
}
"""Traces of LLM requests with the lengths of each."""
Request = tuple[float, int, int]
"""When, tokens in, tokens out."""


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
    read = {trace: requests(context, ("azure", "traces"), trace) for trace in traces}
    last_s = min(max(row[0] for row in each) for each in read.values())
    return buckets(
        [row for each in read.values() for row in each], edges, bin_s=bin_s, bins=max(1, int(last_s // bin_s))
    )


def requests(context: Context, where: Where, trace: str) -> list[Request]:
    """All requests of one of `TRACES`. Raises InputError where the data is missing."""
    return [
        (float(row["t_s"]), int(row["in_tokens"]), int(row["out_tokens"]))
        for row in rows(context, where, *TRACES[trace])
    ]


def buckets(
    read: list[Request], edges: tuple[tuple[int, ...], tuple[int, ...]], *, bin_s: float, bins: int
) -> list[Bucket]:
    """Requests between edges of prompt and answer lengths, the last of each open, over so many stretches."""
    found: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for row in read:
        found[bisect_left(edges[0], row[1]), bisect_left(edges[1], row[2])].append(row)
    return [
        Bucket(
            name=f"in-{key[0]}-out-{key[1]}",
            input_tokens=max(1.0, sum(row[1] for row in part) / len(part)),
            output_tokens=max(1.0, sum(row[2] for row in part) / len(part)),
            rates_rps=_rates(part, bin_s, bins),
        )
        for key, part in sorted(found.items())
    ]


def _rates(part: list[Request], bin_s: float, bins: int) -> tuple[float, ...]:
    counts = [0] * bins
    for at_s, _, _ in part:
        if int(at_s // bin_s) < bins:
            counts[int(at_s // bin_s)] += 1
    return tuple(count / bin_s for count in counts)


def muxserve_rates(context: Context, where: Where, condense: int) -> list[tuple[str, str, float]]:
    """Services with the LLaMA that their authors gave them and their mean rates. Raises InputError."""
    read = rows(context, where, MUXSERVE, "rates.csv")
    found = [(row["service"], row["model"], float(row["rate_rps"])) for row in read if int(row["condense"]) == condense]
    if not found:
        known = ", ".join(sorted({row["condense"] for row in read}, key=int))
        raise context.refusal((*where, "condense"), f"there are only {known}")
    return sorted(found)
