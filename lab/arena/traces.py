"""Rates of real traces, and what becomes of any day or trace before it is replayed.

Owns how each public source is read from the folder that HEADROOM_DATA names, and the cutting and scaling that shapes
share with them. A source that is not there is one clear complaint. It refuses to keep rows: they go into a pattern and
nowhere else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.arena.forms import Scaled, ShapeForm, TraceForm
from lab.arena.kinds import Context
from lab.arena.shapes import SHAPES
from solvers.sim.arrivals import Replayed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lab.arena.document import Where

DAY_S = 86_400.0
HOUR_S = 3600.0


def shape_pattern(form: ShapeForm, where: Where, context: Context) -> Replayed:
    """The load of a fitted day."""
    return _replayed(SHAPES[form.shape].rates(), 60.0, form, where, context)


def trace_pattern(form: TraceForm, where: Where, context: Context) -> Replayed:
    """The load of a real trace."""
    readers = {
        "twitter": _twitter,
        "azure-llm": _azure,
        "mooncake": _mooncake,
        "muxserve": _muxserve,
        "dlrm": _dlrm,
    }
    rates, bin_s = readers[form.source](form, where, context)
    return _replayed(rates, bin_s, form, where, context)


def _replayed(rates: NDArray[np.float64], bin_s: float, form: Scaled, where: Where, context: Context) -> Replayed:
    words = [name for name in ("rate_scale", "mean_rps", "peak_rps") if getattr(form, name) is not None]
    if len(words) > 1:
        raise context.refusal((*where, words[-1]), f"{words[0]} is said already; one of them is enough")
    first = int(form.begin // bin_s)
    last = len(rates) if form.end is None else int(np.ceil(form.end / bin_s))
    part = rates[first:last]
    if len(part) == 0 or not part.any():
        raise context.refusal((*where, "begin"), f"nothing is left of {len(rates) * bin_s:g} s after this cut")
    scale = form.rate_scale or 1.0
    if form.mean_rps is not None:
        scale = form.mean_rps / float(part.mean())
    if form.peak_rps is not None:
        scale = form.peak_rps / float(part.max())
    return Replayed(
        rates_rps=tuple(part.tolist()),
        bin_s=bin_s,
        rate_scale=scale,
        time_scale=form.time_scale,
        spacing=form.spacing,
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _column(path: Path, name: str) -> NDArray[np.float64]:
    return np.array([float(row[name]) for row in _rows(path)])


def _twitter(form: TraceForm, where: Where, context: Context) -> tuple[NDArray[np.float64], float]:
    """Twitter's stream in bins of 10 s; of day 5 also by the second."""
    if form.bin is not None and form.bin < 10.0:
        if form.day != 5 or form.bin != 1.0:
            raise context.refusal((*where, "bin"), "bins shorter than 10s are there for day 5 alone, of 1s")
        return _column(context.source((*where, "source"), "twitter-rate", "day5_per_second.csv"), "requests"), 1.0
    rates = _column(context.source((*where, "source"), "twitter-rate", "rate_10s.csv"), "requests") / 10.0
    if form.day is not None:
        per_day = int(DAY_S / 10.0)
        rates = rates[(form.day - 1) * per_day : form.day * per_day]
    joined = int((form.bin or 10.0) // 10.0)
    whole = len(rates) // joined * joined
    return rates[:whole].reshape(-1, joined).mean(axis=1), 10.0 * joined


def _azure(form: TraceForm, where: Where, context: Context) -> tuple[NDArray[np.float64], float]:
    return _counted(context.source((*where, "source"), "azure-llm-2023", f"{form.part}.csv"), form.bin or 10.0)


def _mooncake(form: TraceForm, where: Where, context: Context) -> tuple[NDArray[np.float64], float]:
    # Requests come in batches every 3 s, so shorter bins would be bursts that nobody saw.
    return _counted(context.source((*where, "source"), "mooncake-conversation", "conversation.csv"), form.bin or 15.0)


def _counted(path: Path, bin_s: float) -> tuple[NDArray[np.float64], float]:
    times = _column(path, "t_s")
    # The last bin is not full and would look like a fall of the rate.
    whole = max(1, int(times.max() // bin_s))
    counts = np.bincount((times // bin_s).astype(np.int64))[:whole]
    return counts / bin_s, bin_s


def _muxserve(form: TraceForm, where: Where, context: Context) -> tuple[NDArray[np.float64], float]:
    path = context.source((*where, "source"), "muxserve-lmsys-rates", "rates.csv")
    found = {row["service"]: float(row["rate_rps"]) for row in _rows(path) if int(row["condense"]) == form.condense}
    if not found:
        raise context.refusal((*where, "condense"), f"the source has no rates at {form.condense}")
    if form.service not in found:
        raise context.refusal((*where, "service"), f"name one of its services: {', '.join(sorted(found))}")
    return np.array([found[form.service]]), HOUR_S


def _dlrm(form: TraceForm, where: Where, context: Context) -> tuple[NDArray[np.float64], float]:
    path = context.source((*where, "source"), "alibaba-dlrm-2025", "gpu_instances_per_app_hourly.csv")
    rows = list(_rows(path))
    if form.app is None or form.app not in rows[0]:
        raise context.refusal((*where, "app"), "name one of its services, app_0 to app_155")
    return np.array([float(row[form.app]) for row in rows]), HOUR_S


def philly_jobs(context: Context, where: Where, begin_s: float, end_s: float) -> list[tuple[float, float, int]]:
    """Jobs submitted in a part of the Philly trace: seconds since the part's beginning, run time in s, GPUs."""
    path = context.source(where, "philly-jobs", "jobs.csv")
    found = [(float(row["submit_s"]), float(row["duration"]), int(row["num_gpus"])) for row in _rows(path)]
    return [(at_s - begin_s, took_s, gpus) for at_s, took_s, gpus in found if begin_s <= at_s < end_s]
