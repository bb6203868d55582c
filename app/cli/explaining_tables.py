"""How explanations look: candidates, what binds, ways out, curves.

Owns columns, order and how much is shown. It refuses to word sentences: they come with the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.cli.output import number, rows, usd, word
from app.client import Document
from solvers.errors import InputError

WORKLOADS_SHOWN = 20
ALTERNATIVES_SHOWN = 6
PRICES_SHOWN = 8
_COLUMNS = (
    "workload",
    "GPU",
    "model",
    ">replicas",
    ">share %",
    ">batch",
    ">MHz",
    ">latency ms",
    ">$/h",
    ">$/h more",
    "",
)
_FLEET = frozenset({"gpu", "power_w", "quota_gpu", "memory_gib"})


def candidate_table(told: Sequence[Document]) -> list[Any]:
    """What every workload has (marked) and could have; of the first workloads where there are many."""
    groups: dict[str, list[Document]] = {}
    for item in told:
        groups.setdefault(item["candidate"]["workload"], []).append(item["candidate"])
    lines: list[Sequence[object]] = []
    for workload, items in list(groups.items())[:WORKLOADS_SHOWN]:
        chosen = [item for item in items if item["chosen"]]
        others = [item for item in items if not item["chosen"]]
        lines += [_line(item, f"* {workload}" if index == 0 else "*") for index, item in enumerate(chosen)]
        lines += [
            _line(item, "" if chosen or index else workload) for index, item in enumerate(others[:ALTERNATIVES_SHOWN])
        ]
    if not lines:
        return []
    more = len(groups) - WORKLOADS_SHOWN
    left = [f"and {more} more workloads; headroom explain WORKLOAD shows each"] if more > 0 else []
    return [rows(_COLUMNS, _blank(lines)), *left]


def _line(item: Document, name: str) -> tuple[object, ...]:
    told = ", ".join(dict.fromkeys(_spoken(reason) for reason in item["reasons"]))
    if not item["feasible"]:
        return (name, item["gpu_type"], item["model"], "", "", "", "", "", "", "", told)
    more = item["usd_per_h_more"]
    return (
        name,
        item["gpu_type"],
        item["model"],
        item["replicas"],
        item["share_pct_sm"],
        item["batch"],
        item["clock_mhz_sm"],
        item["latency_ms"] if item["latency_ms"] is not None else "",
        item["usd_per_h"],
        "" if item["chosen"] or more is None else f"{'+' if more > 0 else ''}{number(more)}",
        told,
    )


def _spoken(reason: Document) -> str:
    """A reason in few words, with the numbers that rule something out."""
    facts = {fact["name"]: fact["value"] for fact in reason["facts"]}
    if "usd_per_h_less_at_shadow_prices" in facts:
        return "cheaper only in parts of devices"
    text = str(reason["code"]).replace("_", " ")
    if "latency_ms_best" in facts:
        return f"{text}: {word(facts['latency_ms_best'])} ms at best"
    if "memory_mib_needed" in facts:
        return f"{text}: needs {word(facts['memory_mib_needed'])} MiB"
    return text


def binding_lines(insight: Document) -> list[str]:
    """What of the fleet binds, and what more of it is worth; the dearest first."""
    found = [item for item in insight["prices"] if item["price"]["binding"] and item["price"]["resource"] in _FLEET]
    return _titled("what binds", [*(item["sentence"] for item in _dearest(found)), *_priced_unserved(insight, found)])


def price_lines(insight: Document, workload: str) -> list[str]:
    """What binds one workload: its own promise and rate, and the GPUs it could use."""
    types = {item["candidate"]["gpu_type"] for item in insight["candidates"] if item["candidate"]["feasible"]}
    own = [item for item in insight["prices"] if item["price"]["subject"] == workload]
    fleet = [
        item
        for item in _dearest(insight["prices"])
        if item["price"]["binding"]
        and (item["price"]["subject"] in types or item["price"]["resource"] in ("power_w", "quota_gpu"))
    ]
    told = [item["sentence"] for item in (*own, *fleet)]
    return _titled("what binds", [*told, *_priced_unserved(insight, [*own, *fleet])])


def _priced_unserved(insight: Document, found: Sequence[Document]) -> list[str]:
    """A warning where prices are no money, because somebody stays unserved."""
    short = any(fact["name"] == "workloads_priced_as_unserved" for fact in insight["facts"])
    return (
        ["Some demand stays unserved: these prices count it at its priority, not in money."] if short and found else []
    )


def _dearest(items: Iterable[Document]) -> list[Document]:
    return sorted(items, key=lambda item: -item["price"]["usd_per_h"])[:PRICES_SHOWN]


def way_lines(insight: Document) -> list[str]:
    """What would have to give for those who are short; each line is enough by itself."""
    ways = insight["ways_out"]
    lines = [
        f"{way['workload']}: {way['sentence']}" if way["workload"] else f"all of them: {way['sentence']}"
        for way in ways[: 4 * WORKLOADS_SHOWN]
    ]
    left = next((fact["value"] for fact in insight["facts"] if fact["name"] == "workloads_short_unexplained"), 0)
    if left:
        lines.append(f"not looked into for {left:.0f} more workloads")
    return _titled("what would have to give (each line is enough by itself)", lines)


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"\n{title}", *(f"  {line}" for line in lines)] if lines else []


def curve_table(points: Sequence[Document]) -> Any:
    """What a service's promise costs at several lengths."""
    lines = [
        (
            f"{number(item['limit_ms'])}{' (now)' if item['factor'] == 1.0 else ''}",
            item["cost_usd_per_h"],
            f"{'+' if item['cost_usd_per_h_more'] > 0 else ''}{number(item['cost_usd_per_h_more'])}",
            item["rate_rps_short"] or None,
            ", ".join(item["gpus"]),
        )
        for item in points
    ]
    return rows((">SLO ms", ">$/h of all", ">against now", ">rps short", "served by"), lines)


def forced_line(item: Document) -> str:
    """What the whole plan costs with a service on one type only."""
    more = item["cost_usd_per_h_more"]
    cost = f"Planned with {item['workload']} on {item['gpu_type']} only, everything costs "
    cost += f"{usd(item['cost_usd_per_h'], per_hour=True)}: "
    cost += f"{usd(more, per_hour=True)} more" if more > 0 else "no more than now"
    if item["rate_rps_short"] > 0:
        return f"{cost}, and {number(item['rate_rps_short'])} requests/s of it are not served."
    if item["unserved_more"] > 0:
        return f"{cost}, and others are served less for it."
    return f"{cost}."


def split_question(asked: str) -> tuple[str, str]:
    """`SERVICE:GPU_TYPE` in two. Raises InputError."""
    service, _, gpu_type = asked.rpartition(":")
    if not service or not gpu_type:
        raise InputError("--why-not takes SERVICE:GPU_TYPE")
    return service, gpu_type


def why_not_lines(found: Document) -> list[str]:
    """The answer for people."""
    forced = [forced_line(found["forced"])] if found["forced"] is not None else []
    return _titled(f"why not {found['workload']} on {found['gpu_type']}", [found["sentence"], *forced])


def _blank(lines: Iterable[Sequence[object]]) -> Iterable[Sequence[object]]:
    """Empty cells stay empty in continuation lines, where a dash would only be noise."""
    from rich.text import Text

    for line in lines:
        yield [Text("") if cell == "" else Text(word(cell)) for cell in line]
