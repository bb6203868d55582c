"""How the answer to a what-if question looks to people.

Owns rows, signs and how many workloads are shown. It refuses to compute: every number stands in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.cli.output import number, rows, usd, word
from app.client import Document

WORKLOADS_SHOWN = 25
_NUMBERS: Sequence[tuple[str, str]] = (
    ("cost, $/h", "cost_usd_per_h"),
    ("unserved (weighted)", "unserved"),
    ("workloads short", "workloads_short"),
    ("requests/s short", "rate_rps_short"),
    ("SLO risk", "slo_risk"),
    ("power planned, W", "power_w"),
    ("energy, kWh a day", "energy_kwh_per_day"),
    ("replicas", "replicas"),
    ("GPUs in use", "gpus_in_use"),
)
_RISING: Sequence[tuple[str, str]] = (
    ("full batches carry, requests/s", "capacity_rps"),
    ("training, reference GPUs", "training_rate"),
)
"""Told where the policy names them."""
_MOVES: Sequence[tuple[str, str]] = (
    ("started", "starts"),
    ("stopped", "stops"),
    ("moved", "moved"),
    ("changed in place", "changed"),
)


def tables(found: Document) -> list[Any]:
    """Everything that was asked for."""
    parts: list[Any] = []
    if found["simulation"] is not None:
        parts += _simulation(found["simulation"])
    if found["advised"] is not None:
        parts += _advised(found["advised"])
    return parts


def _simulation(told: Document) -> list[Any]:
    before, after, difference = told["before"], told["after"], told["difference"]
    lines: list[Sequence[object]] = [
        (title, _short(before[name]), _short(after[name]), _signed(difference[name])) for title, name in _NUMBERS
    ]
    lines += [
        (title, _short(before.get(name, 0)), _short(after.get(name, 0)), _signed(difference.get(name, 0)))
        for title, name in _RISING
        if before.get(name) or after.get(name)
    ]
    lines += [
        ("bound, $/h", _short(before["bound_usd_per_h"]), _short(after["bound_usd_per_h"]), ""),
        ("gap, %", _short(before["gap_pct"]), _short(after["gap_pct"]), ""),
        ("verified", before["verified"], after["verified"], ""),
    ]
    parts: list[Any] = [
        f"before {before['plan']} by {before['planner']}, of snapshot {before['snapshot']}",
        f"after  {after['plan']} by {after['planner']}, of snapshot {after['snapshot']}",
        _table(("", ">before", ">after", ">difference"), lines, ""),
    ]
    parts += _types(before["gpus"], after["gpus"])
    stood = "the plan before" if told["moves_from_plan_before"] else "what stands"
    parts.append(f"\nmoves of replicas, from {stood}: {_moves(after['moves'])}")
    if not told["moves_from_plan_before"]:
        parts.append(f"without the change: {_moves(before['moves'])}")
    return [*parts, *_workloads(told)]


def _types(before: Sequence[Document], after: Sequence[Document]) -> list[Any]:
    old, new = ({use["gpu_type"]: use for use in uses} for uses in (before, after))
    none = {"in_use": 0, "total": 0}
    lines = []
    for name in sorted({*old, *new}):
        was, now = old.get(name, none), new.get(name, none)
        both = (f"{use['in_use']} of {use['total']}" for use in (was, now))
        lines.append((name, *both, _signed(now["in_use"] - was["in_use"])))
    return [_table(("GPUs in use", ">before", ">after", ">difference"), lines, "")]


def _moves(moves: Document) -> str:
    counted = [f"{moves[name]} {word}" for word, name in _MOVES if moves[name]]
    return f"{', '.join(counted)}, {number(moves['launch_s'])} s of launching" if counted else "none"


def _workloads(told: Document) -> list[Any]:
    differing = sorted(told["workloads"], key=_weight)
    lines = []
    for row in differing[:WORKLOADS_SHOWN]:
        before, after = row["before"], row["after"]
        lines.append(
            (
                row["workload"],
                row["fate"] if row["fate"] != "kept" else "",
                *_both(before, after, "rate_rps", _short),
                _places(before),
                _places(after),
                _signed(after["usd_per_h"] - before["usd_per_h"]),
                _short(after["rate_rps_short"]) if after["rate_rps_short"] else "",
            )
        )
    same = told["workloads_same"]
    if not lines:
        return [f"all {same} workloads are served as before"]
    more = len(differing) - len(lines)
    rest = f"{more} more differ, {same} are served as before" if more else f"{same} others are served as before"
    columns = ("workload", "", ">rps before", ">after", "replicas before", "after", ">$/h by share", ">rps short")
    return [_table(columns, lines, ""), rest]


def _weight(row: Document) -> tuple[float, float, str]:
    """What is short first, then by how much the price changes."""
    change = abs(row["after"]["usd_per_h"] - row["before"]["usd_per_h"])
    return (-row["after"]["rate_rps_short"], -change, row["workload"])


def _both(before: Document, after: Document, name: str, form: Callable[[Any], str]) -> tuple[str, str]:
    return form(before[name]), form(after[name])


def _places(serving: Document) -> str:
    return ", ".join(f"{item['replicas']} on {item['gpu_type']}" for item in serving["on"]) or "none"


def _advised(told: Document) -> list[Any]:
    before = told["before"]
    title = f"one more of which GPU type? now {usd(before['cost_usd_per_h'], per_hour=True)}"
    if not told["advice"]:
        return ["", f"none of {told['types_considered']} GPU types with a price could serve anything here"]
    lines = [
        (
            f"{item['devices']} x {item['gpu_type']}",
            item["price_kind"],
            _short(item["price_usd_per_h"]),
            _short(item["shadow_usd_per_h"]),
            _signed(item["rate_rps_gained"]),
            _signed(item["saved_usd_per_h"]),
            _short(item["breakeven_usd_per_h"]),
            f"x {item['payback']:.2f}" if item["payback"] is not None else "",
            f"{item['devices_used']}",
            _short(item["gap_pct"]),
            item["verified"],
        )
        for item in told["advice"]
    ]
    columns = (
        "add", "price", ">$/h", ">shadow $/h", ">rps gained", ">saves $/h", ">worth $/h", ">pays back", ">used",
        ">gap %", "verified",
    )  # fmt: skip
    legend = "worth: what they may cost together before they are not worth it; pays back: that over their price"
    return ["", _table(columns, lines, title), legend]


def _table(columns: Sequence[str], lines: Iterable[Sequence[object]], title: str) -> Any:
    """A table whose empty cells stay empty."""
    from rich.text import Text

    cells = ([Text("") if cell == "" else Text(word(cell)) for cell in line] for line in lines)
    return rows(columns, cells, title=title)


def _short(amount: float | None) -> str:
    return number(float(amount)) if amount is not None else ""


def _signed(amount: float) -> str:
    text = number(float(amount))
    return f"+{text}" if amount > 0 and text != "0" else text
