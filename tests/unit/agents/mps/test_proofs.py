"""What a probe's answer proves, and what its words may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agents.devices.parts import ShareOrder
from agents.errors import BypassError, SharingError
from agents.mps.daemon import DaemonSeat
from agents.mps.memo import Memo
from agents.mps.proofs import ProbeAnswer, Proofs, judge, probe
from agents.mps.protocols import MpsClient, MpsControl, ProtocolTwo
from agents.processes import ProcessId, identify
from agents.state import StateDirectory
from tests.unit.agents.builders import FakeClock

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def order(share: int, memory: int = 1000) -> ShareOrder:
    """A part of the device."""
    return ShareOrder(worker="w", uuid=UUID, share_pct_sm=share, memory_mib_limit=memory)


def answer(sm_count: int, free: float | None = 1000.0, uuid: str = UUID) -> ProbeAnswer:
    """What a probe could say."""
    return ProbeAnswer(uuid=uuid, sm_count=sm_count, memory_mib_free=free)


@pytest.mark.parametrize(
    ("share", "sm_count"), [(25, 46), (25, 47), (25, 2), (50, 94), (75, 140), (100, 188), (99, 186), (1, 2)]
)
def test_any_count_up_to_the_share_will_do(share: int, sm_count: int) -> None:
    judge(answer(sm_count), order(share), 188)


@pytest.mark.parametrize(("share", "sm_count"), [(25, 48), (25, 0), (25, 188), (99, 188), (100, 189)])
def test_more_than_the_share_or_the_whole_for_a_part_is_a_bypass(share: int, sm_count: int) -> None:
    with pytest.raises(BypassError):
        judge(answer(sm_count), order(share), 188)


def test_more_memory_than_ordered_or_another_device_is_a_bypass() -> None:
    with pytest.raises(BypassError, match="40000 MiB can be had under a limit of 1000 MiB"):
        judge(answer(46, 40000.0), order(25), 188)
    with pytest.raises(BypassError, match="sees device"):
        judge(answer(46, uuid="GPU-99999999-2222-3333-4444-555555555555"), order(25), 188)
    judge(answer(46, None, uuid="MIG-11111111-2222-3333-4444-555555555555"), order(25), 188)


def python(*lines: str) -> tuple[str, ...]:
    """A probe command that is a few lines."""
    return (sys.executable, "-S", "-c", "\n".join(lines))


def test_the_last_line_counts_and_the_environment_is_the_workers() -> None:
    good = {"ok": True, "uuid": UUID, "sm_count": 46, "memory_mib_free": None}
    found = probe(
        python("import os", "print('noise')", f"print(os.environ['A'] * 0 + '''{json.dumps(good)}''')"), {"A": "b"}
    )
    assert found == answer(46, None)


@pytest.mark.parametrize(
    "lines",
    [
        ("pass",),
        ("print('hello')",),
        ("print('[]')",),
        ("print('{\"ok\": true}')",),
        ('print(\'{"ok": false, "error": "cuInit returned 807"}\')',),
        ("raise SystemExit('dead')",),
    ],
)
def test_a_probe_that_does_not_tell_is_no_proof(lines: tuple[str, ...]) -> None:
    with pytest.raises(SharingError, match="probe"):
        probe(python(*lines), {})


def test_a_probe_that_is_not_there_is_no_proof() -> None:
    with pytest.raises(SharingError, match="cannot run the probe"):
        probe(("/nowhere/probe",), {})


class Lists(ProtocolTwo):
    """A daemon's list of clients at each look; the last one stays."""

    def __init__(self, *looks: tuple[int, ...], meanwhile: Callable[[], object] = lambda: None) -> None:
        self.looks = list(looks)
        self.meanwhile = meanwhile

    def clients(self, control: MpsControl) -> tuple[MpsClient, ...]:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        listed = tuple(MpsClient(pid, "1") for pid in found)
        self.meanwhile()
        return listed

    def environment(self, pipe: Path, order: ShareOrder) -> Mapping[str, str]:
        return {}

    def misfit(self, control: MpsControl, order: ShareOrder, client: MpsClient) -> str:
        return ""


def known(pid: int) -> ProcessId:
    found = identify(pid)
    assert found is not None
    return found


@pytest.fixture
def proved(tmp_path: Path) -> Callable[..., int]:
    """What is proved of processes by a daemon's lists."""
    memo = Memo(StateDirectory(tmp_path))
    memo.put_sm_count(UUID, 25, 46)

    def prove(lists: Lists, *processes: ProcessId) -> int:
        me, control = known(os.getpid()), MpsControl("none", tmp_path)
        seat = DaemonSeat(protocol=lists, control=control, pipe=tmp_path, daemon=me, servers=())
        part = ShareOrder(worker="w", uuid=UUID, share_pct_sm=25, memory_mib_limit=1000, processes_max=2)
        return Proofs(memo, {UUID: 188}, (), FakeClock()).prove(part, processes, seat)

    return prove


def test_who_is_missing_at_one_look_is_looked_for_again(proved: Callable[..., int]) -> None:
    me = os.getpid()
    assert proved(Lists((), (me,)), known(me)) == 46


def test_who_stays_missing_runs_outside(proved: Callable[..., int]) -> None:
    me, other = os.getpid(), os.getppid()
    with pytest.raises(BypassError, match=f"process {me} runs outside MPS"):
        proved(Lists(()), known(me))
    with pytest.raises(BypassError, match=f"process {me} runs outside MPS"):
        # Each was seen once: what counts is one look that has them all.
        proved(Lists((me,), (other,)), known(me), known(other))


def test_who_leaves_while_it_is_looked_for_is_nobody_to_blame(proved: Callable[..., int]) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as leaving:

        def leave() -> None:
            leaving.kill()
            leaving.wait()

        assert proved(Lists((), meanwhile=leave), known(leaving.pid)) == 46
