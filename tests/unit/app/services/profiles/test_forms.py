"""CSV forms: which form a header has, what every cell may hold, and how faults are named."""

from __future__ import annotations

import numpy as np
import pytest

from app.errors import FieldsError
from app.services.profiles.forms import (
    PAIR_COLUMNS,
    SOLO_COLUMNS,
    CellFault,
    CsvForm,
    Sheet,
    SheetError,
    group_samples_of,
    queries_of,
    read_sheet,
    replaced_columns,
    samples_of,
    written,
)
from app.services.profiles.profiles import read_csv
from solvers.domain.profile import BATCH_MAX

SOLO = ",".join(SOLO_COLUMNS)
PAIRS = ",".join(PAIR_COLUMNS)
POINTS = "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms_mean"


def sheet_of(*lines: str, questions: bool = False) -> Sheet:
    return read_sheet("\n".join(lines).encode(), questions=questions)


def test_the_columns_are_the_published_ones() -> None:
    assert SOLO == (
        "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms,throughput_rps,power_w,memory_mib,l2_util_pct,"
        "dram_util_pct"
    )
    assert PAIRS == ("gpu_type,model_a,batch_a,share_pct_a,model_b,batch_b,share_pct_b,latency_ms_a,latency_ms_b")


def test_the_header_tells_the_form() -> None:
    assert sheet_of(SOLO).form is CsvForm.SOLO
    assert sheet_of(PAIRS).form is CsvForm.PAIRS
    assert sheet_of("model,gpu_type,batch,share_pct_sm,clock_mhz_sm").form is CsvForm.SOLO_QUERIES
    assert sheet_of(",".join(PAIR_COLUMNS[:7])).form is CsvForm.PAIR_QUERIES
    assert sheet_of(SOLO, questions=True).form is CsvForm.SOLO_QUERIES
    assert len(sheet_of(SOLO)) == 0


def test_solo_rows_become_samples_and_empty_cells_are_unknown() -> None:
    found = samples_of([sheet_of(SOLO, "ResNet-50 v1,T4,8,37.5,,12.5,,40.25,900,,55", "b,T4,1,100,1590,3,,,,,")])
    assert found.queries.models == ("ResNet-50 v1", "b")
    assert found.queries.gpu_types == ("T4",)
    assert found.queries.batch.tolist() == [8, 1]
    assert found.queries.share_pct.tolist() == [37.5, 100]
    assert np.isnan(found.queries.clock_mhz[0])
    assert found.queries.clock_mhz[1] == 1590
    assert found.latency_ms.tolist() == [12.5, 3]
    assert found.power_w[0] == 40.25
    assert np.isnan(found.power_w[1])
    assert np.isnan(found.throughput_rps).all()
    assert found.dram_util_pct[0] == 55


def test_points_as_profiles_keep_them_are_solo_rows() -> None:
    header = f"{POINTS},latency_ms_p99,neighbours,origin,source"
    found = sheet_of(header, "a,t4,8,37.5,1590,12.5,13,,measured,by hand", "b,t4,1,100,1590,3,,,,")
    assert found.form is CsvForm.SOLO
    assert not found.faults
    samples = samples_of([found, sheet_of(SOLO, "c,t4,1,100,,4,,,,,")])
    assert samples.latency_ms.tolist() == [12.5, 3, 4]
    assert samples.latency_ms_p99[0] == 13
    assert np.isnan(samples.latency_ms_p99[1:]).all()
    asked = sheet_of(header, "a,t4,8,37.5,1590,12.5,13,,measured,by hand", questions=True)
    assert replaced_columns(asked) == ("latency_ms", "latency_ms_p99", "origin")


def test_a_point_beside_others_is_no_row_of_a_model_alone() -> None:
    found = sheet_of(f"{POINTS},neighbours", "a,t4,8,50,1590,12.5,b;c", "a,t4,8,50,1590,9,")
    assert [(fault.line, fault.column) for fault in found.faults] == [(2, "neighbours")]
    assert "beside others" in found.faults[0].detail
    assert samples_of([found]).latency_ms.tolist() == [9]


def test_what_is_in_both_forms_at_once_is_refused() -> None:
    with pytest.raises(SheetError, match="latency_ms is the same"):
        sheet_of(f"{POINTS},latency_ms", "a,t4,8,50,1590,12.5,12.5")


def test_pair_rows_become_groups_of_two() -> None:
    found = group_samples_of([sheet_of(PAIRS, "v100,a,1,40,b,16,60,5,7.5", "v100,b,2,50,a,4,50,,9")])
    members = found.groups.members
    assert [members.models[index] for index in members.model] == ["a", "b", "b", "a"]
    assert members.batch.tolist() == [1, 16, 2, 4]
    assert members.share_pct.tolist() == [40, 60, 50, 50]
    assert found.groups.group.tolist() == [0, 0, 1, 1]
    assert found.latency_ms[[0, 1, 3]].tolist() == [5, 7.5, 9]
    assert np.isnan(found.latency_ms[2])


def test_several_sheets_are_read_as_one() -> None:
    parts = [sheet_of(SOLO, "a,T4,1,100,,1,,,,,"), sheet_of(SOLO, "b,T4,2,50,,2,,,,,", "a,V100,1,50,,3,,,,,")]
    found = samples_of(parts).queries
    assert [found.models[index] for index in found.model] == ["a", "b", "a"]
    assert [found.gpu_types[index] for index in found.gpu_type] == ["T4", "T4", "V100"]


def test_order_of_columns_byte_order_mark_and_line_ends_do_not_matter() -> None:
    body = "\ufefflatency_ms, batch,model,share_pct_sm,gpu_type\r\n2.5,4,a,50,T4\r\n\r\n".encode()
    found = samples_of([read_sheet(body)])
    assert (found.latency_ms.tolist(), found.queries.batch.tolist()) == ([2.5], [4])
    assert np.isnan(found.power_w).all()


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ("a,T4,x,50,,1,,,,,", "batch", "'x' is not a number"),
        ("a,T4,0,50,,1,,,,,", "batch", "0 must be at least 1"),
        ("a,T4,1048577,50,,1,,,,,", "batch", "1048577 must be at most 1048576"),
        ("a,T4,1.5,50,,1,,,,,", "batch", "whole number"),
        ("a,T4,,50,,1,,,,,", "batch", "a number must stand here"),
        ("a,T4,1,120,,1,,,,,", "share_pct_sm", "120 must be at most 100"),
        ("a,T4,1,0,,1,,,,,", "share_pct_sm", "0 must be at least 0.01"),
        ("a,T4,1,100.0001,,1,,,,,", "share_pct_sm", "100.0001 must be at most 100"),
        ("a,T4,1,50,-5,1,,,,,", "clock_mhz_sm", "-5 must be at least 1"),
        ("a,T4,1,50,,0,,,,,", "latency_ms", "0 must be at least 1e-06"),
        ("a,T4,1,50,,-3,,,,,", "latency_ms", "-3 must be at least 1e-06"),
        ("a,T4,1,50,,nan,,,,,", "latency_ms", "'nan' is not a number"),
        ("a,T4,1,50,,inf,,,,,", "latency_ms", "'inf' is not a number"),
        ("a,T4,1,50,,1e999,,,,,", "latency_ms", "too large"),
        ("a,T4,1,50,,-0.0,,,,,", "latency_ms", "must be at least"),
        ("a,T4,1,50,,1e10,,,,,", "latency_ms", "10000000000 must be at most 1e+09"),
        ("a,T4,1,50,1e6,1,,,,,", "clock_mhz_sm", "1000000 must be at most 100000"),
        ("a,T4,1,50,,1,1e13,,,,", "throughput_rps", "must be at most"),
        ("a,T4,1,50,,1,,1e7,,,", "power_w", "must be at most"),
        ("a,T4,1,50,,1,,,1e10,,", "memory_mib", "must be at most"),
        ("a,T4,1,50,,1_0,,,,,", "latency_ms", "'1_0' is not a number"),
        ("a,T4,1,50,,٣,,,,,", "latency_ms", "is not a number"),
        ("a,T4,1,50,,1,,-1,,,", "power_w", "-1 must be at least 0"),
        ("a,T4,1,50,,1,,,,101,", "l2_util_pct", "101 must be at most 100"),
        (" ,T4,1,50,,1,,,,,", "model", "a name must stand here"),
        ("a\x07,T4,1,50,,1,,,,,", "model", "printable"),
        ("a,T4,1,50,,,,,,,", "latency_ms", "nothing measured"),
        ("a,T4,1,50,,1", "", "6 cells under 11 columns"),
        ("a;T4;1;50;;1", "", "1 cell under 11 columns"),
        ("a,T4,1,50,,1,,,,,,", "", "12 cells under 11 columns"),
    ],
)
def test_a_bad_cell_is_named_and_the_other_rows_are_kept(row: str, column: str, words: str) -> None:
    found = sheet_of(SOLO, "a,T4,1,50,,1,,,,,", row, "b,T4,2,50,,2,,,,,")
    assert [(fault.line, fault.column) for fault in found.faults] == [(3, column)]
    assert words in found.faults[0].detail
    assert found.names["model"] == ["a", "b"]
    assert found.numbers["latency_ms"].tolist() == [1, 2]
    assert found.lines.tolist() == [2, 4]


def test_every_fault_of_every_row_is_named_in_order() -> None:
    found = sheet_of(PAIRS, "T4,a,1,50,b,0,500,1,1", "T4,a,1,50,b,1,50,,", "T4,a,1")
    assert [(fault.line, fault.column) for fault in found.faults] == [
        (2, "batch_b"),
        (2, "share_pct_b"),
        (3, "latency_ms_a"),
        (4, ""),
    ]
    assert len(found) == 0


def test_batches_of_recommenders_are_taken() -> None:
    rows = [f"dlrm,t4,{batch},50,1590,1.5" for batch in (131_072, BATCH_MAX)]
    points = read_csv("\n".join((POINTS, *rows)).encode())({})
    assert (points.faults, len(points.rows)) == ((), 2)
    solo = sheet_of(SOLO, "dlrm,T4,131072,50,,1,,,,,", f"dlrm,T4,{BATCH_MAX},50,,1,,,,,")
    assert (solo.faults, solo.numbers["batch"].tolist()) == ((), [131_072, 1_048_576])


def test_a_fault_reads_as_file_line_column() -> None:
    assert CellFault(17, "share_pct_sm", "too much").sentence("F") == "F:17: share_pct_sm: too much"
    assert CellFault(17, "", "too short").sentence("F") == "F:17: too short"


NO_SHEETS = [
    ("", 1, "", "empty"),
    ("\n\nmodel,gpu_type\n", 1, "", "empty"),
    ("a,b\n1,2\n", 1, "", "no form known"),
    ("model;gpu_type;batch;share_pct_sm\n", 1, "", "between commas, not semicolons"),
    ("model\tgpu_type\tbatch\tshare_pct_sm\n", 1, "", "between commas, not tabs"),
    ("model,gpu_type,batch\n", 1, "share_pct_sm", "missing"),
    ("Model,gpu_type,batch,share_pct_sm\n", 1, "", "no form known"),
    ("model,gpu_type,batch,share_pct_sm,clock\n", 1, "clock", "unknown column"),
    ("model,gpu_type,batch,share_pct_sm,batch\n", 1, "batch", "twice"),
    ('model,gpu_type,batch,share_pct_sm\na,b,1,"5\n', 2, "", "no CSV"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), NO_SHEETS)
def test_a_text_that_is_no_sheet_is_refused(text: str, line: int, column: str, words: str) -> None:
    with pytest.raises(SheetError) as refused:
        read_sheet(text.encode())
    fault = refused.value.fault
    assert (fault.line, fault.column) == (line, column)
    assert words in fault.detail


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        *NO_SHEETS,
        (f"{POINTS.replace(',', ';')}\n", 1, "", "between commas, not semicolons"),
        (f"{POINTS},clock\n", 1, "clock", "unknown column; known are model"),
        (f"{POINTS},batch\n", 1, "batch", "twice"),
        (POINTS.replace("batch,", ""), 1, "batch", "missing"),
        (f'{POINTS}\na,b,1,"5\n', 2, "", "no CSV"),
    ],
)
def test_an_import_refuses_a_text_in_the_same_words(text: str, line: int, column: str, words: str) -> None:
    with pytest.raises(FieldsError) as refused:
        read_csv(text.encode())
    (fault,) = refused.value.faults
    assert fault.pointer == f"row:{line}" + (f"/{column}" if column else "")
    assert words in fault.detail


def test_rows_of_points_are_named_by_line_and_column() -> None:
    rows = ("a,t4,1,50,1590,1.5", "", ",,,,,", "a,t4,1,50", "a,t4,x,50,1590,1")
    found = read_csv("\n".join((POINTS, *rows)).encode())({})
    assert [(fault.pointer, fault.detail) for fault in found.faults] == [
        ("row:5", "4 cells under 6 columns"),
        ("row:6/batch", "'x' does not fit here"),
    ]
    assert [row.place for row in found.rows] == ["row:2"]


def test_bytes_that_are_no_text_are_named_by_line() -> None:
    with pytest.raises(SheetError) as refused:
        read_sheet(b"model,gpu_type,batch,share_pct_sm\na,b,1,50\n\xff,b,1,50\n")
    assert refused.value.fault.line == 3


def test_lines_are_counted_as_an_editor_shows_them() -> None:
    found = sheet_of("model,gpu_type,batch,share_pct_sm", "", '"a', 'b",T4,0,50', "", "c,T4,0,50")
    assert [(fault.line, fault.column) for fault in found.faults] == [(4, "model"), (4, "batch"), (6, "batch")]


def test_blank_rows_are_no_rows() -> None:
    found = sheet_of(SOLO, "", ",,,,,,,,,,", "a,T4,1,50,,1,,,,,", "  ", " , ")
    assert not found.faults
    assert found.lines.tolist() == [4]


def test_answers_keep_rows_columns_and_order() -> None:
    asked = sheet_of("share_pct_sm,batch,model,gpu_type", '50,1,"a,b",T4', "25.50,2,c,T4")
    answers = {"latency_ms": np.array([1234567.0, np.nan]), "power_w": np.array([0.000012345678, 3.0])}
    assert written(asked, answers) == (
        'share_pct_sm,batch,model,gpu_type,latency_ms,power_w\n50,1,"a,b",T4,1.23457e+06,1.23457e-05\n25.50,2,c,T4,,3\n'
    )


def test_measured_columns_of_questions_are_replaced_by_answers() -> None:
    asked = sheet_of("model,gpu_type,batch,latency_ms,share_pct_sm", "a,T4,1,oops,50", questions=True)
    assert asked.faults == ()
    assert queries_of([asked]).share_pct.tolist() == [50]
    assert written(asked, {"latency_ms": np.array([2.0])}) == (
        "model,gpu_type,batch,share_pct_sm,latency_ms\na,T4,1,50,2\n"
    )
