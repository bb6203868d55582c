"""How plans, explanations and what-if answers look to people: columns, order, signs and how much is shown. Every number
and every sentence stands in the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.cli.output import Cell, CommandError, Exit, SignedAmount, listed, number, rows, usd, word
from headroom_client import Document
from solvers.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from solvers.domain.evidence import Finding

WORKLOADS_SHOWN = 20
ALTERNATIVES_SHOWN = 6
PRICES_SHOWN = 8
_CANDIDATE_COLUMNS = (
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
_CURVE_COLUMNS: Mapping[str, Cell] = {
    ">SLO ms": lambda item: f"{number(item['limit_ms'])}{' (now)' if item['factor'] == 1.0 else ''}",
    ">$/h of all": "cost_usd_per_h",
    ">against now": lambda item: SignedAmount(item["cost_usd_per_h_more"]),
    ">rps short": lambda item: item["rate_rps_short"] or None,
    "served by": lambda item: ", ".join(item["gpus"]),
}
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
    return [rows(_CANDIDATE_COLUMNS, lines, empty=""), *left]


def _line(item: Document, name: str) -> tuple[object, ...]:
    told = ", ".join(dict.fromkeys(_reason_words(reason) for reason in item["reasons"]))
    if not item["feasible"]:
        return (name, item["gpu_type"], item["model"], "", "", "", "", "", "", "", told)
    more = item["usd_per_h_more"]
    cells = (item[field] for field in ("replicas", "share_pct_sm", "batch", "clock_mhz_sm"))
    latency_ms = item["latency_ms"] if item["latency_ms"] is not None else ""
    dearer = "" if item["chosen"] or more is None else SignedAmount(more)
    return (name, item["gpu_type"], item["model"], *cells, latency_ms, item["usd_per_h"], dearer, told)


def _reason_words(reason: Document) -> str:
    """A reason in few words, with the numbers that rule something out."""
    facts = {fact["name"]: fact["value"] for fact in reason["facts"]}
    less = facts.get("usd_per_h_less_at_shadow_prices")
    if less is not None:
        told = number(less)
        return (
            f"cheaper by {told} in parts of devices, but no plan found gains by it" if told != "0" else "costs the same"
        )
    text = _spoken(reason["code"])
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
    """A warning where prices are no money, because they are of somebody unserved."""
    short = any(fact["name"] == "workloads_priced_as_unserved" for fact in insight["facts"])
    return (
        ["Some of these prices count demand as if it stayed unserved: by its priority, not in money."]
        if short and found
        else []
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
    return listed(_CURVE_COLUMNS, points)


def forced_line(item: Document) -> str:
    """What the whole plan costs with a service on one type only."""
    more = item["cost_usd_per_h_more"]
    cost = f"Planned with {item['workload']} on {item['gpu_type']} only, everything costs "
    cost += f"{usd(item['cost_usd_per_h'], per_hour=True)}: "
    said = usd(abs(more), per_hour=True)
    cost += f"{said} more" if more > 0 else f"{said} less" if more < 0 else "no more than now"
    joined = "but" if more < 0 else "and"
    if item["rate_rps_short"] > 0:
        return f"{cost}, {joined} {number(item['rate_rps_short'])} requests/s of it are not served."
    if item["unserved_more"] > 0:
        return f"{cost}, {joined} others are served less for it."
    return f"{cost}."


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """One line for each finding, the fatal ones first."""
    return [f"{severity}: {code}: {', '.join(filter(None, told))}" for severity, code, *told in _found(findings)]


def finding_table(findings: Iterable[Finding]) -> Any:
    """The same, for programs."""
    return rows(("severity", "code", "subject", "facts"), _found(findings))


def _found(findings: Iterable[Finding]) -> list[tuple[str, str, str, str]]:
    return [
        (item.severity.value, item.code.value, str(item.subject), ", ".join(_fact_words(item)))
        for item in sorted(findings, key=lambda item: item.severity.value != "fatal")
    ]


def _fact_words(finding: Finding) -> list[str]:
    """Facts in few digits, unless two that differ would read the same."""
    short = [word(fact.value) for fact in finding.facts]
    same = len(set(short)) < len({fact.value for fact in finding.facts})
    return [f"{fact.name} {fact.value if same else text}" for fact, text in zip(finding.facts, short, strict=True)]


def unique(workload: str, known: Collection[str]) -> str:
    """The one of known workloads, `project/name`, that has this name. Raises CommandError."""
    found = [item for item in known if item.partition("/")[2] == workload]
    if not found:
        hint = did_you_mean(workload, (item.partition("/")[2] for item in known))
        raise CommandError(f"there is no workload named {workload}{hint}", Exit.NOT_FOUND)
    if len(found) > 1:
        raise CommandError(f"{workload} is ambiguous: {', '.join(sorted(found))}", Exit.USAGE)
    return found[0]


def split_question(asked: str) -> tuple[str, str]:
    """`SERVICE:GPU_TYPE` in two. Raises InputError."""
    service, _, gpu_type = asked.rpartition(":")
    if not service or not gpu_type:
        raise InputError("--why-not takes SERVICE:GPU_TYPE")
    return service, gpu_type


def known_question(asked: str, workloads: Collection[str], gpu_types: Collection[str]) -> tuple[str, str]:
    """The workload, `project/name`, and the GPU type of a question. Raises InputError, or CommandError for names that
    nothing has.
    """
    name, gpu_type = split_question(asked)
    if "/" not in name:
        name = unique(name, workloads)
    for noun, found, known in (("workload", name, workloads), ("GPU type", gpu_type, gpu_types)):
        if found not in known:
            raise CommandError(f"there is no {noun} {found}{did_you_mean(found, known)}", Exit.NOT_FOUND)
    return name, gpu_type


def why_not_lines(found: Document) -> list[str]:
    forced = [forced_line(found["forced"])] if found["forced"] is not None else []
    return _titled(f"why not {found['workload']} on {found['gpu_type']}", [found["sentence"], *forced])


def answered_line(told: Document) -> str:
    """Who planned and how that came about, loud where somebody had to stand in."""
    return f"{'WARNING: ' if told['stood_in'] else ''}planned by {told['answered']}"


def plan_head(summary: Document) -> list[Any]:
    """Which plan, whether it stands, what it costs and how far from the best it can be."""
    cost = summary["cost_usd_per_h"]
    costs = [] if cost is None else [usd(cost, per_hour=True), summary["gap_told"]]
    stands = f"generation {summary['generation']}" if summary["generation"] is not None else summary["state"]
    head = [f"plan {summary['id']}", ", ".join([stands, f"by {summary['planner']}", *costs])]
    head += [summary["cheaper"]] if summary.get("cheaper") else []
    found = summary.get("answered")
    if isinstance(found, dict):
        from app.services.explaining.sentences import answered_words
        from solvers.cycle.record import Authorship
        from solvers.domain.codec import from_plain

        made = from_plain(Authorship, found)
        found, summary = answered_words(made), {"answered": answered_words(made), "stood_in": made.stood_in}
    return [*head, *([answered_line(summary)] if found else [])]


_CHOICE_COLUMNS = ("workload", "GPU", ">replicas", ">share %", ">batch", ">latency ms", ">capacity rps", ">$/h", "")


def choice_table(explained: Document) -> Any:
    """What each workload got, marked, and below it what else was looked at and why it was not taken."""
    lines: list[Sequence[object]] = []
    for workload, items in _grouped(explained["assignments"], lambda item: str(item["assignment"]["workload"])):
        others = _distinct_reasons(items, "alternatives")
        cost = next((facts["chosen_usd_per_h"] for _, facts in others if "chosen_usd_per_h" in facts), None)
        for index, (gpu_type, replicas) in enumerate(_grouped(items, lambda item: str(item["gpu_type"] or "?"))):
            name = f"* {workload}" if index == 0 else "*"
            lines.append((name, *_chosen(gpu_type, replicas), cost if index == 0 else "", _verdict(replicas)))
        lines.extend(_not_chosen(reason, facts) for reason, facts in others[:ALTERNATIVES_SHOWN])
    return rows(_CHOICE_COLUMNS, lines, empty="")


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


_GAP_COLUMNS: Mapping[str, Cell] = {
    "without a place": "workload",
    ">rps short": lambda gap: gap["rate_rps_short"] or None,
    "what blocks it": lambda gap: " ".join(told["sentence"] for told in gap["why"]),
}


def gap_table(explained: Document) -> list[Any]:
    """What is left short, and what blocks it."""
    gaps = explained["unplaced"]
    if not gaps:
        return []
    return [listed(_GAP_COLUMNS, gaps)]


def sentences(items: Iterable[Document], field: str) -> list[str]:
    """Sentences of several replicas, each once, in order."""
    return list(dict.fromkeys(told["sentence"] for item in items for told in item[field]))


def _grouped(items: Iterable[Document], key: Any) -> list[tuple[str, list[Document]]]:
    groups: dict[str, list[Document]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items())


CHANGES_SHOWN = 25
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
_LATE: Sequence[tuple[str, str]] = (
    ("worth of jobs undone, $/h", "waiting_usd_per_h"),
    ("full batches carry, requests/s", "capacity_rps"),
    ("training, reference GPUs", "training_rate"),
)
"""Told where there is any: the last two where the policy names them."""
_MOVES: Sequence[tuple[str, str]] = (
    ("started", "starts"),
    ("stopped", "stops"),
    ("moved", "moved"),
    ("changed in place", "changed"),
)


_ADVICE_COLUMNS: Mapping[str, Cell] = {
    "add": lambda item: f"{item['devices']} x {item['gpu_type']}",
    "price": "price_kind",
    ">$/h": lambda item: _blank(item["price_usd_per_h"]),
    ">shadow $/h": lambda item: _blank(item["shadow_usd_per_h"]),
    ">rps gained": lambda item: SignedAmount(item["rate_rps_gained"]),
    ">saves $/h": lambda item: SignedAmount(item["saved_usd_per_h"]),
    ">worth $/h": lambda item: _blank(item["breakeven_usd_per_h"]),
    ">pays back": lambda item: f"x {item['payback']:.2f}" if item["payback"] is not None else "",
    ">used": lambda item: f"{item['devices_used']}",
    ">gap %": lambda item: _blank(item["gap_pct"]),
    "verified": "verified",
}


def whatif_tables(found: Document) -> list[Any]:
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
        (title, before[name], after[name], SignedAmount(difference[name])) for title, name in _NUMBERS
    ]
    lines += [
        (title, before.get(name, 0), after.get(name, 0), SignedAmount(difference.get(name, 0)))
        for title, name in _LATE
        if before.get(name) or after.get(name)
    ]
    lines += [
        ("bound, $/h", _blank(before["bound_usd_per_h"]), _blank(after["bound_usd_per_h"]), ""),
        ("gap, %", _blank(before["gap_pct"]), _blank(after["gap_pct"]), ""),
        ("verified", before["verified"], after["verified"], ""),
    ]
    parts: list[Any] = [
        f"before {before['plan']} by {before['planner']}, of snapshot {before['snapshot']}",
        f"after  {after['plan']} by {after['planner']}, of snapshot {after['snapshot']}",
        *_answered("before", before),
        *_answered("after", after),
        rows(("", ">before", ">after", ">difference"), lines, empty=""),
    ]
    parts += _types(before["gpus"], after["gpus"])
    stood = "the plan before" if told["moves_from_plan_before"] else "what stands"
    parts.append(f"\nmoves of replicas, from {stood}: {_moves(after['moves'])}")
    if not told["moves_from_plan_before"]:
        parts.append(f"without the change: {_moves(before['moves'])}")
    return [*parts, *_workloads(told)]


def _answered(which: str, outcome: Document) -> list[str]:
    """Who planned, loud where somebody had to stand in, and whether the plan before was not bettered."""
    kept = [f"{which}: nothing better was found than the plan before"] if outcome["as_before"] else []
    return [f"{which}: {answered_line(outcome)}, {outcome['gap_told']}", *kept]


def _types(before: Sequence[Document], after: Sequence[Document]) -> list[Any]:
    old, new = ({use["gpu_type"]: use for use in uses} for uses in (before, after))
    none = {"in_use": 0, "total": 0}
    lines = []
    for name in sorted({*old, *new}):
        was, now = old.get(name, none), new.get(name, none)
        both = (f"{use['in_use']} of {use['total']}" for use in (was, now))
        lines.append((name, *both, SignedAmount(now["in_use"] - was["in_use"])))
    return [rows(("GPUs in use", ">before", ">after", ">difference"), lines, empty="")]


def _moves(moves: Document) -> str:
    counted = [f"{moves[name]} {word}" for word, name in _MOVES if moves[name]]
    return f"{', '.join(counted)}, {number(moves['launch_s'])} s of launching" if counted else "none"


def _workloads(told: Document) -> list[Any]:
    differing = sorted(told["workloads"], key=_weight)
    lines = []
    for row in differing[:CHANGES_SHOWN]:
        before, after = row["before"], row["after"]
        lines.append(
            (
                row["workload"],
                row["fate"] if row["fate"] != "kept" else "",
                before["rate_rps"],
                after["rate_rps"],
                _places(before),
                _places(after),
                SignedAmount(after["usd_per_h"] - before["usd_per_h"]),
                after["rate_rps_short"] or "",
            )
        )
    same = told["workloads_same"]
    if not lines:
        return [f"all {same} workloads are served as before"]
    more = len(differing) - len(lines)
    rest = f"{more} more differ, {same} are served as before" if more else f"{same} others are served as before"
    columns = (
        "workload", "", ">rps before", ">rps after", "replicas before", "replicas after", ">$/h by share", ">rps short"
    )  # fmt: skip
    shown = {row["workload"] for row in differing[:CHANGES_SHOWN]}
    why = [f"{item['id']}: {item['told']}" for item in told["after"]["short"] if item["id"] in shown]
    return [rows(columns, lines, empty=""), rest, *why]


def _blank(amount: float | None) -> float | str:
    return "" if amount is None else amount


def _weight(row: Document) -> tuple[float, float, str]:
    """What is short first, then by how much the price changes."""
    change = abs(row["after"]["usd_per_h"] - row["before"]["usd_per_h"])
    return (-row["after"]["rate_rps_short"], -change, row["workload"])


def _places(serving: Document) -> str:
    return ", ".join(f"{item['replicas']} on {item['gpu_type']}" for item in serving["on"]) or "none"


def _advised(told: Document) -> list[Any]:
    before = told["before"]
    title = f"one more of which GPU type? now {usd(before['cost_usd_per_h'], per_hour=True)}"
    if not told["advice"]:
        return ["", f"none of {told['types_considered']} GPU types with a price could serve anything here"]
    legend = "worth: what they may cost together before they are not worth it; pays back: that over their price"
    return ["", listed(_ADVICE_COLUMNS, told["advice"], title=title, empty=""), legend]
