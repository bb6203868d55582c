"""When a measurement is good enough: warm, steady, and with a tight interval.

Owns that judgement as pure arithmetic over windows of equal length; it neither waits nor measures. A window's mean
counts once, however many batches it holds: batches within a window depend on each other, windows hardly do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HALF_WIDTH_PCT = 2.0
WINDOWS_MIN = 5
WINDOWS_MAX = 40
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Two-sided 95 % quantiles of Student's distribution by degrees of freedom, from 1 on; beyond them 2.1 is near."""
_T_MORE = 2.1
_DRIFT = 3.0
"""How many standard errors the two halves may differ."""
_FLOOR = 0.003
"""Relative differences below this are no drift, however steady the rest is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a measurement. `clean`: clocks and heat were as they should be, and nobody else was there."""

    latency_ms_mean: float
    batches: float
    clean: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the windows say so far. `from_window`: those before it belong to warming up."""

    done: bool
    mean_ms: float | None
    half_width_pct: float | None
    from_window: int
    problem: str = ""


def judge(windows: Sequence[Window], half_width_pct: float = HALF_WIDTH_PCT, most: int = WINDOWS_MAX) -> Verdict:
    """Whether to go on measuring. Windows before the last disturbance, and those that still drift, do not count."""
    clean_from = max((place + 1 for place, window in enumerate(windows) if not window.clean), default=0)
    start = _settled_from([window.latency_ms_mean for window in windows], clean_from)
    used = [window.latency_ms_mean for window in windows[start:]]
    spent = len(windows) >= most
    if len(used) < 2:
        problem = _why_not(windows, clean_from) if spent else ""
        return Verdict(done=spent, mean_ms=None, half_width_pct=None, from_window=start, problem=problem)
    mean, half = interval(used)
    relative = 100.0 * half / mean if mean > 0.0 else math.inf
    tight = len(used) >= WINDOWS_MIN and relative <= half_width_pct
    problem = f"its mean is known to {relative:.1f} % only" if spent and not tight else ""
    return Verdict(done=tight or spent, mean_ms=mean, half_width_pct=relative, from_window=start, problem=problem)


def interval(means: Sequence[float]) -> tuple[float, float]:
    """Mean of window means and half of its 95 % interval; at least two."""
    count = len(means)
    mean = math.fsum(means) / count
    variance = math.fsum((item - mean) ** 2 for item in means) / (count - 1)
    quantile = _T_95[count - 2] if count - 2 < len(_T_95) else _T_MORE
    return mean, quantile * math.sqrt(variance / count)


def _settled_from(means: Sequence[float], first: int) -> int:
    """The earliest window from which on the first and second half agree; at least two windows are left."""
    for start in range(first, max(first, len(means) - 2) + 1):
        if not _drifts(means[start:]):
            return start
    return max(first, len(means) - 2)


def _drifts(means: Sequence[float]) -> bool:
    half = len(means) // 2
    if half < 2:
        return False
    early, late = means[:half], means[-half:]
    mean_early, mean_late = math.fsum(early) / half, math.fsum(late) / half
    # By the spread of the later half alone: what is still warming up spreads so far that nothing would be told from it.
    error = math.sqrt(math.fsum((item - mean_late) ** 2 for item in late) / (half - 1) * 2.0 / half)
    return abs(mean_early - mean_late) > max(_DRIFT * error, _FLOOR * (mean_early + mean_late) / 2.0)


def _why_not(windows: Sequence[Window], clean_from: int) -> str:
    if clean_from >= len(windows) - 1:
        return "clocks were held down, or somebody else was on the device, up to the end"
    return "it never became steady"
