"""Statistics of the arena: intervals, paired tests, correction, ranks under a guard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.arena.running import RunRecord
from lab.arena.stats import compare, comparisons, holm, left_out, summary, versus
from solvers.domain.codec import canonical_json
from solvers.errors import InputError
from tests.unit.lab.arena.fake import folder_of, scenario, tasks

FOUR = ("hetsev", "k8s_hpa", "headroom", "melange")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, ...]:
    folder = tmp_path_factory.mktemp("runs")
    return folder_of(folder / "out", tasks([scenario(folder, "one")], FOUR, seeds=8)).records()


def test_the_interval_is_students() -> None:
    told = summary([1.0, 2.0, 3.0, 4.0])
    assert (told.n, told.mean) == (4, 2.5)
    # t of 3 degrees of freedom is 3.182446; the deviation of these is 1.290994.
    assert told.high == pytest.approx(2.5 + 3.182446 * 1.290994 / 2, rel=1e-5)
    assert summary([7.0]).low is None


def test_pairs_see_what_means_do_not() -> None:
    rng = np.random.default_rng(1)
    world = rng.normal(100, 30, 10)
    ours = {seed: 0.9 * world[seed] + rng.normal(0, 0.5) for seed in range(10)}
    theirs = dict(enumerate(world))
    told = versus(ours, theirs)
    assert told is not None
    assert told.p_t is not None
    assert told.p_wilcoxon is not None
    assert told.p_t < 1e-4
    assert told.p_wilcoxon < 0.01
    assert told.relative_pct == pytest.approx(-10, abs=1)
    assert told.relative_pct_low is not None
    assert told.relative_pct_high is not None
    assert told.relative_pct_low <= told.relative_pct <= told.relative_pct_high < -8
    alone = summary(list(ours.values())), summary(list(theirs.values()))
    assert alone[0].high is not None
    assert alone[1].low is not None
    assert alone[0].high > alone[1].low


def test_few_pairs_and_steady_ones_are_not_tested() -> None:
    same = versus({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    shifted = versus({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    single = versus({0: 2.0}, {0: 1.0})
    assert same is not None
    assert shifted is not None
    assert single is not None
    assert (same.p, same.distinct) == (None, False)
    assert (shifted.p, shifted.distinct) == (None, True)
    assert (single.p, single.distinct, single.difference_low) == (None, False, None)
    assert versus({0: 1.0}, {1: 1.0}) is None
    few = versus({0: 1.0, 1: 2.5, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 3.5})
    assert few is not None
    assert few.p_t is not None
    assert few.p_wilcoxon is None
    nothing = versus({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0})
    assert nothing is not None
    assert nothing.relative_pct is None


def test_holms_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_who_breaks_the_guard_is_not_ranked_however_cheap(records: tuple[RunRecord, ...]) -> None:
    found = compare(records)
    assert found is not None
    assert found.reference == "hetsev"
    assert [(row.contender, row.rank) for row in found.rows] == [
        ("headroom", 1), ("hetsev", 2), ("k8s_hpa", 3), ("melange", None),
    ]  # fmt: skip
    cheap = found.rows[-1].cell("cost_usd")
    assert cheap is not None
    assert cheap.summary.mean < 6
    assert cheap.versus is not None
    assert cheap.versus.distinct


def test_ours_is_told_against_the_best_other(records: tuple[RunRecord, ...]) -> None:
    found = compare(records)
    assert found is not None
    assert found.verdict is not None
    assert (found.verdict.against, found.verdict.guard_kept) == ("hetsev", True)
    assert found.verdict.gain_pct == pytest.approx(20, abs=2)
    assert found.verdict.gain_pct_low is not None
    assert found.verdict.gain_pct_high is not None
    assert found.verdict.gain_pct_low < found.verdict.gain_pct < found.verdict.gain_pct_high


def test_correction_never_makes_a_difference_surer(records: tuple[RunRecord, ...]) -> None:
    found = compare(records)
    assert found is not None
    told = [cell.versus for row in found.rows for cell in row.cells if cell.versus is not None]
    tested = [each for each in told if each.p is not None and each.p_t is not None]
    assert len(tested) >= 6
    assert all(each.p >= each.p_t for each in tested if each.p is not None and each.p_t is not None)


def test_the_reference_can_be_chosen_and_must_have_run(records: tuple[RunRecord, ...]) -> None:
    (found,) = comparisons(records, "melange")
    assert found.reference == "melange"
    assert {row.rank for row in found.rows} == {1, 2, 3, 4}
    with pytest.raises(InputError, match="no run of 'nobody'"):
        comparisons(records, "nobody")


def test_a_contender_that_failed_is_told_and_not_ranked(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one", fails="k8s_hpa")], FOUR[:3])
    found = compare(folder_of(tmp_path / "out", wanted).records())
    assert found is not None
    assert [(row.contender, row.rank, row.failed) for row in found.rows] == [
        ("headroom", 1, 0), ("hetsev", 2, 0), ("k8s_hpa", None, 2),
    ]  # fmt: skip


def test_the_same_runs_say_the_same_in_any_order(records: tuple[RunRecord, ...]) -> None:
    assert canonical_json(comparisons(records)) == canonical_json(comparisons(records[::-1]))


def test_who_leaves_a_service_out_is_told_and_not_ranked(records: tuple[RunRecord, ...]) -> None:
    assert left_out(records) == {}

    def without(record: RunRecord) -> RunRecord:
        """Nothing of the first service, as under callers that wait for answers: so nothing was asked of it."""
        assert record.outcome is not None
        first, *others = record.outcome.services
        none = replace(first, asked=0.0, completed=0.0, late=0.0, dropped=0.0)
        return replace(record, outcome=replace(record.outcome, services=(none, *others)))

    lacking = tuple(
        without(record) if record.contender.label == "headroom" and record.seed == 3 else record for record in records
    )
    (service,) = {record.outcome.services[0].service for record in records if record.outcome is not None}
    assert left_out(lacking) == {"headroom": (service,)}
    compared = compare(lacking)
    assert compared is not None
    (row,) = (each for each in compared.rows if each.contender == "headroom")
    assert (row.left_out, row.eligible, row.rank) == ((service,), False, None)
    # What nobody could serve is nobody's omission.
    assert left_out([without(record) for record in records]) == {}
