"""What this project set out to reach with its own model, beside what the results say.

Owns the goals and how each is read off the records. It refuses to round in anybody's favour.
"""

from __future__ import annotations

import math

from benchmarks.predictors.results import Results

OURS = "headroom"
_MET, _MISSED, _UNKNOWN = "met", "**missed**", "not measured"


def _of(results: Results, dataset: str, split: str, name: str) -> float:
    record = results.of(dataset, split).get(OURS)
    return record.numbers.get(name, math.nan) if record is not None else math.nan


def _line(goal: str, value: float, text: str, *, met: bool) -> str:
    verdict = _UNKNOWN if not math.isfinite(value) else _MET if met else _MISSED
    return f"| {goal} | {text if math.isfinite(value) else '–'} | {verdict} |"


def _at_most(goal: str, value: float, limit: float) -> str:
    return _line(goal, value, f"{value:.2f} %", met=value <= limit)


def goals(results: Results) -> list[str]:
    """A table of goals, measured values and verdicts."""
    lines = ["| goal | measured | verdict |", "| --- | --: | --- |"]
    for dataset in ("igniter-v100", "rapp-v100"):
        lines.append(_at_most(f"{dataset}: unseen cells MAPE ≤ 4 %", _of(results, dataset, "cells", "mape_pct"), 4.0))
    for dataset in ("igniter-v100", "rapp-v100"):
        value = _of(results, dataset, "few-shot 16", "mape_pct")
        lines.append(_at_most(f"{dataset}: a new model from 16 points ≤ 8 %", value, 8.0))
    value = _of(results, "igniter-v100", "groups: cells", "r2_slowdown")
    lines.append(_line("V100 pairs at unseen cells: R² on slowdown ≥ 0.9", value, f"{value:.3f}", met=value >= 0.9))
    value = _of(results, "igniter-v100", "groups: pair", "r2_slowdown")
    lines.append(_line("V100, unseen pairs together: R² on slowdown > 0.3", value, f"{value:.3f}", met=value > 0.3))
    value = _of(results, "igniter-v100", "groups: pair", "r2_slowdown_worst")
    lines.append(
        _line("V100, every unseen pair by itself: R² on slowdown > 0.3", value, f"worst {value:.2f}", met=value > 0.3)
    )
    for dataset, split in (
        ("igniter-v100", "cells"), ("rapp-v100", "cells"), ("igniter-v100", "few-shot 16"),
        ("rapp-v100", "few-shot 16"), ("igniter-v100", "groups: cells"), ("igniter-v100", "groups: pair"),
    ):  # fmt: skip
        value = _of(results, dataset, split, "cover95_pct")
        goal = f"{dataset}, {split}: 95 % intervals hold 90 to 98 %"
        lines.append(_line(goal, value, f"{value:.1f} %", met=90.0 <= value <= 98.0))
    return lines + _speed(results)


def _speed(results: Results) -> list[str]:
    def speed(suite: str, name: str) -> float:
        value = results.speed.get(suite, {}).get(name)
        return math.nan if value is None else value

    table_like, full = speed("hetsev", "solo_per_s"), speed(OURS, "solo_per_s")
    beside = speed(OURS, "groups_per_s")
    lines = [
        _line("table model (static) ≥ 1 M rows/s", table_like, f"{table_like / 1e6:.2f} M/s", met=table_like >= 1e6),
        _line("our model alone ≥ 50 k rows/s", full, f"{full / 1e3:.0f} k/s", met=full >= 5e4),
        _line("our model beside others ≥ 50 k rows/s", beside, f"{beside / 1e3:.0f} k/s", met=beside >= 5e4),
    ]
    for name, goal in (("update_ms", "learn a sample"), ("update_groups_ms", "learn a pair")):
        value = speed(OURS, name)
        lines.append(_line(f"our model: {goal} online ≤ 1 ms", value, f"{value:.3f} ms", met=value <= 1.0))
    return lines
