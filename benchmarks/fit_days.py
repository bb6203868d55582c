"""Fits the days of `lab.arena.loads` anew: `python -m benchmarks.fit_days`, with `twitter-rate` in HEADROOM_DATA.

Owns the fit: waves by least squares to the minutes outside spikes, found by leaving out what lies far above; then each
spike's height, length and decay by trying them all. Prints coefficients relative to the base, and the errors that the
module states. It keeps no row of the data.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MINUTES = 1440
GAP_RPS = 5.0
"""Minutes below this are gaps of the collection."""
RISES_BY, ENDS_BELOW = 25.0, 12.0
"""Requests per second above the base at which a spike begins, and below which it has ended."""
STAYS = range(25)
DECAYS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20)


def waves(count: int, points: int) -> Floats:
    """One, and cosine and sine of each wave, at the middles of equal parts of a day."""
    turn = 2.0 * np.pi * (np.arange(points) + 0.5) / points
    parts = [function(number * turn) for number in range(1, count + 1) for function in (np.cos, np.sin)]
    return np.stack([np.ones(points), *parts], axis=1)


def base_of(rates: Floats, count: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Coefficients of a day's base, and which points it was fitted to."""
    basis, usual = waves(count, len(rates)), rates > GAP_RPS
    for _ in range(30):
        found = np.linalg.lstsq(basis[usual], rates[usual], rcond=None)[0]
        above = rates - basis @ found
        near = np.median(np.abs(above[usual]))
        usual = (rates > GAP_RPS) & (above < 4.0 * near) & (above > -6.0 * near)
    return found, usual


def spike(above: Floats) -> tuple[float, int, int]:
    """Height, minutes that it stays and minutes of decay that come nearest to what lies above the base."""
    since = np.arange(len(above), dtype=np.float64)
    best = (np.inf, 0.0, 0, 1)
    for stays in STAYS:
        for decay in DECAYS:
            curve = np.exp(-np.maximum(0.0, since - stays) / decay)
            height = float(curve @ above / (curve @ curve))
            best = min(best, (float(((above - height * curve) ** 2).sum()), height, stays, decay))
    return best[1:]


def spikes(above: Floats) -> list[tuple[int, float, int, int]]:
    """Every spike with the minute in which it begins."""
    found, minute = [], 0
    while minute < len(above):
        end = minute
        if above[minute] > RISES_BY:
            while end < len(above) and above[end] > ENDS_BELOW:
                end += 1
            found.append((minute, *spike(above[minute:end])))
        minute = max(end, minute) + 1
    return found


def main() -> None:
    """Print both fits."""
    argparse.ArgumentParser(prog="python -m benchmarks.fit_days", description=__doc__).parse_args()
    path = Path(os.environ.get("HEADROOM_DATA", "")) / "twitter-rate" / "rate_10s.csv"
    if not path.is_file():
        sys.exit("HEADROOM_DATA does not name a folder with twitter-rate")
    days = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1].reshape(20, MINUTES, 6).mean(axis=2) / 10.0
    day = days[4]
    found, _ = base_of(day, 4)
    curve = waves(4, MINUTES) @ found
    print("twitter-day5", np.round(found / found[0], 4).tolist())
    for minute, height, stays, decay in spikes(day - curve):
        print("   ", minute, round(height / found[0], 2), stays, decay)
        since = np.arange(MINUTES) - float(minute)
        curve = curve + np.where(since >= 0.0, height * np.exp(-np.maximum(0.0, since - stays) / decay), 0.0)
    there = day > GAP_RPS
    error = np.abs(curve - day)[there].mean() / day[there].mean()
    print(f"    error {error:.3f}, correlation {np.corrcoef(curve[there], day[there])[0, 1]:.3f}, gap {(~there).sum()}")
    median = np.median(days.reshape(20, MINUTES // 10, 10).mean(axis=2), axis=0)
    found, usual = base_of(median, 2)
    error = np.abs(waves(2, len(median)) @ found - median)[usual].mean() / median.mean()
    print("twitter-median-day", np.round(found / found[0], 4).tolist(), f"error {error:.3f}")


if __name__ == "__main__":
    main()
