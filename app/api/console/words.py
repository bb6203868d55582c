"""How the console writes numbers, shares, money, spans of time, SLOs and decisions; and the templates that use it."""

from __future__ import annotations

import json
import re
from calendar import month_abbr
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from app.services.explaining.sentences import hold_sentence
from app.store.cycles import CycleState, CycleSummary
from solvers.cycle.parts import MERGED
from solvers.domain.workload import SloScope

ATTAINMENT_GOOD = 0.98
ATTAINMENT_POOR = 0.90
_LONG = re.compile(
    r"sha256:([0-9a-f]{12})[0-9a-f]{52}|([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|\d{4}-(0\d|1[0-2])-(\d\d)T(\d\d:\d\d)[\d:.]*(?:Z|\+00:00)"
)
_PLAN = re.compile(r"(?<=^plan )[0-9a-f]{12}\b")
_DIGITS = {"n0": 0, "n1": 1}
_SCOPES = {SloScope.END_TO_END: "", SloScope.EXECUTION: " of execution"}


@cache
def environment() -> Environment:
    """Templates with escaping on and a crash for every name that is not there."""
    made = Environment(
        loader=PackageLoader("app.api.console", "templates"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters.update(
        number=number,
        percent=percent,
        usd_per_h=usd_per_h,
        gib=gib,
        tone=tone,
        slo=slo_text,
        since=since_text,
        planner=planner_text,
        took=took_text,
        moment=moment_text,
        shown=shown,
        said=said,
        brief=brief,
        linked=linked,
    )
    return made


def number(quantity: float | None, digits: int = 0) -> str:
    """A number with thin thousands, or a dash."""
    return "–" if quantity is None else f"{quantity:,.{digits}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def shown(value: Any, form: str) -> str:
    """A value that scripts keep up to date: they write it in the same way."""
    if form in _DIGITS:
        return number(value, _DIGITS[form])
    if form == "done":
        return percent(min(1.0, value))
    return percent(value) if form in ("pct", "part") else usd_per_h(value)


def said(value: Any) -> str:
    """A value of a document in one line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def linked(text: str) -> Markup:
    """A sentence about a plan, which leads there."""
    return Markup(_PLAN.sub(r'<a class="mono" href="/plans/\g<0>">\g<0></a>', str(escape(text))))  # noqa: S704


def brief(text: str) -> Markup:
    """A text whose digests, ids and times are as long as people read them, and whole where one points at them."""
    return Markup(_LONG.sub(_brief, str(escape(text))))  # noqa: S704 - it is escaped


def _brief(found: re.Match[str]) -> str:
    digest, key, month, day, clock = found.groups()
    return f'<span title="{found[0]}">{digest or key or f"{day} {month_abbr[int(month)]} {clock}"}</span>'


def percent(fraction: float | None) -> str:
    """A fraction as per cent, or a dash."""
    return "–" if fraction is None else f"{100 * fraction:.1f} %"


def usd_per_h(cost: float | None) -> str:
    """Dollars per hour, or a dash."""
    return "–" if cost is None else f"${number(cost, 2)}/h"


def gib(mebibytes: float | None) -> str:
    return number(None if mebibytes is None else mebibytes / 1024, 1)


def tone(fraction: float | None) -> str:
    """Class of an attainment."""
    if fraction is None:
        return "soft"
    return "good" if fraction >= ATTAINMENT_GOOD else "warn" if fraction >= ATTAINMENT_POOR else "bad"


def slo_text(slo: Mapping[str, Any]) -> str:
    kind = slo["kind"]
    if kind == "latency":
        scope = _SCOPES[SloScope(slo["scope"])]
        return f"p{slo['percentile']:g} ≤ {slo['latency_ms']:g} ms{scope}"
    if kind == "tokens":
        return f"first token ≤ {slo['first_token_ms']:g} ms, next ≤ {slo['inter_token_ms']:g} ms"
    if kind == "deadline":
        return f"done within {slo['deadline_s']:g} s"
    return f"≥ {slo['throughput_rps_min']:g}/s"


def planner_text(planner: str) -> str:
    return "each pool's planner" if planner == MERGED else planner


def took_text(elapsed_ms: float) -> str:
    return f"{elapsed_ms:.0f} ms" if elapsed_ms < 1000 else f"{elapsed_ms / 1000:.1f} s"


def since_text(seconds: float) -> str:
    """A duration in its largest sensible unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def moment_text(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%d %b %H:%M")


def outcome_text(cycle: CycleSummary) -> str:
    if cycle.generation is not None:
        return f"promoted as generation {cycle.generation}"
    if cycle.decision is None:
        return "under way" if cycle.state is CycleState.RUNNING else "ended early"
    reasons = [hold_sentence(reason).removesuffix(".") for reason in cycle.decision.reasons]
    return "; ".join(reasons) or "proposed only"
