"""Folders of results: resumed, never mixed, the same bytes again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from lab.arena.running import run_task
from lab.arena.store import ResultFolder, out_of_date, records_of
from solvers.errors import InputError
from tests.unit.lab.arena.fake import folder_of, scenario, tasks

TABLES = ("results", "services", "jobs", "windows")


def test_only_what_is_missing_is_run_again(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one")], ["hetsev", "k8s_hpa"])
    kept = folder_of(tmp_path / "out", wanted[:3])
    assert kept.missing(wanted) == wanted[3:]
    assert len(kept.records()) == 3
    assert folder_of(tmp_path / "out", wanted).missing(wanted) == ()


def test_a_failure_is_kept_and_tried_again(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one", fails="hetsev")], ["hetsev"], seeds=1)
    kept = folder_of(tmp_path / "out", wanted)
    assert kept.records()[0].error == "hetsev cannot run here"
    assert kept.missing(wanted) == wanted
    (trace,) = (tmp_path / "out" / "failures").iterdir()
    assert trace.stem == wanted[0].key
    assert "EngineError" in trace.read_text()


def test_equal_runs_are_equal_bytes_and_hold_no_wall_time(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one"), scenario(tmp_path, "two")], ["hetsev", "k8s_hpa"])
    for name, order in (("first", wanted), ("second", wanted[::-1])):
        folder_of(tmp_path / name, order).write_tables()
    runs = sorted(path.name for path in (tmp_path / "first" / "runs").iterdir())
    assert runs == sorted(f"{task.key}.json" for task in wanted)
    files = [*(f"runs/{name}" for name in runs), *(f"{name}.parquet" for name in TABLES), "wanted.json"]
    for name in files:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert "wall" not in (tmp_path / "first" / files[0]).read_text()
    times = ResultFolder(tmp_path / "first").times(wanted[0].key)
    assert times is not None
    assert times.wall_s >= 0


def test_tables_hold_every_number(tmp_path: Path) -> None:
    kept = folder_of(tmp_path / "out", tasks([scenario(tmp_path, "one")], ["hetsev", "k8s_hpa"]))
    kept.write_tables()
    tables = {name: pyarrow.parquet.read_table(tmp_path / "out" / f"{name}.parquet") for name in TABLES}
    assert tables["results"].column_names == ["scenario", "contender", "seed", "metric", "value", "better"]
    told = {(row["contender"], row["seed"], row["metric"]): row["value"] for row in tables["results"].to_pylist()}
    assert len(told) == 2 * 2 * 3
    for record in kept.records():
        assert record.outcome is not None
        for metric in record.outcome.metrics:
            assert told[record.contender.label, record.seed, metric.name] == metric.value
    assert tables["services"].num_rows == tables["jobs"].num_rows == 4
    assert tables["jobs"].column("took_s").null_count == 2
    assert tables["windows"].num_rows == 4 * 24


def test_a_folder_without_services_still_has_its_columns(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    kept = ResultFolder(tmp_path / "out")
    kept.want(wanted)
    finished = run_task(wanted[0], lambda part: None)
    assert finished.record.outcome is not None
    bare = replace(finished.record.outcome, services=(), jobs=(), windows=())
    kept.put(replace(finished, record=replace(finished.record, outcome=bare)))
    kept.write_tables()
    table = pyarrow.parquet.read_table(tmp_path / "out" / "services.parquet")
    assert table.num_rows == 0
    assert {"service", "asked", "latency_ms_p99", "attained"} <= set(table.column_names)


def test_a_changed_scenario_replaces_what_was_known_of_it_and_nothing_else(tmp_path: Path) -> None:
    both = [scenario(tmp_path, "one"), scenario(tmp_path, "two")]
    folder_of(tmp_path / "out", tasks(both, ["hetsev", "k8s_hpa"]))
    scenario(tmp_path, "one", fails="greedy")
    kept = folder_of(tmp_path / "out", tasks(both[:1], ["hetsev"]))
    told = {(record.scenario, record.contender.label) for record in kept.records()}
    assert told == {("one", "hetsev"), ("two", "hetsev"), ("two", "k8s_hpa")}


def test_other_contenders_join_those_that_are_there(tmp_path: Path) -> None:
    one = [scenario(tmp_path, "one")]
    folder_of(tmp_path / "out", tasks(one, ["hetsev"]))
    kept = folder_of(tmp_path / "out", tasks(one, ["k8s_hpa"], seeds=1))
    assert [(record.contender.label, record.seed) for record in kept.records()] == [
        ("hetsev", 0), ("hetsev", 1), ("k8s_hpa", 0),
    ]  # fmt: skip


def test_what_is_no_folder_of_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results"):
        ResultFolder(tmp_path).records()
    (tmp_path / "wanted.json").write_text("[1]")
    with pytest.raises(InputError, match=r"wanted\.json"):
        ResultFolder(tmp_path).records()


def test_half_written_runs_are_missing_and_told_and_the_others_stay(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one")], ["hetsev", "k8s_hpa"])
    kept = folder_of(tmp_path / "out", wanted)
    assert kept.lacking() == 0
    for task, text in zip(wanted, ("", '{"key": "x', '{"key": 1}', None), strict=True):
        path = tmp_path / "out" / "runs" / f"{task.key}.json"
        path.unlink() if text is None else path.write_text(text)
        assert task in kept.missing(wanted)
    assert (kept.lacking(), kept.records(), kept.missing(wanted)) == (4, (), wanted)
    (tmp_path / "out" / "runs" / "left.json.7.part").write_text("{")
    again = folder_of(tmp_path / "out", wanted)
    assert (again.lacking(), len(again.records())) == (0, 4)


def test_folders_read_together_are_one_and_never_contradict(tmp_path: Path) -> None:
    one = scenario(tmp_path, "one")
    ours = folder_of(tmp_path / "ours", tasks([one], ["headroom", "hetsev"], seeds=1))
    theirs = folder_of(tmp_path / "theirs", tasks([one, scenario(tmp_path, "two")], ["hetsev", "k8s_hpa"], seeds=2))
    runs = [(item.scenario, item.contender.label, item.seed) for item in records_of([ours, theirs])]
    assert runs == sorted(runs)
    assert len(runs) == len(set(runs)) == 1 + 2 * 2 * 2

    (held,) = (item for item in ours.records() if item.contender.label == "hetsev")
    assert held.outcome is not None
    other = replace(held, outcome=replace(held.outcome, metrics=held.outcome.metrics[:1]))
    ours.put(replace(run_task(tasks([one], ["hetsev"], seeds=1)[0], lambda _: None), record=other))
    with pytest.raises(InputError, match="one x hetsev, seed 0, came out otherwise"):
        records_of([ours, theirs])

    changed = scenario(tmp_path / "theirs", "one", fails="nobody")
    with pytest.raises(InputError, match="another one"):
        records_of([folder_of(tmp_path / "new", tasks([changed], ["headroom"], seeds=1)), theirs])


def test_a_failed_run_gives_way_to_the_same_run_of_another_folder(tmp_path: Path) -> None:
    wanted = tasks([scenario(tmp_path, "one")], ["hetsev"], seeds=1)
    failed = folder_of(tmp_path / "failed", ())
    finished = run_task(wanted[0], lambda _: None)
    failed.want(wanted)
    failed.put(replace(finished, record=replace(finished.record, outcome=None, error="out of memory")))
    for order in ((failed, folder_of(tmp_path / "fine", wanted)), (folder_of(tmp_path / "fine", wanted), failed)):
        (record,) = records_of(order)
        assert record.outcome is not None


def test_runs_of_other_software_or_of_a_changed_file_are_told_to_be(tmp_path: Path) -> None:
    held = folder_of(tmp_path / "out", tasks([scenario(tmp_path, "one"), scenario(tmp_path, "two")], ["hetsev"]))
    records = held.records()
    now = {record.scenario: record.scenario_digest for record in records}
    assert out_of_date(records, now) == out_of_date(records, {}) == ()
    first = replace(records[0], software="0.0.1+before")
    assert out_of_date([first, *records[1:]], {**now, "two": "sha256:other"}) == (
        "1 of 4 runs are of other software than this: run them again",
        "two is another file now than these runs read: run them again",
    )
    second = replace(records[1], software="0.0.2+before")
    assert out_of_date([first, second], now) == (
        "2 of 2 runs are of other software than this (2 versions of it): run them again",
    )
