"""The report of a folder of results: one page of HTML that needs nothing but itself, its style sheet included.

What is compared, the matrix of scenarios and contenders, then a section for each scenario. The same runs give the same
bytes: no moment and no wall time is on it. What is significant is `stats`' to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lab.arena.drawing import figure, goal_bars, job_table, metric_table, percent, plots, service_table
from lab.arena.running import RunRecord
from lab.arena.standing import Duel, places
from lab.arena.stats import OURS, Comparison, GuardKept, Row, caution, comparisons
from lab.outcome import About, Better
from solvers.domain.codec import digest

COLOURS = 12
"""So many classes for contenders the style sheet has."""


def page_of(records: Sequence[RunRecord], reference: str | None = None) -> str:
    compared = comparisons(records, reference)
    duels = {place.scenario: place.all_others for place in places(records)}
    styles = styles_of(compared)
    failed = [record for record in records if record.outcome is None]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Headroom arena</title>',
        f"<style>\n{Path(__file__).with_name('report.css').read_text(encoding='utf-8')}</style></head><body>",
        f"<h1>Headroom arena</h1>{_head(records, compared, styles)}",
        _matrix(compared, styles),
        *(
            _section(
                each,
                [record for record in records if record.scenario == each.about.name],
                styles,
                duels.get(each.about.name),
            )
            for each in compared
        ),
        _failures(failed),
        _sources(records),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def styles_of(compared: Sequence[Comparison]) -> dict[str, str]:
    """A class for each contender, ours first, the same in all sections."""
    labels = sorted({row.contender for each in compared for row in each.rows}, key=lambda label: (label != OURS, label))
    return {label: f"k{index % COLOURS}" for index, label in enumerate(labels)}


def _head(records: Sequence[RunRecord], compared: Sequence[Comparison], styles: Mapping[str, str]) -> str:
    seeds = sorted({record.seed for record in records})
    software = ", ".join(sorted({record.software for record in records}))
    legend = " &nbsp; ".join(f'<span class="swatch {name}"></span>{escape(label)}' for label, name in styles.items())
    counts = (_many(len(compared), "scenario"), _many(len(styles), "contender"), _many(len(seeds), "seed"))
    told = f"{len(records)} runs: {', '.join(counts)}."
    few = caution(min((len(each.seeds) for each in compared), default=0))
    warning = f'<p class="warning">{escape(few)}.</p>' if few is not None else ""
    links = "".join(f'<li><a href="#{each.about.name}">{escape(each.about.title)}</a></li>' for each in compared)
    return (
        f"<p>{told} Every contender met the same requests, faults, measured profiles and simulated hardware. "
        f'<span class="soft">Headroom {escape(software)}</span></p>{warning}<p>{legend}</p><ul class="toc">{links}</ul>'
    )


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _matrix(compared: Sequence[Comparison], styles: Mapping[str, str]) -> str:
    head = "".join(f'<th><span class="swatch {name}"></span>{escape(label)}</th>' for label, name in styles.items())
    lines = []
    for each in compared:
        rows = {row.contender: row for row in each.rows}
        cells = "".join(_matrix_cell(rows.get(label), each) for label in styles)
        goal = f"{each.about.goal} {'↓' if each.about.better is Better.LOWER else '↑'}"
        name = f'<a href="#{each.about.name}">{escape(each.about.name)}</a><small>{escape(goal)}</small>'
        lines.append(f"<tr><td>{name}</td>{cells}</tr>")
    return (
        '<h3>At a glance</h3><div class="wide"><table><thead><tr><th>scenario, goal</th>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="soft">The mean of each scenario\'s goal, and how far it is from the best. Green: best of those that '
        "keep the scenario's guard; grey: not shown to keep it; red: a run failed.</p>"
    )


def _matrix_cell(row: Row | None, compared: Comparison) -> str:
    goal = row.cell(compared.about.goal) if row is not None else None
    if row is None or (goal is None and not row.failed):
        return "<td></td>"
    if goal is None or row.failed:
        return '<td class="lost">failed</td>'
    if not row.eligible:
        guard = row.cell(compared.about.guard or "")
        why = f"{compared.about.guard} {figure(guard.summary.mean)}" if guard is not None else "guard"
        why += "?" if row.guard is GuardKept.UNTOLD else ""
        why = f"without {', '.join(row.left_out)}" if row.left_out else why
        return f'<td class="out">{figure(goal.summary.mean)}<small>✗ {escape(why)}</small></td>'
    best = next((each.cell(compared.about.goal) for each in compared.rows if each.rank == 1), None)
    away = ""
    if best is not None and abs(best.summary.mean) > 0 and row.rank != 1:
        away = percent(100 * (goal.summary.mean / best.summary.mean - 1))
    name = ' class="best"' if row.rank == 1 else ""
    return f"<td{name}>{figure(goal.summary.mean)}<small>{away or f'rank {row.rank}'}</small></td>"


def _section(compared: Comparison, records: Sequence[RunRecord], styles: Mapping[str, str], duel: Duel | None) -> str:
    about = compared.about
    contenders = ", ".join(escape(row.contender) for row in compared.rows)
    seeds = f"seeds {', '.join(map(str, compared.seeds)) or 'none in common'}"
    if compared.unshared:
        seeds += f" (not counted, since not everybody ran under them: {', '.join(map(str, compared.unshared))})"
    return "\n".join(
        (
            f'<section id="{about.name}"><h2>{escape(about.title)}</h2>',
            f'<p class="soft">{escape(about.name)} · {escape(about.kind)} · {seeds} · {contenders}</p>',
            f"<p>{_rule(about)}</p>",
            _verdict(duel, about),
            goal_bars(compared, records, styles),
            metric_table(compared, styles),
            plots(records, [row.contender for row in compared.rows], styles),
            service_table(records, [row.contender for row in compared.rows]),
            job_table(records, [row.contender for row in compared.rows]),
            "</section>",
        )
    )


def _rule(about: About) -> str:
    direction = "the lower the better" if about.better is Better.LOWER else "the higher the better"
    guard = (
        f", among those shown to have no more <b>{escape(about.guard)}</b> than the reference" if about.guard else ""
    )
    return f"Judged by <b>{escape(about.goal)}</b>, {direction}{guard}."


def _verdict(duel: Duel | None, about: About) -> str:
    if duel is None:
        return ""
    told = f"{escape(about.goal)} cannot be compared"
    if (gain := duel.gain_pct) is not None:
        told = f"{escape(about.goal)} {'better' if gain.mean >= 0 else 'worse'} by <b>{abs(gain.mean):.1f} %</b>"
        if gain.low is not None and gain.high is not None:
            told += f" (interval {percent(gain.low)} to {percent(gain.high)})"
    guard = f"; {escape(about.guard)} shown to be no worse: {duel.guard_kept.value}" if about.guard is not None else ""
    against = f"<b>{OURS}</b> against <b>{escape(duel.against)}</b>, the best other contender"
    return f'<p class="verdict">{against}: {told}{guard}. <b>{duel.standing.value.replace("_", " ")}</b></p>'


def _sources(records: Sequence[RunRecord]) -> str:
    """What ran, by digests: equal ones mean the same scenario, software, contender and settings."""
    ran: dict[tuple[str, str, str, str], set[int]] = {}
    for record in records:
        who = f"{record.contender.label} {_short(digest(record.contender))}"
        ran.setdefault((record.scenario, _short(record.scenario_digest), who, record.software), set()).add(record.seed)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(part)}</td>' for part in parts)}<td>{', '.join(map(str, sorted(seeds)))}</td></tr>"
        for parts, seeds in sorted(ran.items())
    )
    head = "".join(f"<th>{name}</th>" for name in ("scenario", "its file", "contender, settings", "software", "seeds"))
    return (
        f'<details><summary>What ran</summary><div class="wide"><table><tr>{head}</tr>{lines}</table></div></details>'
    )


def _short(summed: str) -> str:
    return summed.removeprefix("sha256:")[:12]


def _failures(failed: Sequence[RunRecord]) -> str:
    if not failed:
        return ""
    names = (f"{record.scenario} × {record.contender.label}, seed {record.seed}: {record.error}" for record in failed)
    lines = "".join(f"<li>{escape(name)}</li>" for name in names)
    return f"<section><h2>Failed runs</h2><ul>{lines}</ul></section>"
