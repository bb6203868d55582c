"""How the console writes numbers, shares, SLOs and decisions, and that its templates escape what they are given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from jinja2 import UndefinedError

from app.api.console.glance import COLOURS, TEXTURES, paint, tile
from app.api.console.words import environment, number, outcome_text, percent, since_text, slo_text, tone
from app.records import record_of
from app.store.cycles import CycleState, CycleSummary
from solvers.cycle.record import Decision, HoldReason
from solvers.domain.codec import to_plain
from solvers.domain.workload import Slo, SloKind, SloScope

NARROW = "\N{NARROW NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("quantity", "digits", "shown"),
    [
        (None, 0, "–"),
        (0, 0, "0"),
        (999.5, 0, "1\N{NARROW NO-BREAK SPACE}000"),
        (1234567.891, 2, f"1{NARROW}234{NARROW}567.89"),
        (0.05, 1, "0.1"),
        (-3.0, 0, "-3"),
    ],
)
def test_numbers_have_thin_thousands(quantity: float | None, digits: int, shown: str) -> None:
    assert number(quantity, digits) == shown


@pytest.mark.parametrize(("fraction", "shown"), [(None, "–"), (0.0, "0.0 %"), (0.98765, "98.8 %"), (1.0, "100.0 %")])
def test_fractions_are_per_cent(fraction: float | None, shown: str) -> None:
    assert percent(fraction) == shown


@pytest.mark.parametrize(
    ("fraction", "colour"),
    [(None, "soft"), (1.0, "good"), (0.98, "good"), (0.9799, "warn"), (0.90, "warn"), (0.8999, "bad"), (0.0, "bad")],
)
def test_attainment_has_a_colour(fraction: float | None, colour: str) -> None:
    assert tone(fraction) == colour


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"),
        (59.4, "59 s"),
        (60.0, "1 min"),
        (3599.0, "60 min"),
        (3600.0, "1 h"),
        (86_400.0, "1 d"),
        (864_000.0, "10 d"),
    ],
)
def test_durations_come_in_their_largest_unit(seconds: float, shown: str) -> None:
    assert since_text(seconds) == shown


_SLOS = {
    SloKind.LATENCY: (Slo(latency_ms=62.5, percentile=99.9), "p99.9 ≤ 62.5 ms"),
    SloKind.TOKENS: (
        Slo(kind=SloKind.TOKENS, first_token_ms=200.0, inter_token_ms=30.0),
        "first token ≤ 200 ms, next ≤ 30 ms",
    ),
    SloKind.DEADLINE: (Slo(kind=SloKind.DEADLINE, deadline_s=3600.0), "done within 3600 s"),
    SloKind.THROUGHPUT: (Slo(kind=SloKind.THROUGHPUT, throughput_rps_min=12.5), "≥ 12.5/s"),
}


@pytest.mark.parametrize("kind", SloKind)
def test_every_kind_of_slo_is_told_in_words(kind: SloKind) -> None:
    slo, words = _SLOS[kind]
    plain = to_plain(slo)
    assert isinstance(plain, dict)
    assert slo_text(plain) == words


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (SloScope.END_TO_END, "p99 ≤ 100 ms"),
        (SloScope.EXECUTION, "p99 ≤ 100 ms of execution"),
    ],
)
def test_a_latency_that_is_not_end_to_end_says_of_what_it_is(scope: SloScope, words: str) -> None:
    plain = to_plain(Slo(latency_ms=100.0, percentile=99.0, scope=scope))
    assert isinstance(plain, dict)
    assert slo_text(plain) == words


def _replica(name: str, share: int, state: str = "ready") -> dict[str, Any]:
    return {
        "replica": name, "workload": name.partition("#")[0], "share_pct_sm": share, "batch": 8, "state": state,
    }  # fmt: skip


def test_a_device_is_a_bar_with_a_segment_for_each_replica() -> None:
    replicas = [_replica("p/a#0", 30), _replica("p/b#0", 50, "starting"), _replica("q/gone#0", 10)]
    drawn = tile({"id": "g1", "replicas": replicas}, {"p/a": paint(1), "p/b": paint(2)})
    assert drawn["id"] == "g1"
    assert [(part["x"], part["width"], part["paint"], part["ready"]) for part in drawn["segments"]] == [
        (0, 30, paint(1), True),
        (30, 50, paint(2), False),
        (80, 10, paint(0), True),
    ]
    assert drawn["segments"][1]["title"] == "p/b#0: 50 % of the SMs, batch 8, starting"


def test_paints_repeat_only_when_colours_and_textures_are_used_up() -> None:
    assert len({paint(index) for index in range(COLOURS * TEXTURES)}) == COLOURS * TEXTURES
    assert paint(COLOURS * TEXTURES) == paint(0)


def _cycle(decision: Decision | None, *, generation: int | None = None, state: str = "closed") -> CycleSummary:
    empty = dict.fromkeys(field.name for field in fields(CycleSummary))
    return record_of(
        CycleSummary, {**empty, "state": CycleState(state), "generation": generation, "decision": decision}
    )


@pytest.mark.parametrize(
    ("cycle", "words"),
    [
        (_cycle(Decision(promote=False), generation=7), "promoted as generation 7"),
        (_cycle(None, state="running"), "under way"),
        (_cycle(None, state="aborted"), "ended early"),
        (_cycle(Decision(promote=False)), "proposed only"),
        (
            _cycle(Decision(promote=False, reasons=(HoldReason.COOLDOWN, HoldReason.SMALL_GAIN))),
            "the last change is too recent; the gain is smaller than the policy's minimum",
        ),
    ],
)
def test_a_cycle_ends_in_words(cycle: CycleSummary, words: str) -> None:
    assert outcome_text(cycle) == words


def test_every_reason_to_hold_has_words() -> None:
    said = {outcome_text(_cycle(Decision(promote=False, reasons=(reason,)))) for reason in HoldReason}
    assert len(said) == len(HoldReason)


def test_templates_escape_and_miss_nothing_in_silence() -> None:
    templates = environment()
    told = {"theme": "dark", "asset": str, "note": "", "code": "", "back": "/", "signed_in": False, "by_provider": True}
    page = templates.get_template("signin.html").render(problem="<b>&\"'", **told)
    assert "&lt;b&gt;&amp;&#34;&#39;" in page
    with pytest.raises(UndefinedError):
        templates.get_template("signin.html").render()
    assert templates.from_string("{{ x|number }} {{ x|percent }} {{ x|tone }}").render(x=None) == "– – soft"


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (0.996, '<span class="soft">+0.00</span>'),
        (1.004, '<span class="soft">+0.00</span>'),
        (0.9, '<span class="good">-0.10</span>'),
        (1.1, '<span class="warn">+0.10</span>'),
    ],
)
def test_a_change_that_is_not_shown_is_neither_good_nor_bad(after: float, told: str) -> None:
    source = '{% from "macros.html" import change %}{{ change(1.0, after) }}'
    assert environment().from_string(source).render(after=after) == told
