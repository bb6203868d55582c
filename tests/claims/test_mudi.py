"""What is counted of Mudi's plans and read of its worlds; the worlds themselves are too long for here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.demo.fleet import examples_path
from lab.arena.loading import load
from lab.claims.claim import ClaimStatus, Effort, world_of
from lab.claims.mudi import rules, worlds
from lab.claims.mudi.worlds import deciding
from lab.claims.planned import request_of
from lab.outcome import JobOutcome, RunOutcome, RunWindow, metric
from lab.world.world import World
from solvers.domain.ids import JobId
from solvers.planners.case import Case
from solvers.policies.mudi.curves import MudiCurves

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
    rise = worlds.RISES_TO - 1.0
    assert worlds.load_borne(run("one", *[0.0] * 20), SPAN_S) == worlds.RISES_TO
    # One bad minute among five good ones is not enough; a long one percent and a bit is.
    assert worlds.load_borne(run("one", *[0.0] * 8, 4.9, *[0.0] * 11), SPAN_S) == worlds.RISES_TO
    assert worlds.load_borne(run("one", *[0.0] * 10, *[1.1] * 10), SPAN_S) == pytest.approx(1.0 + rise * 0.5)


def test_a_job_that_did_not_end_counts_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    came = {"sim/a": 100.0, "sim/b": 200.0}
    monkeypatch.setattr(worlds, "_jobs_of", lambda _scenario: (SPAN_S, came))
    jobs = (
        JobOutcome(job=JobId("sim/a"), waited_s=0.0, took_s=300.0, done_part=1.0),
        JobOutcome(job=JobId("sim/b"), waited_s=None, took_s=None, done_part=0.2),
    )
    assert worlds.completion_s({"one": (run("one", jobs=jobs),)}, "some") == {"one": (300.0 + 1000.0) / 2}


def test_six_devices_have_half_of_everything() -> None:
    path = examples_path() / "scenarios" / "mudi-small.yaml"
    whole = load(path, None)
    part = worlds.six_devices(path, Path())
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
        worlds, "measured", lambda _scenario, _effort: {name: (run(name, pct),) for name, pct in late.items()}
    )
    monkeypatch.setattr(worlds, "outcomes", lambda *_some: {"mudi": (run("mudi", late["mudi"]),)})
    assert worlds.violations(Effort(seeds=1)).status is status


def test_whole_gpus_each_would_break_the_papers_cap() -> None:
    apart = max(rules.slowdowns(training=True, overlapping=False).values())
    free = max(rules.slowdowns(training=True, overlapping=True).values())
    assert 1.0 < apart < rules.BESIDE_TRAINING < free


def test_what_was_seen_is_counted() -> None:
    assert "of 1000 random curves" in rules.shares(Effort()).measured
    assert rules.memory_suffices(Effort(examples=20)).measured.startswith("12 plans: 0 devices")


def test_a_decision_asks_the_whole_tuner_and_less_than_a_plan() -> None:
    found = deciding("mudi-small")
    assert (found.devices, found.jobs) == (12, 16)
    assert found.decisions_ms
    assert 1 <= found.evaluations_most <= worlds.EVALUATIONS_MAX


def test_in_its_world_training_that_nobody_measured_steepens_curves_by_what_it_is_made_of() -> None:
    picture, jobs = worlds._picture(world_of("mudi-small"))
    unknown = {job.model for job in jobs} - {profile.model for profile in picture.profiles}
    assert {"vgg16", "ncf", "ad-gcl"} <= unknown
    case = Case.of(request_of(picture, 0))
    made = MudiCurves(beliefs=case.beliefs, models=picture.models_by_name())
    for need in case.needs:
        alone, slopes = made.beside(need, 0, ()), made.slopes(0)
        beside = [made.beside(need, 0, (model,)) for model in sorted(unknown)]
        told = {round(each[8].l0 / alone[8].l0, 6) for each in beside}
        assert len(told) > len(unknown) / 2
        assert 1.0 <= min(told) < max(told) <= slopes.worst
