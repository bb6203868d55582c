"""Whatever is written in whatever order, a device holds what was last accepted, inside its own bounds."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.devices.nvml import NvmlSetters, open_boards
from agents.errors import NoPermissionError, OutOfRangeError
from tests.standins.nvml import NvmlStandIn
from tests.standins.nvml.double import installed

clocks = st.none() | st.integers(200, 2100) | st.sampled_from((345, 1005, 1980, 0xFFFFFF01))
powers = st.none() | st.floats(0, 1000) | st.sampled_from((200.0, 700.0, math.nan, math.inf))
writes = st.lists(
    st.tuples(st.just("lock_clock"), clocks)
    | st.tuples(st.just("limit_power"), powers)
    | st.tuples(st.just("forbid"), st.booleans())
    | st.tuples(st.just("load"), st.sampled_from((0.0, 60.0, 100.0))),
    max_size=12,
)


@settings(max_examples=30)
@given(writes)
def test_devices_hold_what_was_accepted(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = NvmlStandIn(Path(folder) / "nvml", ("h100",))
        with installed(host.double()):
            follow(host, steps)
        host.close()


def follow(host: NvmlStandIn, steps: list[tuple[str, object]]) -> None:
    """Take the steps and compare after each."""
    boards, uuid = open_boards("nvml:all", event_wait_ms=1), host.uuids[0]
    setters = NvmlSetters(boards, lambda _: None)
    held: dict[str, object] = {"lock_clock": None, "limit_power": None}
    for verb, value in steps:
        if verb == "forbid":
            host.forbid_setters(forbidden=bool(value))
        elif verb == "load":
            host.load(uuid, float(str(value)))
        else:
            try:
                getattr(setters, verb)(uuid, value)
            except (OutOfRangeError, NoPermissionError):
                pass
            else:
                held[verb] = value
        found = boards.settings(uuid)
        assert found.clock_mhz_sm == held["lock_clock"]
        limit = host.gpu(uuid).limit_mw
        assert 200_000 <= limit <= 700_000
        wanted = held["limit_power"]
        assert abs(limit / 1000 - (700.0 if wanted is None else float(str(wanted)))) < 0.001
        reading = boards.reading(uuid)
        assert reading.power_w is not None
        assert reading.power_w <= limit / 1000
        assert found.clock_mhz_sm is None or reading.clock_mhz_sm <= found.clock_mhz_sm
    boards.close()
