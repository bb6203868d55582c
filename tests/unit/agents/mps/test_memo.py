"""What is remembered of daemons, parts and SM counts, across agents and broken files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.devices.parts import ShareOrder
from agents.errors import SharingError
from agents.mps.memo import FILE, DaemonRecord, Memo
from agents.processes import ProcessId
from agents.state import StateDirectory
from tests.unit.agents.devices.nvidia.doubles import MemoryState

ORDER = ShareOrder(worker="w", uuid="GPU-1", share_pct_sm=30, memory_mib_limit=99, processes_max=2, connections=4)
RECORD = DaemonRecord(process=ProcessId(12, 345), protocol=3, servers=(ProcessId(13, 350),))


def test_another_agent_reads_what_one_wrote(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    first = Memo(state)
    first.put_daemon("GPU-1", RECORD)
    first.put_order(ORDER)
    first.put_sm_count("GPU-1", 30, 32)
    second = Memo(state)
    assert (second.lost, second.daemon("GPU-1"), second.orders("GPU-1")) == ("", RECORD, (ORDER,))
    assert (second.sm_count("GPU-1", 30), second.sm_count("GPU-1", 31), second.orders("GPU-2")) == (32, None, ())
    second.put_daemon("GPU-1", None)
    second.put_daemon("GPU-1", None)
    second.forget_order("w")
    second.forget_order("w")
    third = Memo(state)
    assert (third.daemon("GPU-1"), third.order("w"), third.sm_count("GPU-1", 30)) == (None, None, 32)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"daemons": {}}', '{"daemons": {"u": {}}, "orders": [], "sm_counts": {}}', '{"daemons": 3}']
)
def test_a_broken_file_is_told_and_begun_anew(tmp_path: Path, text: str) -> None:
    state = StateDirectory(tmp_path / "s")
    (tmp_path / "s" / FILE).write_text(text)
    memo = Memo(state)
    assert memo.lost.startswith(FILE)
    memo.put_order(ORDER)
    again = Memo(state)
    assert (again.lost, again.orders("GPU-1")) == ("", (ORDER,))


def test_a_part_that_cannot_be_written_down_is_not_given() -> None:
    state = MemoryState()
    memo = Memo(state)
    state.full = True
    for _ in range(2):
        with pytest.raises(SharingError, match="not given"):
            memo.put_order(ORDER)
    assert memo.order("w") is None
    state.full = False
    memo.put_order(ORDER)
    assert Memo(state).order("w") == ORDER


def test_a_full_disk_keeps_nothing_from_ending_and_is_told_as_soon_as_it_has_room() -> None:
    state = MemoryState()
    memo = Memo(state)
    memo.put_order(ORDER)
    memo.put_daemon("GPU-1", RECORD)
    state.full = True
    for _ in range(2):
        memo.forget_order("w")
        memo.put_sm_count("GPU-1", 30, 32)
        memo.put_daemon("GPU-1", None)
        assert (memo.order("w"), memo.daemon("GPU-1"), memo.sm_count("GPU-1", 30)) == (None, None, 32)
    memo.put_daemon("GPU-2", RECORD)
    state.full = False
    memo.put_daemon("GPU-2", RECORD)
    again = Memo(state)
    assert (again.order("w"), again.daemon("GPU-1"), again.daemon("GPU-2")) == (None, None, RECORD)
