"""How a plan looks: its head, what each workload got and why, what is left short.

Owns the layout for people of what a plan itself says. It refuses to word reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.cli.output import rows, usd, word
from app.client import Document

_ALTERNATIVES_SHOWN = 6


def plan_head(summary: Document) -> list[Any]:
    """Which plan, whether it stands, what it costs and how far from the best it can be."""
    cost, bound = summary["cost_usd_per_h"], summary["bound_usd_per_h"]
    gap = f", at most {100 * (cost - bound) / cost:.1f} % above the optimum" if bound is not None and cost > 0 else ""
    stands = f"generation {summary['generation']}" if summary["generation"] is not None else summary["state"]
    return [f"plan {summary['id']}", f"{stands}, by {summary['planner']}, {usd(cost, per_hour=True)}{gap}"]


_CHOICE_COLUMNS = ("workload", "GPU", ">replicas", ">share %", ">batch", ">latency ms", ">capacity rps", ">$/h", "")


def choice_table(explained: Document) -> Any:
    """What each workload got, marked, and below it what else was looked at and why it was not taken."""
    lines: list[Sequence[object]] = []
    for workload, items in _by_workload(explained["assignments"]):
        others = _distinct_reasons(items, "alternatives")
        cost = next((facts["chosen_usd_per_h"] for _, facts in others if "chosen_usd_per_h" in facts), None)
        for index, (gpu_type, replicas) in enumerate(_by_gpu_type(items)):
            name = f"* {workload}" if index == 0 else "*"
            lines.append((name, *_chosen(gpu_type, replicas), cost if index == 0 else "", _verdict(replicas)))
        lines.extend(_not_chosen(reason, facts) for reason, facts in others[:_ALTERNATIVES_SHOWN])
    return rows(_CHOICE_COLUMNS, _blank(lines))


def _chosen(gpu_type: str, replicas: Sequence[Document]) -> tuple[object, ...]:
    assignments = [item["assignment"] for item in replicas]
    shares = sorted({item["share_pct_sm"] for item in assignments})
    batches = sorted({item["batch"] for item in assignments})
    latencies = [item["latency_ms_planned"] for item in assignments if item["latency_ms_planned"] is not None]
    serves = assignments[0]["kind"] == "service"
    return (
        gpu_type,
        len(replicas),
        "/".join(map(str, shares)),
        "/".join(map(str, batches)) if serves else "",
        max(latencies, default=""),
        sum(item["capacity_rps"] for item in assignments) if serves else "",
    )


def _verdict(replicas: Iterable[Document]) -> str:
    told = _distinct_reasons(replicas, "why")
    codes = [_spoken(reason["code"]) for reason, _ in told]
    sources = [f"not measured: {facts['profile_source']}" for _, facts in told if "profile_source" in facts]
    return ", ".join(dict.fromkeys((*codes, *sources)))


def _not_chosen(reason: Document, facts: Document) -> tuple[object, ...]:
    shown = (
        facts.get(name, "") for name in ("replicas", "share_pct_sm", "batch", "latency_ms", "capacity_rps", "usd_per_h")
    )
    return ("", reason["subject"], *shown, _spoken(reason["code"]))


def _distinct_reasons(items: Iterable[Document], field: str) -> list[tuple[Document, Document]]:
    """Reasons of several replicas, each once, in order, with their facts by name."""
    found: dict[str, tuple[Document, Document]] = {}
    for item in items:
        for told in item[field]:
            facts = {fact["name"]: fact["value"] for fact in told["reason"]["facts"]}
            found.setdefault(told["sentence"], (told["reason"], facts))
    return list(found.values())


def _spoken(code: str) -> str:
    return code.replace("_", " ")


def _blank(lines: Iterable[Sequence[object]]) -> Iterable[Sequence[object]]:
    """Empty cells stay empty in continuation lines, where a dash would only be noise."""
    from rich.text import Text

    for line in lines:
        yield [Text("") if cell == "" else Text(word(cell)) for cell in line]


def gap_table(explained: Document) -> list[Any]:
    """What is left short, and what blocks it."""
    gaps = explained["unplaced"]
    if not gaps:
        return []
    lines = [
        (gap["workload"], gap["rate_rps_short"] or None, " ".join(told["sentence"] for told in gap["why"]))
        for gap in gaps
    ]
    return [rows(("without a place", ">rps short", "what blocks it"), lines)]


def sentences(items: Iterable[Document], field: str) -> list[str]:
    """Sentences of several replicas, each once, in order."""
    return list(dict.fromkeys(told["sentence"] for item in items for told in item[field]))


def _by_workload(items: Iterable[Document]) -> list[tuple[str, list[Document]]]:
    return _grouped(items, lambda item: str(item["assignment"]["workload"]))


def _by_gpu_type(items: Iterable[Document]) -> list[tuple[str, list[Document]]]:
    return _grouped(items, lambda item: str(item["gpu_type"] or "?"))


def _grouped(items: Iterable[Document], key: Any) -> list[tuple[str, list[Document]]]:
    groups: dict[str, list[Document]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items())
