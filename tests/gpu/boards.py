"""Steps about the board alone: what there is, clocks, power limit, the energy counter against integrated power."""

from __future__ import annotations

import statistics
import time

from agents.errors import DeviceError
from tests.gpu.rig import NotHereError, Rig
from tests.waiting import spend

CLOCK_SLACK_MHZ = 30
SETTLE_S_MAX = 3.0
LIMIT_PART = 0.7


def inventory(rig: Rig) -> None:
    """What the driver tells of the device, and which verbs work."""
    device = next(each for each in rig.boards.inventory() if each.uuid == rig.uuid)
    rig.note("product", device.product)
    rig.note("driver", device.driver_version)
    rig.note("memory", float(device.memory_mib), "MiB")
    rig.note("SMs", float(device.sm_count))
    rig.note(
        "clocks", f"{device.clocks_mhz_sm[0]}..{device.clocks_mhz_sm[-1]}", "MHz", note=str(len(device.clocks_mhz_sm))
    )
    rig.note("power limits", f"{device.power_limit_w_min:.0f}..{device.power_limit_w_max:.0f}", "W")
    for verb, refusal in sorted((device.capabilities or {}).items()):
        rig.note(f"can {verb}", not refusal, note=refusal)
    began_s = time.monotonic()
    for _ in range(20):
        rig.boards.reading(rig.uuid)
    rig.note("one reading takes", 1000.0 * (time.monotonic() - began_s) / 20, "ms")
    reading = rig.boards.reading(rig.uuid)
    rig.check("a reading has power and energy", reading.power_w is not None and reading.energy_j_total is not None)
    rig.note("idle power", reading.power_w or 0.0, "W")


def clocks(rig: Rig) -> None:
    """Lock clocks under load, read them back, time how long they take, reset."""
    _need(rig, "set_clock")
    table = rig.device.clocks_mhz_sm
    wanted = [table[len(table) * part // 4] for part in (1, 2, 3)]
    try:
        with rig.busy():
            for clock in [*wanted, wanted[0]]:
                _lock(rig, clock)
            try:
                rig.setters.lock_clock(rig.uuid, table[-1] + 1)
                rig.check("a clock outside the table is refused", fine=False)
            except DeviceError as error:
                rig.check("a clock outside the table is refused", error.code == "out-of-range", error.code)
    finally:
        rig.setters.lock_clock(rig.uuid, None)
    rig.check("after the reset no clock is locked", rig.boards.settings(rig.uuid).clock_mhz_sm is None)


def _lock(rig: Rig, clock_mhz: int) -> None:
    began_s = time.monotonic()
    rig.setters.lock_clock(rig.uuid, clock_mhz)
    call_ms = 1000.0 * (time.monotonic() - began_s)
    took_s = rig.until(
        lambda: abs(rig.boards.reading(rig.uuid).clock_mhz_sm - clock_mhz) <= CLOCK_SLACK_MHZ, SETTLE_S_MAX
    )
    rig.check(f"the clock reaches {clock_mhz} MHz", took_s is not None, note=f"the call took {call_ms:.1f} ms")
    if took_s is not None:
        rig.note(f"settling at {clock_mhz} MHz", call_ms + 1000.0 * took_s, "ms")
    spend(1.5)
    rig.note(f"power at {clock_mhz} MHz", rig.boards.reading(rig.uuid).power_w or 0.0, "W")


def power(rig: Rig) -> None:
    """Lower the power limit under load, read it back, see the draw follow, reset."""
    _need(rig, "set_power")
    device = rig.device
    limit_w = max(device.power_limit_w_min, LIMIT_PART * device.power_limit_w_max)
    try:
        with rig.busy():
            spend(2.0)
            before_w = rig.boards.reading(rig.uuid).power_w or 0.0
            rig.setters.limit_power(rig.uuid, limit_w)
            settings = rig.boards.settings(rig.uuid)
            rig.check("the limit reads back", settings.power_limit_w is not None, settings.power_limit_w or 0.0, "W")
            rig.check("it is the one enforced", abs(settings.power_limit_w_enforced - limit_w) <= 1.0)
            if before_w > limit_w:
                took_s = rig.until(lambda: (rig.boards.reading(rig.uuid).power_w or 1e9) <= 1.03 * limit_w, 5.0, 0.02)
                rig.check("the draw follows", took_s is not None, 1000.0 * (took_s or 0.0), "ms")
                rig.note("throttle under the limit", rig.boards.reading(rig.uuid).throttle)
            else:
                rig.note("the load draws less than the limit", before_w, "W", note=f"limit {limit_w:.0f} W")
            try:
                rig.setters.limit_power(rig.uuid, device.power_limit_w_max + 100.0)
                rig.check("a limit outside the range is refused", fine=False)
            except DeviceError as error:
                rig.check("a limit outside the range is refused", error.code == "out-of-range", error.code)
    finally:
        rig.setters.limit_power(rig.uuid, None)
    rig.check("after the reset the limit is the default", rig.boards.settings(rig.uuid).power_limit_w is None)


def energy(rig: Rig) -> None:
    """The energy counter against the integral of power, under load."""
    with rig.busy():
        spend(2.0)
        samples, began_s = [], time.monotonic()
        first = rig.boards.reading(rig.uuid)
        while time.monotonic() - began_s < 8.0:
            samples.append((time.monotonic(), rig.boards.reading(rig.uuid).power_w or 0.0))
            spend(0.05)
        last = rig.boards.reading(rig.uuid)
        took_s = time.monotonic() - began_s
    if first.energy_j_total is None or last.energy_j_total is None:
        raise NotHereError("no energy counter")
    counted_j = last.energy_j_total - first.energy_j_total
    mean_w = statistics.fmean(power_w for _, power_w in samples)
    rig.note("mean power", mean_w, "W", note=f"{len(samples)} readings")
    apart_pct = 100.0 * (counted_j / (mean_w * took_s) - 1.0)
    rig.check("counter and integral agree within 5 %", abs(apart_pct) <= 5.0, apart_pct, "%")


def _need(rig: Rig, verb: str) -> None:
    refusal = rig.refusal(verb)
    if refusal:
        raise NotHereError(f"{verb}: {refusal}")
