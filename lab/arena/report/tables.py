"""Tables of the report: metrics with intervals and marks, services, jobs.

Owns columns and number formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import fmean

from lab.arena.running import RunRecord
from lab.arena.stats import Comparison, MetricCell, Row, Summary
from solvers.sim.outcome import Better, JobOutcome

FIRST_METRICS = 5
ARROWS = {Better.LOWER: " ↓", Better.HIGHER: " ↑", Better.NEITHER: ""}


def figure(number: float | None) -> str:
    """Four significant digits."""
    if number is None:
        return "–"
    size = abs(number)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 4
    text = f"{number:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def percent(number: float) -> str:
    """A signed difference in percent: one digit after the point, none from a thousand on."""
    return f"{number:+,.{0 if abs(number) >= 1000 else 1}f} %".replace("-", "−")


def half_width(summary: Summary) -> str:
    """The interval as ± to two digits; nothing for a single seed."""
    if summary.high is None:
        return ""
    half = summary.high - summary.mean
    return f" ± {figure(float(f'{half:.2g}'))}"


def metric_table(compared: Comparison, styles: Mapping[str, str]) -> str:
    """Goal, guard and the first others; all others behind a fold."""
    known = {cell.metric: cell.better for row in compared.rows for cell in row.cells}
    first = [name for name in (compared.about.goal, compared.about.guard) if name is not None and name in known]
    judged = [name for name in sorted(known) if name not in first and known[name] is not Better.NEITHER]
    told = [name for name in sorted(known) if name not in first and known[name] is Better.NEITHER]
    others = [*judged, *told]
    room = FIRST_METRICS - len(first)
    shown, folded = [*first, *others[:room]], others[room:]
    parts = [_metrics(compared, styles, {name: known[name] for name in shown})]
    if folded:
        rest = _metrics(compared, styles, {name: known[name] for name in folded})
        parts.append(f"<details><summary>{len(folded)} more metrics</summary>{rest}</details>")
    return "".join(parts) + (
        '<p class="soft">Mean over seeds ± its interval of 95 %; '
        f"below it the difference from {escape(compared.reference)}. "
        '<span class="mark">*</span> more than noise: paired test at 5 %, corrected for the number of contenders.</p>'
    )


def _metrics(compared: Comparison, styles: Mapping[str, str], metrics: Mapping[str, Better]) -> str:
    head = "".join(f"<th>{escape(name)}{ARROWS[better]}</th>" for name, better in metrics.items())
    lines = []
    for row in compared.rows:
        swatch = f'<span class="swatch {styles[row.contender]}"></span>'
        name = f"{swatch}{escape(row.contender)}<small>{_standing(row, compared)}</small>"
        cells = "".join(f"<td>{_cell(row.cell(metric))}</td>" for metric in metrics)
        lines.append(f"<tr{'' if row.eligible else ' class=out'}><td>{name}</td>{cells}</tr>")
    return _table(f"<th>contender</th>{head}", lines)


def _standing(row: Row, compared: Comparison) -> str:
    if row.failed:
        return f"{row.failed} failed"
    if row.left_out:
        return f"leaves out {escape(', '.join(row.left_out))}"
    if row.rank is None:
        return "guard not kept"
    return f"rank {row.rank}{', reference' if row.contender == compared.reference else ''}"


def _cell(cell: MetricCell | None) -> str:
    if cell is None:
        return "–"
    told = cell.versus
    mark = '<span class="mark">*</span>' if told is not None and told.distinct else ""
    small = ""
    if told is not None and told.relative_pct is not None:
        p = "" if told.p is None else ", p &lt; 0.001" if told.p < 0.001 else f", p {told.p:.2g}"
        small = f"<small>{percent(told.relative_pct)}{p}</small>"
    return f"{figure(cell.summary.mean)}{half_width(cell.summary)}{mark}{small}"


def service_table(records: Sequence[RunRecord], contenders: Sequence[str]) -> str:
    """Violations and the tail of latencies, each service by each contender: means over seeds."""
    found: dict[str, dict[str, list[tuple[float, float | None]]]] = {}
    for record in records:
        for item in record.outcome.services if record.outcome is not None else ():
            by_contender = found.setdefault(str(item.service), {})
            by_contender.setdefault(record.contender.label, []).append((item.violation_pct, item.latency_ms_p99))
    if not found:
        return ""
    head = "<th>service</th>" + "".join(f"<th>{escape(label)}</th>" for label in contenders)
    lines = [
        f"<tr><td>{escape(service)}</td>{''.join(_service(found[service].get(label, [])) for label in contenders)}</tr>"
        for service in sorted(found)
    ]
    return f"<h3>Services: late or dropped requests in %, and p99 latency</h3>{_table(head, lines)}"


def _service(seen: Sequence[tuple[float, float | None]]) -> str:
    if not seen:
        return "<td>–</td>"
    tails = [tail for _, tail in seen if tail is not None]
    small = f"<small>{figure(fmean(tails))} ms</small>" if tails else ""
    return f"<td>{figure(fmean(violated for violated, _ in seen))}{small}</td>"


def job_table(records: Sequence[RunRecord], contenders: Sequence[str]) -> str:
    """Training jobs and offline tasks: what was done of them, and in what time."""
    lines = []
    for label in contenders:
        jobs = [job for each in _outcomes(records, label) for job in each]
        if not jobs:
            continue
        done = [job.took_s for job in jobs if job.took_s is not None]
        waits = [job.waited_s for job in jobs if job.waited_s is not None]
        cells = (
            f"{len(done)} of {len(jobs)}",
            figure(100 * fmean(job.done_part for job in jobs)),
            figure(fmean(done) if done else None),
            figure(fmean(waits) if waits else None),
            str(sum(job.evictions for job in jobs)),
        )
        lines.append(f"<tr><td>{escape(label)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(
        f"<th>{name}</th>" for name in ("contender", "finished", "work done %", "took s", "waited s", "evicted")
    )
    return f"<h3>Training jobs and offline tasks, all seeds</h3>{_table(head, lines)}" if lines else ""


def _outcomes(records: Iterable[RunRecord], label: str) -> list[Sequence[JobOutcome]]:
    return [each.outcome.jobs for each in records if each.contender.label == label and each.outcome is not None]


def _table(head: str, lines: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
