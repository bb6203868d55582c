"""What waits to be sent: order, bounds, and the file that outlives its agent, whatever became of it."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agents.log import Log
from agents.loop import unsent
from agents.loop.collect import ReportBuffer
from agents.loop.unsent import ReportFile, UnsentReport
from agents.wire import Report, decode, encode
from tests.unit.agents.builders import NODE, FakeClock


def report(sequence: int, boot: str = "boot-1", *, node: str = NODE, age_s: float = 0.0) -> Report:
    return Report(
        node=node,
        boot_id=boot,
        sequence=sequence,
        observed_at_s=time.time() - age_s,
        interval_s=5.0,
        generation_applied=0,
        devices=(),
        replicas=(),
    )


class Life:
    """Agents of one node, one after the other, over one file."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clock, self.said = folder / "reports.jsonl", FakeClock(), io.StringIO()

    def begin(self, boot: str, *, kept_max: int = 720) -> ReportBuffer:
        return ReportBuffer(boot, ReportFile(self.path, NODE, Log(NODE, self.said), self.clock), kept_max)

    def left(self) -> list[tuple[str, int]]:
        """What the next agent finds."""
        return names(ReportFile(self.path, NODE, Log(NODE, self.said)).load(time.time()))

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.said.getvalue().splitlines()]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def names(reports: Sequence[UnsentReport]) -> list[tuple[str, int]]:
    return [each.name for each in reports]


def fill(buffer: ReportBuffer, *sequences: int, boot: str) -> None:
    for sequence in sequences:
        buffer.add(report(sequence, boot))


def test_the_buffer_keeps_order_and_forgets_what_is_acknowledged() -> None:
    buffer = ReportBuffer("a")
    fill(buffer, 1, 2, 3, 4, 5, boot="a")
    buffer.settle(buffer.oldest(2))
    buffer.settle(buffer.oldest(2)[1:], refused=True)
    assert names(buffer.oldest(10)) == [("a", 3), ("a", 5)]
    assert (len(buffer), buffer.lost, buffer.refused) == (2, 0, 1)


def test_a_full_buffer_loses_the_oldest_and_counts_them() -> None:
    buffer = ReportBuffer("a", kept_max=3)
    fill(buffer, 1, 2, 3, 4, 5, boot="a")
    assert names(buffer.oldest(10)) == [("a", 3), ("a", 4), ("a", 5)]
    assert buffer.lost == 2


def test_the_next_agent_sends_what_was_left_as_it_was_and_after_its_own(life: Life) -> None:
    made = [report(sequence, "a") for sequence in (1, 2, 3)]
    first = life.begin("a")
    for each in made:
        first.add(each)
    first.settle(first.oldest(1))
    assert stat.S_IMODE(life.path.stat().st_mode) == 0o600
    second = life.begin("b")
    assert len(second) == 2
    # Until the control plane has heard of it, nothing of another life may speak for the node.
    assert second.oldest(10) == ()
    fill(second, 1, boot="b")
    assert names(second.oldest(10)) == [("b", 1)]
    second.settle(second.oldest(10), refused=True)
    assert second.oldest(10) == ()
    fill(second, 2, boot="b")
    second.settle(second.oldest(10))
    assert [decode(Report, json.loads(each.text)) for each in second.oldest(10)] == made[1:]
    # A third one that begins before anything more was acknowledged finds the same.
    assert life.left() == [("a", 2), ("a", 3)]
    second.settle(second.oldest(10))
    assert (len(second), life.left()) == (0, [])


def test_while_all_is_acknowledged_the_file_stays_as_small_as_its_head(life: Life) -> None:
    buffer = life.begin("a")
    sizes = set()
    for sequence in range(1, 50):
        fill(buffer, sequence, boot="a")
        buffer.settle(buffer.oldest(10))
        sizes.add(life.path.stat().st_size)
    assert max(sizes) < 40
    assert len(sizes) == 1


def test_wherever_the_end_was_cut_off_whole_lines_count(life: Life) -> None:
    buffer = life.begin("a")
    fill(buffer, 1, 2, 3, boot="a")
    whole = life.path.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for length in range(len(whole)):
        life.path.write_bytes(whole[:length])
        # The last line break may be missing, and the line still be whole.
        complete = sum(length >= end for end in ends[1:])
        assert life.left() == [("a", sequence) for sequence in range(1, complete + 1)]
        after = life.begin("b")
        fill(after, 1, boot="b")
        assert life.left() == [*(("a", sequence) for sequence in range(1, complete + 1)), ("b", 1)]


@pytest.mark.parametrize(
    "noise",
    [b"\x00" * 100, b"\xff\xfe", b"[]", b"7", b"null", b'{"acknowledged": 1}', b"[" * 100_000, b'{"sequence": 1}'],
)
def test_noise_costs_only_itself(life: Life, noise: bytes) -> None:
    buffer = life.begin("a")
    fill(buffer, 1, boot="a")
    with life.path.open("ab") as file:
        file.write(noise + b"\n")
    fill(buffer, 2, boot="a")
    assert life.left() == [("a", 1), ("a", 2)]


def test_of_other_nodes_and_of_long_ago_nothing_is_sent(life: Life) -> None:
    buffer = life.begin("a")
    buffer.add(report(1, "a", age_s=unsent.AGE_S_MAX + 60.0))
    buffer.add(report(2, "a", node="another"))
    buffer.add(report(3, "a"))
    assert life.left() == [("a", 3)]


def test_the_file_is_bounded_and_its_oldest_go_first(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "BYTES_MAX", 4096)
    buffer = life.begin("a")
    for sequence in range(1, 101):
        fill(buffer, sequence, boot="a")
        assert life.path.stat().st_size <= 4096
        assert life.left()[-1] == ("a", sequence)
    left = life.left()
    assert left == [("a", sequence) for sequence in range(left[0][1], 101)]
    assert sum(len(json.dumps(encode(report(1)))) for _ in left) > 2000
    assert len(buffer) == 100
    assert len(life.begin("b", kept_max=3)) == 3


def test_a_full_disk_is_told_once_and_heals(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = life.begin("a")
    fill(buffer, 1, boot="a")
    write, full = os.write, True

    def half(descriptor: int, data: bytes) -> int:
        if not full:
            return write(descriptor, data)
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:60])

    monkeypatch.setattr(unsent.os, "write", half)
    for sequence in (2, 3, 4):
        fill(buffer, sequence, boot="a")
        life.clock.pass_s(unsent.RETRY_S + 1.0)
    buffer.settle(buffer.oldest(1))
    assert names(buffer.oldest(10)) == [("a", 2), ("a", 3), ("a", 4)]
    assert life.events() == ["reports.in_memory_only"]
    assert [path.name for path in life.path.parent.iterdir()] == [life.path.name]
    full = False
    fill(buffer, 5, boot="a")
    assert life.events() == ["reports.in_memory_only", "reports.kept"]
    assert life.left() == [("a", 2), ("a", 3), ("a", 4), ("a", 5)]


def test_what_was_left_for_another_cluster_is_not_sent_to_this_one(life: Life) -> None:
    first = life.begin("a")
    fill(first, 1, boot="a")
    assert first.joined("one") == 0
    second = life.begin("b")
    fill(second, 1, boot="b")
    # A server that does not say which cluster it is of may be of the same.
    assert (second.joined(None), second.joined("one"), len(second)) == (0, 0, 2)
    third = life.begin("c")
    fill(third, 1, boot="c")
    assert third.joined("two") == 2
    assert life.left() == [("c", 1)]
    fourth = life.begin("d")
    assert (fourth.joined("two"), len(fourth)) == (0, 1)


def test_what_says_that_it_is_of_another_cluster_goes_whoever_made_it(life: Life) -> None:
    """Whoever was handed over holds a target of before for a while, and reports of it."""
    first = life.begin("a")
    first.joined("one")
    first.add(replace(report(1, "a"), cluster_id="one", epoch=3))
    fill(first, 2, boot="a")
    assert (first.joined("two"), names(first.oldest(10))) == (1, [("a", 2)])
    first.add(replace(report(3, "a"), cluster_id="two", epoch=8))
    second = life.begin("b")
    assert [each.cluster_id for each in ReportFile(life.path, NODE, Log(NODE, life.said)).load(time.time())] == [
        None,
        "two",
    ]
    assert (second.joined("two"), len(second)) == (0, 2)


def test_what_an_agent_said_of_its_old_target_after_it_had_joined_elsewhere_goes_with_it(life: Life) -> None:
    """Whoever removes the old target only then would wait behind these reports, which nobody there takes."""
    first = life.begin("a")
    first.joined("one")
    first.joined("two")
    first.add(replace(report(1, "a"), cluster_id="one", epoch=3))
    assert (first.joined("two"), len(first)) == (0, 1)  # whoever asked the wrong server keeps it for the right one
    second = life.begin("b")
    second.add(replace(report(1, "b"), cluster_id="two", epoch=8))
    assert (second.joined("two"), names(second.oldest(10))) == (1, [("b", 1)])
    assert life.left() == [("b", 1)]
