"""What is read of Mudi's worlds, and how it is judged; the worlds themselves are too long for here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.demo.examples import examples_path
from lab.arena.loading import load
from lab.claims.base import ClaimStatus, Effort
from lab.claims.mudi import models, runs
from lab.claims.mudi.runs import deciding
from lab.claims.registry import claims
from solvers.domain.ids import JobId
from solvers.sim.outcome import JobOutcome, RunOutcome, RunWindow, metric
from solvers.sim.world.world import World

SPAN_S = 1200.0


def window(minute: int, violated_rps: float) -> RunWindow:
    return RunWindow(
        from_s=60.0 * minute,
        until_s=60.0 * (minute + 1),
        asked_rps=100.0,
        in_time_rps=100.0 - violated_rps,
        violated_rps=violated_rps,
        devices_used=1.0,
        replicas=1.0,
        usd_per_h=1.0,
        power_w=1.0,
        utilisation_pct=1.0,
    )


def run(label: str, *late: float, jobs: Sequence[JobOutcome] = ()) -> RunOutcome:
    windows = tuple(window(minute, violated) for minute, violated in enumerate(late))
    metrics = (metric("violation_pct", late[0] if late else 0.0),)
    return RunOutcome(scenario="some", contender=label, seed=0, metrics=metrics, jobs=tuple(jobs), windows=windows)


def test_the_load_borne_is_where_five_late_minutes_begin() -> None:
    rise = runs.RISES_TO - 1.0
    assert runs.load_borne(run("one", *[0.0] * 20), SPAN_S) == runs.RISES_TO
    # One bad minute among five good ones is not enough; a long one percent and a bit is.
    assert runs.load_borne(run("one", *[0.0] * 8, 4.9, *[0.0] * 11), SPAN_S) == runs.RISES_TO
    assert runs.load_borne(run("one", *[0.0] * 10, *[1.1] * 10), SPAN_S) == pytest.approx(1.0 + rise * 0.5)


def test_a_job_that_did_not_end_counts_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    came = {"sim/a": 100.0, "sim/b": 200.0}
    monkeypatch.setattr(runs, "_jobs_of", lambda _scenario: (SPAN_S, came))
    jobs = (
        JobOutcome(job=JobId("sim/a"), waited_s=0.0, took_s=300.0, done_part=1.0),
        JobOutcome(job=JobId("sim/b"), waited_s=None, took_s=None, done_part=0.2),
    )
    assert runs.completion_s({"one": (run("one", jobs=jobs),)}, "some") == {"one": (300.0 + 1000.0) / 2}


def test_six_devices_have_half_of_everything() -> None:
    path = examples_path() / "scenarios" / "mudi-small.yaml"
    whole = load(path, None)
    part = runs.six_devices(path, Path())
    assert isinstance(whole, World)
    assert isinstance(part, World)
    assert len(part.scenario.fleet.devices) == 6
    assert part.about.name != whole.about.name
    assert len(part.scenario.jobs) == (len(whole.scenario.jobs) + 1) // 2
    assert part.scenario.traffic[2].load != whole.scenario.traffic[2].load


@pytest.mark.parametrize(
    ("late", "status"),
    [
        ({"mudi": 0.1, "gslice": 5.0, "muxflow": 0.0, "gpulet": 0.0}, ClaimStatus.PASS),
        ({"mudi": 0.6, "gslice": 5.0, "muxflow": 0.0, "gpulet": 0.0}, ClaimStatus.NOT_REPRODUCED),
        ({"mudi": 0.1, "gslice": 0.5, "muxflow": 0.0, "gpulet": 0.0}, ClaimStatus.NOT_REPRODUCED),
    ],
)
def test_violations_are_judged_by_both_figures(
    monkeypatch: pytest.MonkeyPatch, late: dict[str, float], status: ClaimStatus
) -> None:
    monkeypatch.setattr(
        runs, "measured", lambda _scenario, _effort: {name: (run(name, pct),) for name, pct in late.items()}
    )
    monkeypatch.setattr(runs, "outcomes", lambda *_some: {"mudi": (run("mudi", late["mudi"]),)})
    (claim,) = claims(["AC-MUD-06"])
    assert claim.judge(Effort(seeds=1)).status is status


def test_the_truth_keeps_the_papers_caps_and_tells_where_it_would_not() -> None:
    (claim,) = claims(["AC-MUD-11"])
    evidence = claim.judge(Effort())
    assert evidence.status is ClaimStatus.PASS
    apart = max(models.slowdowns(training=True, overlapping=False).values())
    free = max(models.slowdowns(training=True, overlapping=True).values())
    assert 1.0 < apart < models.BESIDE_TRAINING < free


def test_curves_are_not_judged_without_their_data(tmp_path: Path) -> None:
    (claim,) = claims(["AC-MUD-05"])
    evidence = claim.judge(Effort(data=tmp_path))
    assert evidence.status is ClaimStatus.NOT_REPRODUCED
    assert "HEADROOM_DATA" in evidence.note


def test_a_decision_asks_the_whole_tuner_and_less_than_a_plan() -> None:
    found = deciding("mudi-small")
    assert (found.devices, found.jobs) == (12, 13)
    assert found.decisions_ms
    assert 1 <= found.evaluations_most <= runs.EVALUATIONS_MAX
