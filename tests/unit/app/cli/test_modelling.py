"""Fitting and predicting from files, and measurements in a control plane: what is said of each row, and of files that
do not fit.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.cli.output import Exit
from tests.unit.app.cli.conftest import Api, Headroom, page

SOLO = (
    "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms,throughput_rps,power_w,memory_mib,l2_util_pct,"
    "dram_util_pct"
)
PAIRS = "gpu_type,model_a,batch_a,share_pct_a,model_b,batch_b,share_pct_b,latency_ms_a,latency_ms_b"
LATENCIES_MS = {
    (model, batch, share): 1 + work * (0.5 + 0.6 * batch) * 100 / share
    for model, work in (("alpha", 1.0), ("Beta 2", 2.0))
    for batch in (1, 4, 16)
    for share in (20, 40, 80)
}


@pytest.fixture
def solo(tmp_path: Path) -> Path:
    lines = [
        f"{model},t4,{batch},{share},,{latency},,30,{900 + batch},,"
        for (model, batch, share), latency in LATENCIES_MS.items()
    ]
    return written(tmp_path / "solo.csv", SOLO, *lines)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    lines = []
    for (model, batch, share), latency in LATENCIES_MS.items():
        other = LATENCIES_MS["alpha", 4, 20]
        lines.append(f"t4,{model},{batch},{share},alpha,4,20,{latency * 1.2},{other * 1.2}")
    return written(tmp_path / "pairs.csv", PAIRS, *lines)


_fitted: list[bytes] = []
"""What these files are fitted to, once that was done."""


@pytest.fixture
def fitted(headroom: Headroom, solo: Path, pairs: Path, tmp_path: Path) -> str:
    out = tmp_path / "model.json"
    if _fitted:
        out.write_bytes(*_fitted)
        return str(out)
    said = headroom("fit", "--solo", str(solo), "--pairs", str(pairs), "--model", "constant", "--out", str(out))
    assert (said.status, said.out) == (Exit.OK, "")
    assert "18 rows and 18 pairs" in said.err
    _fitted.append(out.read_bytes())
    return str(out)


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_answers_come_row_by_row_behind_the_questions(headroom: Headroom, fitted: str, tmp_path: Path) -> None:
    asked = written(tmp_path / "q.csv", "share_pct_sm,model,batch,gpu_type", "40,alpha,4,t4", "80,Beta 2,1,t4")
    out = tmp_path / "a.csv"
    said = headroom("predict", "--model", fitted, "--queries", str(asked), "--out", str(out))
    assert (said.status, said.out, said.err) == (Exit.OK, "", "")
    text = out.read_text(encoding="utf-8")
    assert text.splitlines()[0] == (
        "share_pct_sm,model,batch,gpu_type,latency_ms,latency_ms_std,throughput_rps,power_w,memory_mib,origin,support"
    )
    rows = table(text)
    assert [row["model"] for row in rows] == ["alpha", "Beta 2"]
    for row in rows:
        expected = LATENCIES_MS[row["model"], int(row["batch"]), int(row["share_pct_sm"])]
        assert float(row["latency_ms"]) == pytest.approx(expected, rel=0.02)
        assert float(row["latency_ms_std"]) > 0
        assert float(row["throughput_rps"]) == pytest.approx(
            1000 * int(row["batch"]) / float(row["latency_ms"]), rel=1e-5
        )
        assert float(row["power_w"]) == pytest.approx(30)
        assert float(row["memory_mib"]) == pytest.approx(900 + int(row["batch"]))
        assert (row["origin"], row["support"]) == ("measured", "true")


def test_names_of_one_gpu_type_are_one_curve(headroom: Headroom, tmp_path: Path) -> None:
    names = ("NVIDIA A100-SXM4-80GB", "a100", "A100 80GB", "a100-80gb")
    rows = [
        f"alpha,{names[place % 3]},{batch},{share},{latency_ms}"
        for place, ((model, batch, share), latency_ms) in enumerate(LATENCIES_MS.items())
        if model == "alpha"
    ]
    file = written(tmp_path / "s.csv", "model,gpu_type,batch,share_pct_sm,latency_ms", *rows)
    beside = [f"{name},alpha,4,40,alpha,4,40,{1.2 * LATENCIES_MS['alpha', 4, 40]}," for name in names[:2]]
    pairs = written(tmp_path / "p.csv", PAIRS, *beside)
    model = str(tmp_path / "m.json")
    said = headroom("fit", "--solo", str(file), "--pairs", str(pairs), "--model", "constant", "--out", model)
    assert (said.status, said.err.count("\n")) == (Exit.OK, 1)
    questions = [f"alpha,{name},{batch},{share}" for name in names for batch, share in ((1, 20), (16, 80))]
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", *questions, "alpha,a100-40gb,1,20")
    *found, other = table(headroom("predict", "--model", model, "--queries", str(asked)).out)
    assert [row["gpu_type"] for row in found] == [name for name in names for _ in "ab"]
    assert {(row["origin"], row["support"]) for row in found} == {("measured", "true")}
    assert len({row["latency_ms"] for row in found}) == 2
    assert other["origin"] != "measured"


@pytest.mark.parametrize(
    "names",
    [
        ("ResNet-50", "resnet50", "resnet_50", "RESNET50"),
        ("resnet50-int8", "ResNet-50_INT8", "resnet_50-int8", "resnet50 int8"),
        ("Our-Net_v2", "our_net_v2", "OurNet-v2", "ournetv2"),
    ],
)
def test_spellings_of_one_network_are_one_curve(headroom: Headroom, tmp_path: Path, names: tuple[str, ...]) -> None:
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", *(f"{name},a100,8,50" for name in names))
    answers = set()
    for spelt in (names, names[:1] * len(names)):
        rows = [
            f"{name},a100,{batch},{20 + 20 * place},{2 + 0.3 * batch / (1 + place):.3f}"
            for place, name in enumerate(spelt)
            for batch in (1, 4, 16)
        ]
        file = written(tmp_path / "s.csv", "model,gpu_type,batch,share_pct_sm,latency_ms", *rows)
        model = str(tmp_path / "m.json")
        assert headroom("fit", "--solo", str(file), "--out", model).status == Exit.OK
        told = table(headroom("predict", "--model", model, "--queries", str(asked)).out)
        assert [row["model"] for row in told] == list(names)
        answers |= {(row["latency_ms"], row["latency_ms_std"], row["origin"]) for row in told}
    ((_, _, origin),) = answers
    assert origin == "measured"


def test_pairs_are_answered_with_their_slowdown(headroom: Headroom, fitted: str, tmp_path: Path) -> None:
    asked = written(tmp_path / "q.csv", PAIRS.removesuffix(",latency_ms_a,latency_ms_b"), "t4,alpha,4,40,Beta 2,1,40")
    said = headroom("predict", "--model", fitted, "--queries", str(asked), "--out", "-")
    assert said.status == Exit.OK
    (row,) = table(said.out)
    assert list(row)[-8:-4] == ["latency_ms_a", "latency_ms_b", "latency_ms_a_std", "latency_ms_b_std"]
    words = [row[f"{name}_{side}"] for name in ("origin", "support") for side in "ab"]
    assert words == ["measured", "measured", "false", "true"]
    assert float(row["latency_ms_a"]) == pytest.approx(1.2 * LATENCIES_MS["alpha", 4, 40], rel=0.03)
    assert float(row["latency_ms_b"]) == pytest.approx(1.2 * LATENCIES_MS["Beta 2", 1, 40], rel=0.03)


def test_what_is_not_known_stays_empty_and_is_counted(headroom: Headroom, fitted: str, tmp_path: Path) -> None:
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "stranger,t4,4,40", "alpha,t4,4,40")
    said = headroom("predict", "--model", fitted, "--queries", str(asked))
    assert said.status == Exit.OK
    rows = table(said.out)
    assert [row["latency_ms"] == "" for row in rows] == [True, False]
    assert [(row["origin"], row["support"]) for row in rows] == [("", ""), ("measured", "true")]
    assert "1 of 2 rows stay empty" in said.err


def test_a_file_of_measurements_can_be_asked_again(headroom: Headroom, fitted: str, solo: Path) -> None:
    said = headroom("predict", "--model", fitted, "--queries", str(solo))
    assert said.status == Exit.OK
    assert "not looked at, because they are measured: latency_ms, throughput_rps" in said.err
    rows = table(said.out)
    assert len(rows) == len(LATENCIES_MS)
    for row, expected in zip(rows, LATENCIES_MS.values(), strict=True):
        assert float(row["latency_ms"]) == pytest.approx(expected, rel=0.02)


def test_several_files_follow_one_option_and_equal_fits_are_equal_files(
    headroom: Headroom, solo: Path, tmp_path: Path
) -> None:
    header, *lines = solo.read_text(encoding="utf-8").splitlines()
    first = written(tmp_path / "1.csv", header, *lines[:9])
    second = written(tmp_path / "2.csv", header, *lines[9:])
    outs = [tmp_path / f"{way}.json" for way in ("whole", "parts", "repeated", "equals")]
    given = [
        ("--solo", str(solo)),
        ("--solo", str(first), str(second)),
        ("--solo", str(first), "--solo", str(second)),
        (f"--solo={first}", str(second)),
    ]
    for files, out in zip(given, outs, strict=True):
        said = headroom("fit", *files, "--out", str(out), "--model", "hetsev")
        assert said.status == Exit.OK, said.err
        assert "18 rows" in said.err
    assert len({out.read_bytes() for out in outs}) == 1


def test_a_model_file_may_be_compressed(headroom: Headroom, solo: Path, tmp_path: Path) -> None:
    plain, small = tmp_path / "m.json", tmp_path / "m.json.gz"
    for out in (plain, small):
        assert headroom("fit", "--solo", str(solo), "--out", str(out), "--model", "hetsev").status == Exit.OK
    assert gzip.decompress(small.read_bytes()) == plain.read_bytes()
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,40")
    answers = {headroom("predict", "--model", str(out), "--queries", str(asked)).out for out in (plain, small)}
    assert len(answers) == 1


def test_bad_rows_are_named_and_nothing_is_written(headroom: Headroom, solo: Path, pairs: Path, tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.csv", SOLO, "a,t4,1,50,,4,,,,,", "a,t4,x,150,,4,,,,,", "a,t4,1")
    bad_pairs = written(tmp_path / "bad pairs.csv", PAIRS, "t4,a,1,50,b,1,50,-1,1")
    out = tmp_path / "m.json"
    files = ("--solo", str(solo), str(bad), "--pairs", str(bad_pairs))
    said = headroom("fit", *files, "--out", str(out), "--model", "constant")
    assert said.status == Exit.USAGE
    assert said.err.splitlines() == [
        f"{bad}:3: batch: 'x' is not a number",
        f"{bad}:3: share_pct_sm: 150 must be at most 100",
        f"{bad}:4: 3 cells under 11 columns",
        f"{bad_pairs}:2: latency_ms_a: -1 must be at least 1e-06",
        "headroom: 3 bad rows; nothing was written (--skip-bad leaves them out)",
    ]
    assert not out.exists()
    kept = headroom("fit", *files, str(pairs), "--out", str(out), "--model", "constant", "--skip-bad")
    assert kept.status == Exit.OK
    assert f"{bad}:4: 3 cells" in kept.err
    assert "19 rows and 18 pairs" in kept.err
    assert out.exists()


SOLO_TOLD = "model,gpu_type,batch,share_pct_sm,latency_ms,throughput_rps"


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        (["a,t4,4,50,18,", "a,t4,4,50,8,"], 3, "8 ms here and 18 ms at {file}:2 are of one configuration"),
        (["a,t4,4,50,18,", "a,t4,4,50,0.018,"], 3, "are of one configuration; are these seconds among milliseconds?"),
        (["a,t4,4,50,18,", "a,t4,8,50,0.02,"], 3, "where no less is to be done; are these seconds among"),
        (["a,t4,4,20,0.02,", "a,t4,4,50,18,"], 2, "where no less is to be done; are these seconds among"),
        (["a,t4,4,50,18,2000"], 2, "2000 inputs/s contradict 18 ms for a batch of 4"),
        (["a,t4,4,50,18,20"], 2, "20 inputs/s contradict 18 ms for a batch of 4"),
    ],
)
def test_doubtful_rows_are_told_and_learned_from(
    headroom: Headroom, tmp_path: Path, rows: list[str], line: int, words: str
) -> None:
    file, out = written(tmp_path / "s.csv", SOLO_TOLD, *rows), tmp_path / "m.json"
    said = headroom("fit", "--solo", str(file), "--model", "constant", "--out", str(out))
    assert said.status == Exit.OK
    told, counted, _ = said.err.splitlines()
    assert told.startswith(f"{file}:{line}: doubtful: ")
    assert words.format(file=file) in told
    assert counted == "1 doubtful rows are learned from as they are"
    assert out.exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("alexnet,Tesla V100,8,50,15,,949944320", "memory_mib 949944320 where a GPU has 32768 MiB; are these bytes or"),
        ("alexnet,v100,8,50,15,90000,", "power_w 90000 where a GPU takes 300 W; are these milliwatts?"),
        ("AlexNet,v100,8,50,15,60,0.9", "memory_mib 0.9 where the weights take 233.1 MiB; are these GiB?"),
        ("bert-large,card,8,50,15,60,3", "memory_mib 3 where the weights take 1278.3 MiB; are these GiB?"),
        ("a,card,8,50,15,,949944320", "memory_mib 949944320 where a GPU has 1048576 MiB; are these bytes"),
        ("a,card,8,50,15,90000,", "power_w 90000 where a GPU takes 3000 W; are these milliwatts?"),
    ],
)
def test_memory_and_power_in_other_units_are_told(headroom: Headroom, tmp_path: Path, row: str, words: str) -> None:
    header = "model,gpu_type,batch,share_pct_sm,latency_ms,power_w,memory_mib"
    usual = ("alexnet,v100,1,50,5,310,240", "alexnet,v100,2,50,5,0,32768", "a,card,1,50,5,1400,0.9")
    file, out = written(tmp_path / "s.csv", header, *usual, row), tmp_path / "m.json"
    said = headroom("fit", "--solo", str(file), "--model", "constant", "--out", str(out))
    assert (said.status, said.err.count("doubtful: ")) == (Exit.OK, 1)
    assert said.err.startswith(f"{file}:5: doubtful: {words}")


@pytest.mark.parametrize("text", ['[{"model":"a","batch":1}]', '\n{"points":[]}', "[1,2", "\ufeff[]"])
def test_json_is_told_from_csv(headroom: Headroom, tmp_path: Path, text: str) -> None:
    file = written(tmp_path / "s.json", text)
    said = headroom("fit", "--solo", str(file), "--model", "constant", "--out", str(tmp_path / "m.json"))
    assert said.status == Exit.USAGE
    assert said.err == (
        f"headroom: {file}: this is JSON, and CSV is read here; `headroom profiles import` takes measurements in JSON\n"
    )


def test_what_is_usual_is_no_doubt(headroom: Headroom, solo: Path, pairs: Path, tmp_path: Path) -> None:
    usual = written(
        tmp_path / "s.csv", SOLO_TOLD, "a,t4,4,50,18,", "a,t4,4,50,25,400", "a,t4,8,50,,300", "a,t4,8,50,30,"
    )
    for files in (("--solo", str(solo), "--pairs", str(pairs)), ("--solo", str(usual))):
        said = headroom("fit", *files, "--model", "constant", "--out", str(tmp_path / "m.json"))
        assert (said.status, said.err.count("\n")) == (Exit.OK, 1)


def test_pairs_far_faster_than_alone_are_told(headroom: Headroom, solo: Path, tmp_path: Path) -> None:
    fast = written(tmp_path / "p.csv", PAIRS, "t4,alpha,4,20,Beta 2,1,40,0.3,5")
    files = ("--solo", str(solo), "--pairs", str(fast))
    said = headroom("fit", *files, "--model", "constant", "--out", str(tmp_path / "m.json"))
    assert said.status == Exit.OK
    assert said.err.startswith(f"{fast}:2: doubtful: 0.3 ms beside a neighbour, 15.5 ms alone")


def test_a_file_without_rows_is_refused(headroom: Headroom, solo: Path, tmp_path: Path) -> None:
    for text in (SOLO, SOLO + "\n,,,,,,,,,,"):
        file = written(tmp_path / "s.csv", text)
        said = headroom("fit", "--solo", str(solo), str(file), "--model", "constant", "--out", str(tmp_path / "m.json"))
        assert (said.status, said.err) == (Exit.USAGE, f"headroom: {file}: there is no row of measurements in it\n")
    assert not (tmp_path / "m.json").exists()


def test_a_file_without_questions_is_refused(headroom: Headroom, fitted: str, tmp_path: Path) -> None:
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm")
    said = headroom("predict", "--model", fitted, "--queries", str(asked))
    assert (said.status, said.out, said.err) == (Exit.USAGE, "", f"headroom: {asked}: there is no question in it\n")


def test_bad_questions_are_named_and_may_be_skipped(headroom: Headroom, fitted: str, tmp_path: Path) -> None:
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,0", "alpha,t4,4,40")
    out = tmp_path / "a.csv"
    said = headroom("predict", "--model", fitted, "--queries", str(asked), "--out", str(out))
    assert said.status == Exit.USAGE
    assert f"{asked}:2: share_pct_sm: 0 must be at least 0.01" in said.err
    assert not out.exists()
    said = headroom("predict", "--model", fitted, "--queries", str(asked), "--out", str(out), "--skip-bad")
    assert said.status == Exit.OK
    assert len(table(out.read_text(encoding="utf-8"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "--out", "m"), "name at least one file"),
        (("fit", "--solo", "nowhere.csv", "--out", "m"), "nowhere.csv: No such file"),
        (("fit", "--solo", "SOLO", "--model", "oracle", "--out", "m"), "known are headroom, fm-ftrl"),
        (("fit", "--solo", "PAIRS", "--out", "m"), "give it with --pairs"),
        (("fit", "--pairs", "SOLO", "--out", "m"), "give it with --solo"),
        (("fit", "--solo", "ASKED", "--out", "m"), "its columns are those of solo queries"),
        (("fit", "--solo", "SOLO"), "Missing option '--out'"),
        (("predict", "--model", "SOLO", "--queries", "ASKED"), "this is no model file"),
        (("predict", "--model", "-", "--queries", "-"), "not both"),
        (("fit", "--solo", "-", "--pairs", "-", "--out", "m"), "once only"),
        (("fit", "--solo", "nothing.csv", "--out", "m"), "nothing.csv: No such file"),
        (("fit", "--solo", ".", "--out", "m"), ".: Is a directory"),
        (("predict", "--model", "nothing.json", "--queries", "ASKED"), "nothing.json: No such file"),
    ],
)
def test_wrong_use_is_one_line(
    headroom: Headroom, solo: Path, pairs: Path, arguments: tuple[str, ...], words: str
) -> None:
    asked = written(solo.with_name("q.csv"), "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,40")
    files = {"SOLO": str(solo), "PAIRS": str(pairs), "ASKED": str(asked)}
    said = headroom(*(files.get(word, word) for word in arguments))
    assert said.status == Exit.USAGE
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words in said.err


def changed(stored: dict[str, Any], **change: object) -> str:
    """A model file with something else in it and the digest that belongs to that."""
    plain = {**{name: part for name, part in stored.items() if name != "digest"}, **change}
    text = json.dumps(plain, separators=(",", ":"))
    return f'{text[:-1]},"digest":"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}}'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "another version"),
        ({"suite": {"format": 1, "name": "oracle"}}, "name that is not known"),
        ({"suite": None}, "no fitted model"),
        ({"what": "a cake"}, "no model file"),
    ],
)
def test_another_model_file_is_refused(
    headroom: Headroom, fitted: str, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    stored = json.loads(Path(fitted).read_text(encoding="utf-8"))
    broken = written(tmp_path / "broken.json", changed(stored, **change))
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,40")
    said = headroom("predict", "--model", str(broken), "--queries", str(asked))
    assert said.status == Exit.USAGE
    assert f"{broken}: " in said.err
    assert words in said.err


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda body: body.replace(b'"seed":0', b'"seed":1'), "changed after it was written"),
        (lambda body: body.replace(b'"seed":0', b'"seed":NaN'), "damaged"),
        (lambda body: body[:-40], "no model file"),
        (lambda body: b"[" * 100_000, "no model file"),
        (lambda body: gzip.compress(body)[:-200], "no model file"),
        (lambda body: gzip.compress(body)[:60] + b"x" * 90, "no model file"),
        (lambda body: bytes(range(256)), "no model file"),
        (lambda body: b"", "no model file"),
    ],
)
def test_a_harmed_model_file_is_refused_in_one_line(
    headroom: Headroom, fitted: str, tmp_path: Path, harm: Callable[[bytes], bytes], words: str
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(harm(Path(fitted).read_bytes()))
    asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,40")
    said = headroom("predict", "--model", str(broken), "--queries", str(asked))
    assert (said.status, said.out, said.err.count("\n")) == (Exit.USAGE, "", 1)
    assert f"{broken}: " in said.err
    assert words in said.err


def test_a_file_that_cannot_be_written_is_said_before_anything_is_fitted(
    headroom: Headroom, solo: Path, tmp_path: Path
) -> None:
    for out, words in ((tmp_path / "no" / "m.json", "there is no folder"), (tmp_path, "is a folder")):
        said = headroom("fit", "--solo", str(solo), "--model", "constant", "--out", str(out))
        assert (said.status, said.err.count("\n")) == (Exit.USAGE, 1)
        assert words in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["solo.csv"]


def test_links_stay_links_and_devices_stay_devices(headroom: Headroom, solo: Path, tmp_path: Path) -> None:
    link = tmp_path / "newest.json"
    link.symlink_to("m.json")
    assert headroom("fit", "--solo", str(solo), "--model", "constant", "--out", str(link)).status == Exit.OK
    assert link.is_symlink()
    assert json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))["rows"] == 18
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        asked = written(tmp_path / "q.csv", "model,gpu_type,batch,share_pct_sm", "alpha,t4,4,40")
        said = headroom("predict", "--model", str(link), "--queries", str(asked), "--out", str(pipe))
        assert said.status == Exit.OK, said.err
        assert os.read(reader, 4096).startswith(b"model,gpu_type,batch,share_pct_sm,latency_ms")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_measurements_beyond_arithmetic_are_said_in_one_line(
    headroom: Headroom, solo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr("solvers.models.suite.Suite.fit", fails)
    said = headroom("fit", "--solo", str(solo), "--model", "constant", "--out", str(tmp_path / "m.json"))
    assert (said.status, said.out, said.err.count("\n")) == (Exit.USAGE, "", 1)
    assert "constant cannot be fitted to these measurements" in said.err


def test_the_shipped_measurements_can_be_fitted_and_asked(headroom: Headroom, tmp_path: Path) -> None:
    folder = Path(__file__).parents[4] / "examples" / "measurements"
    out = str(tmp_path / "t4.json.gz")
    files = ("--solo", str(folder / "solo.csv"), "--pairs", str(folder / "pairs.csv"))
    assert headroom("fit", *files, "--model", "headroom", "--out", out).status == Exit.OK
    alone = headroom("predict", "--model", out, "--queries", str(folder / "questions.csv"))
    assert all(float(row["latency_ms"]) > 0 for row in table(alone.out))
    beside = headroom("predict", "--model", out, "--queries", str(folder / "pair-questions.csv"))
    assert all(float(row["latency_ms_b"]) > 0 for row in table(beside.out))
    assert len(table(alone.out)) == 5
    assert len(table(beside.out)) == 2


SHARE = {"pointer": "row:17/share_pct_sm", "code": "value-invalid", "detail": "120 must be at most 100"}
SHORT = {"pointer": "row:18", "code": "value-invalid", "detail": "3 cells under 11 columns"}
DONE = {"points": 3, "pairs": 1, "configurations": 4, "skipped": [], "skipped_count": 0, "doubtful": []}
POINT: dict[str, Any] = {
    "model": "resnet50", "gpu_type": "t4", "batch": 8, "share_pct_sm": 50, "clock_mhz_sm": 1590,
    "latency_ms_mean": 12.5, "latency_ms_p99": None, "memory_mib": None, "power_w": 30.0, "origin": "measured",
}  # fmt: skip
PAIR: dict[str, Any] = {
    "model_a": "bert-base", "batch_a": 1, "share_pct_a": 37.5, "latency_ms_a": 4.5,
    "model_b": "resnet50", "batch_b": 8, "share_pct_b": 50.0, "latency_ms_b": 13.5,
}  # fmt: skip


def refused(*faults: dict[str, str]) -> httpx.Response:
    return httpx.Response(422, json={"code": "field-invalid", "detail": "invalid", "errors": list(faults)})


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text("model,gpu_type,batch,share_pct_sm,latency_ms\nresnet50,t4,8,50,12.5\n", encoding="utf-8")
    return path


def test_csv_is_sent_as_it_is(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = DONE
    said = headroom("profiles", "import", str(sheet))
    assert said.status == Exit.OK
    assert [word in said.out for word in ("points.csv", "3", "1")] == [True] * 3
    sent = api.asked[-1]
    assert sent.headers["content-type"] == "text/csv"
    assert sent.content == sheet.read_bytes()
    assert sent.url.params.get("skip_bad") is None


def test_a_list_of_points_is_sent_as_json(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    api.answers["POST /v1/profiles"] = DONE
    path = tmp_path / "points.json"
    path.write_text(json.dumps([POINT]), encoding="utf-8")
    assert headroom("profiles", "import", str(path)).status == Exit.OK
    assert api.body() == [POINT]
    path.write_text('{"points": []}', encoding="utf-8")
    said = headroom("profiles", "import", str(path))
    assert (said.status, "expected a list" in said.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    "text", ["# Mine.\nkind: profiles\nfile: points.csv\n", "model: a\nkind : profiles\n", '{"kind": "profiles"}']
)
def test_a_document_is_sent_to_who_stores_it(api: Api, headroom: Headroom, tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text(text, encoding="utf-8")
    said = headroom("profiles", "import", str(path))
    assert (said.status, f"headroom apply -f {path}" in said.err, api.asked) == (Exit.USAGE, True, [])


def test_refused_rows_are_named_by_line_and_column(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = refused(SHARE, SHORT)
    said = headroom("profiles", "import", str(sheet))
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert said.err.splitlines() == [
        f"{sheet}:17: share_pct_sm: 120 must be at most 100",
        f"{sheet}:18: 3 cells under 11 columns",
        f"headroom: {sheet}: nothing of it was imported (--skip-bad leaves bad rows out)",
    ]


def test_skipped_rows_are_named_too(api: Api, headroom: Headroom, sheet: Path) -> None:
    api.answers["POST /v1/profiles"] = {**DONE, "skipped": [SHARE], "skipped_count": 1}
    said = headroom("profiles", "import", str(sheet), "--skip-bad")
    assert said.status == Exit.OK
    assert said.err == f"{sheet}:17: share_pct_sm: 120 must be at most 100\n"
    assert api.asked[-1].url.params["skip_bad"] == "true"


def test_doubtful_rows_of_a_server_are_named(api: Api, headroom: Headroom, sheet: Path) -> None:
    doubt = {"pointer": "row:4", "code": "value-doubtful", "detail": "1 ms here and 9 ms at row:2"}
    api.answers["POST /v1/profiles"] = {**DONE, "doubtful": [doubt]}
    said = headroom("profiles", "import", str(sheet))
    assert (said.status, said.err) == (Exit.OK, f"{sheet}:4: doubtful: 1 ms here and 9 ms at {sheet}:2\n")


def test_faults_of_lists_keep_their_pointers(api: Api, headroom: Headroom, tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text("[{}]", encoding="utf-8")
    api.answers["POST /v1/profiles"] = refused({"pointer": "/0/batch", "code": "missing", "detail": "Field required"})
    said = headroom("profiles", "import", str(path))
    assert said.err.splitlines()[0] == f"{path}: /0/batch: Field required"


def test_what_there_is_is_listed_and_shown(api: Api, headroom: Headroom) -> None:
    line = {"model": "resnet50", "gpu_type": "t4", "points": 60, "imported_at": "2026-01-01T00:00:00Z"}
    api.answers["GET /v1/profiles"] = page(line)
    assert "resnet50" in headroom("profiles", "list").out
    assert headroom("profiles", "list", "-o", "json").json == [line]
    api.answers["GET /v1/profiles/resnet50/t4"] = {"model": "resnet50", "gpu_type": "t4", "points": [POINT]}
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page(PAIR)
    shown = headroom("profiles", "show", "resnet50", "t4")
    assert all(text in shown.out for text in ("12.5", "measured", "bert-base", "37.5"))
    assert headroom("profiles", "show", "resnet50", "t4", "-o", "json").json["pairs"] == [PAIR]


def test_pairs_alone_are_shown_and_nothing_is_no_profile(api: Api, headroom: Headroom) -> None:
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page(PAIR)
    assert "bert-base" in headroom("profiles", "show", "resnet50", "t4").out
    api.answers["GET /v1/profiles/resnet50/t4/pairs"] = page()
    assert headroom("profiles", "show", "resnet50", "t4").status == Exit.NOT_FOUND


def test_proposals_come_as_a_table_or_as_a_form_to_fill_in(api: Api, headroom: Headroom) -> None:
    found = {
        "model": "resnet50",
        "gpu_type": "t4",
        "batch": 8,
        "share_pct_sm": 40,
        "clock_mhz_sm": 1590,
        "std_pct": 31.5,
    }
    api.answers["GET /v1/profiles/resnet50/t4/next-points"] = {"items": [found]}
    said = headroom("profiles", "next-points", "resnet50", "t4", "--budget", "4")
    assert "31.5" in said.out
    assert api.asked[-1].url.params["budget"] == "4"
    (row,) = csv.DictReader(io.StringIO(headroom("profiles", "next-points", "resnet50", "t4", "--csv").out))
    assert (row["batch"], row["clock_mhz_sm"], row["latency_ms"]) == ("8", "1590", "")
    assert list(row)[-1] == "dram_util_pct"


@pytest.mark.parametrize(("progress", "words"), [("learning", "ask again"), ("failed", "log"), ("learned", "")])
def test_proposals_say_when_not_everything_was_learned(api: Api, headroom: Headroom, progress: str, words: str) -> None:
    answer = httpx.Response(200, json={"items": []}, headers={"Headroom-Belief": progress})
    api.answers["GET /v1/profiles/resnet50/t4/next-points"] = answer
    said = headroom("profiles", "next-points", "resnet50", "t4")
    assert said.status == Exit.OK
    assert (words in said.err) if words else not said.err


def test_a_long_file_goes_in_parts_and_lines_keep_their_numbers(
    api: Api, headroom: Headroom, sheet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.modelling.PART_LENGTH_MAX", 40)
    header, row = sheet.read_text(encoding="utf-8").splitlines(keepends=True)
    sheet.write_text(header + row * 5, encoding="utf-8")
    api.answers["POST /v1/profiles"] = DONE
    assert headroom("profiles", "import", str(sheet), "-o", "json").json[0]["points"] == 9
    assert [request.content.decode() for request in api.asked] == [header + row * 2, header + row * 2, header + row]
    api.answers["POST /v1/profiles"] = {**DONE, "skipped": [{**SHARE, "pointer": "row:3/batch"}], "skipped_count": 1}
    said = headroom("profiles", "import", str(sheet), "--skip-bad")
    assert [line.split(": ")[0] for line in said.err.splitlines()] == [f"{sheet}:{line}" for line in (3, 5, 7)]


def test_what_was_stored_before_something_failed_is_said(
    api: Api, headroom: Headroom, sheet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = sheet.with_name("none.csv")
    api.answers["POST /v1/profiles"] = DONE
    said = headroom("profiles", "import", str(sheet), str(none), "-o", "json")
    assert (said.status, said.err) == (Exit.USAGE, f"headroom: {none}: no such file\n")
    assert [(line["file"], line["points"]) for line in said.json] == [(str(sheet), 3)]
    monkeypatch.setattr("app.cli.modelling.PART_LENGTH_MAX", 40)
    header, row = sheet.read_text(encoding="utf-8").splitlines(keepends=True)
    sheet.write_text(header + row * 5, encoding="utf-8")
    answers = iter([httpx.Response(200, json=DONE), httpx.Response(503, json={"detail": "the database is away"})])
    monkeypatch.setattr(type(api), "__call__", lambda self, _: next(answers))
    said = headroom("profiles", "import", str(sheet), "-o", "json")
    assert said.status == Exit.FAILED
    assert said.err.splitlines()[0] == f"{sheet}: stored up to line 3; the rest may be sent again"
    assert [(line["file"], line["points"]) for line in said.json] == [(str(sheet), 3)]
    answers = iter([httpx.Response(200, json=DONE), refused(SHARE)])
    said = headroom("profiles", "import", str(sheet), "-o", "json")
    assert f"{sheet}: nothing from line 4 on was imported" in said.err
    assert said.json[0]["points"] == 3
