"""Writes results as Markdown tables: errors by data set and split, interference, speed, goals and claims.

What a reader needs stands between the markers of `docs/lab/models.md`; every number of every split, hundreds of rows,
in a file beside the stored results. A predictor that failed stands in the table with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from benchmarks.predictors.alone import SOLO_NAMES, Record
from benchmarks.predictors.datasets import DATASETS
from benchmarks.predictors.goals import goals
from benchmarks.predictors.metrics import points_to_reach
from benchmarks.predictors.results import Results
from benchmarks.predictors.together import PAIR
from solvers.models.suite import suites

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
DOCUMENT = Path(__file__).parents[2] / "docs" / "lab" / "models.md"
WHOLE = Path(__file__).parents[1] / "results" / "predictors.md"
OURS = "headroom"
LABELS = {dataset.name: dataset.label for dataset in DATASETS}
GROUPS = "groups: "
ASKED = "By `python -m benchmarks.predictors`; predictors are asked in process (internal figures)."
EVERYTHING = "Every predictor on every split: [predictors.md](../../benchmarks/results/predictors.md)."
_ORDER = (
    "cells",
    "cells: power_w",
    "cells: memory_mib",
    "cells: latency_ms_p99",
    "batch",
    "share",
    "clock",
    "few-shot",
    "gpu",
    "model on gpu",
    "pair",
    "member",
)


def row(cells: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def shown(value: float, digits: int = 1) -> str:
    """A number, or a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.{0 if abs(value) >= 1000 else digits}f}"


def number(record: Record | None, name: str) -> float:
    """A number of a record; NaN where it failed or does not have it."""
    return record.numbers.get(name, math.nan) if record is not None else math.nan


def rows_of(records: dict[str, Record]) -> float:
    """How many rows a split asks for."""
    return max((record.numbers["rows"] for record in records.values() if "rows" in record.numbers), default=math.nan)


def answers_all(record: Record | None) -> bool:
    """Whether (nearly) every row got an answer, so that its errors may be compared."""
    return number(record, "answered_pct") >= 99.0


def _rank(split: str) -> tuple[int, int]:
    name = split.removeprefix(GROUPS)
    stem, _, points = name.rpartition(" ") if name.split(" ")[0] in ("few-shot", "chosen") else (name, "", "")
    return _ORDER.index(stem) if stem in _ORDER else len(_ORDER), int(points or 0)


def splits_of(results: Results, dataset: str, *, groups: bool) -> list[str]:
    """Recorded splits of a data set in reading order."""
    found = {split for name, split in results.splits() if name == dataset and split.startswith(GROUPS) == groups}
    return sorted(found, key=_rank)


def cell_of(record: Record | None, name: str, best: float, digits: int = 1) -> str:
    """One predictor's number: bold where it is the best, starred where some rows got no answer."""
    if record is None:
        return "not run"
    if record.failed:
        return "failed"
    value = number(record, name)
    if not math.isfinite(value):
        return "no answer"
    text = shown(value, digits) + ("" if answers_all(record) else f" ({number(record, 'answered_pct'):.0f} %)")
    return f"**{text}**" if value == best and answers_all(record) else text


def _best(records: dict[str, Record], name: str, *, highest: bool) -> float:
    values = [number(record, name) for record in records.values() if answers_all(record)]
    finite = [value for value in values if math.isfinite(value)]
    return (max(finite) if highest else min(finite)) if finite else math.nan


def error_table(results: Results) -> list[str]:
    """MAPE of every model alone on every split."""
    lines = [row(["data set", "split", "rows", *SOLO_NAMES]), row(["---", "---", "--:", *["--:"] * len(SOLO_NAMES)])]
    for dataset in DATASETS:
        for split in splits_of(results, dataset.name, groups=False):
            records = results.of(dataset.name, split)
            best = _best(records, "mape_pct", highest=False)
            rows = rows_of(records)
            cells = [cell_of(records.get(name), "mape_pct", best) for name in SOLO_NAMES]
            lines.append(row([dataset.label, split, shown(rows, 0), *cells]))
    return lines


def slowdown_table(results: Results, measure: str) -> list[str]:
    """A number of every suite on every interference split."""
    lines = [row(["data set", "split", "rows", *suites()]), row(["---", "---", "--:", *["--:"] * len(suites())])]
    for dataset in DATASETS:
        for split in splits_of(results, dataset.name, groups=True):
            records = results.of(dataset.name, split)
            highest = measure.startswith("r2")
            best = _best(records, measure, highest=highest)
            rows = rows_of(records)
            cells = [cell_of(records.get(name), measure, best, 2) for name in suites()]
            lines.append(row([dataset.label, split.removeprefix(GROUPS), shown(rows, 0), *cells]))
    return lines


def pair_table(results: Results) -> list[str]:
    """R² on slowdown of every left-out pair by itself, where whole pairs were left out one by one."""
    records = results.of("igniter-v100", f"{GROUPS}pair")
    pairs = sorted({name for record in records.values() for name in record.numbers if name.startswith(PAIR)})
    lines = [row(["pair", *suites()]), row(["---", *["--:"] * len(suites())])]
    for pair in pairs:
        best = _best(records, pair, highest=True)
        lines.append(row([pair.removeprefix(PAIR), *(cell_of(records.get(name), pair, best, 2) for name in suites())]))
    return lines


def detail_table(results: Results) -> list[str]:
    """Ours beside the best of the others, with everything that MAPE alone does not say."""
    heads = [
        "data set", "split", "MAPE %", "p95 %", "R² log", "80 % holds", "95 % holds", "fit s", "µs a row",
        "best other", "its MAPE %", "its p95 %", "its R² log", "its 95 % holds",
    ]  # fmt: skip
    lines = [row(heads), row(["---", "---", *["--:"] * 7, "---", *["--:"] * 4])]
    for dataset in DATASETS:
        for split in [*splits_of(results, dataset.name, groups=False), *splits_of(results, dataset.name, groups=True)]:
            records = results.of(dataset.name, split)
            ours = records.get(OURS)
            others = {name: record for name, record in records.items() if name != OURS and answers_all(record)}
            name = min(others, key=lambda key: number(others[key], "mape_pct"), default="")
            other = others.get(name)
            lines.append(
                row([
                    dataset.label, split, shown(number(ours, "mape_pct")), shown(number(ours, "p95_pct")),
                    shown(number(ours, "r2"), 3), shown(number(ours, "cover80_pct"), 0),
                    shown(number(ours, "cover95_pct"), 0), shown(number(ours, "fit_s"), 2),
                    shown(number(ours, "predict_us")), name or "–", shown(number(other, "mape_pct")),
                    shown(number(other, "p95_pct")), shown(number(other, "r2"), 3),
                    shown(number(other, "cover95_pct"), 0),
                ])
            )  # fmt: skip
    return lines


def curve_of(results: Results, dataset: str, predictor: str) -> dict[int, float]:
    """Few-shot MAPE by number of points."""
    found = {}
    for split in splits_of(results, dataset, groups=False):
        record = results.of(dataset, split).get(predictor)
        if split.startswith("few-shot") and record is not None and answers_all(record):
            found[_rank(split)[1]] = number(record, "mape_pct")
    return found


def points_table(results: Results) -> list[str]:
    """Points of a new model needed to get below 10 and 5 % MAPE."""
    lines = [row(["data set", *SOLO_NAMES]), row(["---", *["--:"] * len(SOLO_NAMES)])]
    for dataset in DATASETS:
        curves = {name: curve_of(results, dataset.name, name) for name in SOLO_NAMES}
        if any(curves.values()):
            most = max(max(curve) for curve in curves.values() if curve)
            texts = [
                " / ".join(str(points_to_reach(curve, target) or f"> {most}") for target in (10.0, 5.0))
                if curve
                else "not run"
                for curve in curves.values()
            ]
            lines.append(row([dataset.label, *texts]))
    return lines


def time_table(results: Results) -> list[str]:
    """Fit and prediction times, median over the solo splits, beside the timings on one core."""
    heads = ["suite", "fit s", "alone, rows/s", "beside others, rows/s", "one row µs", "learn a sample ms",
             "learn a pair ms"]  # fmt: skip
    lines = [row(heads), row(["---", *["--:"] * 6])]
    for name, (solo, _) in suites().items():
        fits = [
            number(record, "fit_s")
            for (_, split, predictor), record in results.records.items()
            if predictor == solo and not split.startswith(GROUPS) and not record.failed
        ]
        fit_s = sorted(fits)[len(fits) // 2] if fits else math.nan
        speed = {key: value if value is not None else math.nan for key, value in results.speed.get(name, {}).items()}
        cells = [shown(fit_s, 2)]
        cells += [f"{speed.get(key, math.nan):,.0f}" for key in ("solo_per_s", "groups_per_s")]
        cells += [shown(speed.get(key, math.nan), 2) for key in ("single_us", "update_ms", "update_groups_ms")]
        lines.append(row([name, *(cell.replace("nan", "–") for cell in cells)]))
    return lines


def claims_table(results: Results) -> list[str]:
    """Stated and measured, side by side."""
    lines = [row(["claim", "stated", "measured", "verdict"]), row(["---"] * 4)]
    lines += [row([name, item["stated"], item["measured"], item["verdict"]]) for name, item in results.claims.items()]
    return lines


def failures(results: Results) -> list[str]:
    """Everything that failed, by predictor and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in results.records.values():
        if record.failed:
            found.setdefault((record.predictor, record.failed), []).append(f"{record.dataset} ({record.split})")
    lines = [
        f"- {predictor}: {reason}: {', '.join(where[:4])}{f' and {len(where) - 4} more' if len(where) > 4 else ''}"
        for (predictor, reason), where in found.items()
    ]
    return lines or ["None failed."]


def defeats(results: Results) -> list[str]:
    """Every split on which ours was run and another predictor that answers all rows is better."""
    lines = [row(["data set", "split", "measure", "ours", "better"]), row(["---", "---", "---", "--:", "---"])]
    for dataset, split in results.splits():
        records = results.of(dataset, split)
        if OURS not in records:
            continue
        measure, highest = ("r2_slowdown", True) if split.startswith(GROUPS) else ("mape_pct", False)
        ours = number(records.get(OURS), measure)
        sign = -1.0 if highest else 1.0
        better = {
            name: number(record, measure)
            for name, record in records.items()
            if name != OURS and answers_all(record) and not sign * number(record, measure) >= sign * ours
        }
        listed = sorted((item for item in better.items() if math.isfinite(item[1])), key=lambda item: sign * item[1])
        if listed:
            digits = 3 if highest else 2
            texts = ", ".join(f"{name} {shown(value, digits)}" for name, value in listed)
            label = "R² on slowdown" if highest else "MAPE %"
            lines.append(row([LABELS[dataset], split, label, shown(ours, digits).replace("–", "no answer"), texts]))
    return lines if len(lines) > 2 else ["None."]


def document_part(results: Results) -> str:
    """Everything between the markers."""
    about = ", ".join(f"{key} {value}" for key, value in results.about.items())
    sections = [
        ("", [f"Generated by `python -m benchmarks.predictors --report`; {about}. {EVERYTHING}"]),
        ("Goals", goals(results)),
        ("Beside others: R² on slowdown", slowdown_table(results, "r2_slowdown")),
        (
            "Beside others: R² on slowdown of the interference model alone, given the measured latency alone",
            slowdown_table(results, "r2_slowdown_given"),
        ),
        ("Beside others: MAPE of latency in %", slowdown_table(results, "mape_pct")),
        ("iGniter's pairs, each left out by itself: R² on slowdown of that pair", pair_table(results)),
        ("Points of a new model to get below 10 % / 5 %", points_table(results)),
        ("Where another predictor is better than ours", defeats(results)),
        ("Speed on one core", time_table(results)),
        ("Claims of the papers", claims_table(results)),
        ("Failures", failures(results)),
    ]
    return _under("###", sections)


def whole_part(results: Results) -> str:
    """Every split with every predictor."""
    sections = [
        ("Replicas alone: MAPE in %", error_table(results)),
        ("Ours in detail, beside the best other", detail_table(results)),
    ]
    return _under("##", sections)


def _under(mark: str, sections: Iterable[tuple[str, list[str]]]) -> str:
    parts = [("\n".join(([f"{mark} {title}", ""] if title else []) + lines)) for title, lines in sections]
    return "\n\n".join(parts)


def write_document(results: Results, path: Path = DOCUMENT, whole: Path = WHOLE) -> None:
    """Put the tables between the markers, everything else in the page stays; and the long ones into their own file."""
    whole.write_text(f"# Predictors, split by split\n\n{ASKED}\n\n{whole_part(results)}\n", encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{document_part(results)}\n{END}{after}", encoding="utf-8")
