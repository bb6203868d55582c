"""Traces as loads: how each source is read, cut and scaled, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.arena.forms import TraceForm
from lab.arena.loading import parse
from lab.arena.loads import MINUTES, SHAPES, trace_pattern
from lab.world.arrivals import Replayed
from solvers.errors import InputError


def pattern(data: Path | None, **said: object) -> Replayed:
    document = parse("load: {}\n", "f.yaml", data)
    return trace_pattern(TraceForm.model_validate({"pattern": "trace", **said}), ("load",), document)


def file(data: Path, name: str, *rows: str) -> Path:
    path = data / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return data


def twitter(data: Path) -> Path:
    rows = (f"{10 * number},{100 + number // 8640}" for number in range(2 * 8640))
    return file(data, "twitter-rate/rate_10s.csv", "t_s,requests", *rows)


def test_twitter_days_in_bins_of_any_tens_of_seconds(tmp_path: Path) -> None:
    data = twitter(tmp_path)
    whole = pattern(data, source="twitter")
    assert (len(whole.rates_rps), whole.bin_s) == (2 * 8640, 10.0)
    second = pattern(data, source="twitter", day=2, bin=60.0)
    assert (len(second.rates_rps), second.bin_s, second.rates_rps[0]) == (1440, 60.0, pytest.approx(10.1))
    with pytest.raises(InputError, match=r"f\.yaml:1: load.*for day 5 alone"):
        pattern(data, source="twitter", day=2, bin=1.0)


def test_day_5_by_the_second(tmp_path: Path) -> None:
    data = file(tmp_path, "twitter-rate/day5_per_second.csv", "t_s,requests", "0,4", "1,6")
    assert pattern(data, source="twitter", day=5, bin=1.0).rates_rps == (4.0, 6.0)


def test_requests_are_counted_by_bin_and_the_last_one_left_out(tmp_path: Path) -> None:
    times = [f"{number * 0.5},1,1" for number in range(45)]
    data = file(tmp_path, "azure-llm-2023/code.csv", "t_s,in_tokens,out_tokens", *times)
    found = pattern(data, source="azure-llm", part="code")
    assert (found.rates_rps, found.bin_s) == ((2.0, 2.0), 10.0)
    file(tmp_path, "mooncake-conversation/conversation.csv", "t_s,in_tokens", *[f"{3 * n},1" for n in range(12)])
    assert pattern(data, source="mooncake").rates_rps == pytest.approx((1 / 3, 1 / 3))


def test_muxserve_and_dlrm_name_whom_they_mean(tmp_path: Path) -> None:
    rows = ("condense,service,model,rate_rps", "500,llm-1,llama-13b,8.5", "2000,llm-1,llama-13b,34")
    data = file(tmp_path, "muxserve-lmsys-rates/rates.csv", *rows)
    assert pattern(data, source="muxserve", service="llm-1", condense=500).rates_rps == (8.5,)
    with pytest.raises(InputError, match="name one of its services: llm-1"):
        pattern(data, source="muxserve")
    with pytest.raises(InputError, match="no rates at 7"):
        pattern(data, source="muxserve", service="llm-1", condense=7)
    file(tmp_path, "alibaba-dlrm-2025/gpu_instances_per_app_hourly.csv", "t_h,app_0,app_1", "0,5,1", "1,6,1")
    found = pattern(data, source="dlrm", app="app_0", rate_scale=10.0)
    assert (found.rates_rps, found.bin_s, found.rate_scale) == ((5.0, 6.0), 3600.0, 10.0)
    with pytest.raises(InputError, match="app_0 to app_155"):
        pattern(data, source="dlrm", app="nobody")


def test_cutting_and_scaling(tmp_path: Path) -> None:
    rows = (f"{second},{second + 1}" for second in range(10))
    data = file(tmp_path, "twitter-rate/day5_per_second.csv", "t_s,requests", *rows)
    cut = pattern(data, source="twitter", day=5, bin=1.0, begin=2.0, end=6.0, mean_rps=9.0, time_scale=2.0)
    assert cut.rates_rps == (3.0, 4.0, 5.0, 6.0)
    assert (cut.rate_scale, cut.time_scale) == (2.0, 2.0)
    assert pattern(data, source="twitter", day=5, bin=1.0, peak_rps=5.0).rate_scale == 0.5
    with pytest.raises(InputError, match="nothing is left of 10 s"):
        pattern(data, source="twitter", day=5, bin=1.0, begin=50.0)


def test_a_missing_source_is_one_line_that_names_the_variable(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(InputError) as raised:
            pattern(data, source="twitter")
        assert "HEADROOM_DATA" in str(raised.value)
        assert "twitter-rate/rate_10s.csv" in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_fitted_days_are_positive_and_keep_their_base(name: str) -> None:
    rates = SHAPES[name].rates()
    assert len(rates) == MINUTES
    assert rates.min() > 0.5
    assert np.median(rates) == pytest.approx(1.0, abs=0.1)
    assert rates.max() == pytest.approx({"twitter-day5": 4.5, "twitter-median-day": 1.4}[name], abs=0.2)
