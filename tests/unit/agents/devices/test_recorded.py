"""A recording plays back what was said, when it was said."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from agents.devices.parts import BoardEvent, BoardReading, Boards, BoardSettings, ComputeMode, GpuProcess
from agents.errors import ConfigError, LostError, NotFoundError
from agents.wire import DeviceInventory
from tests.gpu.recorded import RecordedBoards, RecordingBoards

UUID = "GPU-a"


class Clock:
    """Time that only passes when told to."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Scripted:
    """Boards whose reading follows the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lost = False
        self.closed = False
        self.waiting: list[BoardEvent] = []

    def inventory(self) -> tuple[DeviceInventory, ...]:
        return (
            DeviceInventory(
                uuid=UUID,
                gpu_type="t4",
                product="Tesla T4",
                index=0,
                memory_mib=15104,
                sm_count=40,
                clocks_mhz_sm=(300, 315),
                power_limit_w_min=60.0,
                power_limit_w_max=70.0,
                capabilities={"set_clock": ""},
            ),
        )

    def settings(self, uuid: str) -> BoardSettings:
        return BoardSettings(
            clock_mhz_sm=300,
            power_limit_w=None,
            power_limit_w_enforced=70.0,
            compute_mode=ComputeMode.EXCLUSIVE_PROCESS,
            persistence=True,
        )

    def reading(self, uuid: str) -> BoardReading:
        if self.lost:
            raise LostError("gone")
        return BoardReading(
            uuid=uuid,
            power_w=self.clock.now_s,
            energy_j_total=None,
            utilisation_pct=None,
            memory_mib_used=0.5,
            clock_mhz_sm=300,
            temperature_c=40.0,
            throttle="",
            healthy=True,
        )

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return (GpuProcess(pid=7, memory_mib=None, mps_client=True),)

    def events(self) -> tuple[BoardEvent, ...]:
        found, self.waiting = tuple(self.waiting), []
        return found

    def close(self) -> None:
        self.closed = True


def record(path: Path) -> Scripted:
    """Ten seconds of a device that says something at 3 s and is gone from 8 s on."""
    clock = Clock(100.0)
    boards, file = Scripted(clock), io.StringIO()
    recording: Boards = RecordingBoards(boards, file, clock)
    recording.inventory()
    recording.settings(UUID)
    recording.processes(UUID)
    for second in range(11):
        clock.now_s = 100.0 + second
        boards.lost = second >= 8
        if second == 3:
            boards.waiting.append(BoardEvent(uuid=UUID, kind="xid", detail=13, at_s=103.0))
        recording.events()
        if boards.lost:
            with pytest.raises(LostError):
                recording.reading(UUID)
        else:
            assert recording.reading(UUID).power_w == 100.0 + second
    recording.close()
    path.write_text(file.getvalue(), encoding="utf-8")
    return boards


def test_a_recording_plays_back(tmp_path: Path) -> None:
    original = record(tmp_path / "t4.jsonl")
    clock = Clock(5000.0)
    replay: Boards = RecordedBoards(tmp_path / "t4.jsonl", clock)
    assert original.closed
    assert replay.inventory() == original.inventory()
    assert replay.settings(UUID) == original.settings(UUID)
    assert replay.processes(UUID) == original.processes(UUID)
    assert replay.reading(UUID).power_w == 100.0
    assert replay.events() == ()
    clock.now_s += 4.5
    assert replay.reading(UUID).power_w == 104.0
    assert replay.events() == (BoardEvent(uuid=UUID, kind="xid", detail=13, at_s=5003.0),)
    assert replay.events() == ()
    clock.now_s += 100.0
    with pytest.raises(LostError, match="gone"):
        replay.reading(UUID)
    replay.close()


def test_lines_have_the_agreed_form(tmp_path: Path) -> None:
    record(tmp_path / "t4.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "t4.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["call"] for line in lines[:4]] == ["inventory", "settings", "processes", "reading"]
    assert {frozenset(line) for line in lines} == {
        frozenset(("t_s", "uuid", "call", "value")),
        frozenset(("t_s", "uuid", "call", "error")),
    }
    assert lines[-1] == {
        "t_s": 10.0,
        "uuid": UUID,
        "call": "reading",
        "error": {"code": "lost", "message": "gone"},
    }
    assert RecordedBoards(tmp_path / "t4.jsonl").ends_s == 10.0


def test_what_was_not_recorded_is_not_made_up(tmp_path: Path) -> None:
    record(tmp_path / "t4.jsonl")
    replay = RecordedBoards(tmp_path / "t4.jsonl")
    with pytest.raises(NotFoundError, match="no reading of GPU-b"):
        replay.reading("GPU-b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json\n",
        '{"t_s":0,"uuid":"","call":"inventory"}\n',
        '{"t_s":0,"uuid":"","call":"inventory","value":[{"uuid":"GPU-a"}]}\n',
        '{"t_s":0,"uuid":"","call":"inventory","value":3}\n',
        '{"t_s":1,"uuid":"a","call":"reading","value":{}}\n{"t_s":0,"uuid":"a","call":"reading","value":{}}\n',
        "[1]\n",
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="is no recording of boards"):
        RecordedBoards(tmp_path / "other")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no recording"):
        RecordedBoards(tmp_path / "none")


RECORDINGS = Path(__file__).parents[3] / "recordings"
H100 = RECORDINGS / "h100"


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [("h100/boards.jsonl", 81079), ("h100/boards-shares.jsonl", 81079), ("h200/boards.jsonl", 143155)],
)
def test_a_real_board_plays_back(name: str, memory_mib: int) -> None:
    clock = Clock(0.0)
    boards = RecordedBoards(RECORDINGS / name, clock)
    board = boards.inventory()[0]
    assert (board.gpu_type, board.sm_count, board.memory_mib) == (name.partition("/")[0], 132, memory_mib)
    assert board.clocks_mhz_sm[0] == 345
    assert board.clocks_mhz_sm[-1] == 1980
    clock.now_s = boards.ends_s
    assert boards.reading(board.uuid).energy_j_total is not None


def test_a_real_boards_energy_counter_and_power_agree() -> None:
    said = [json.loads(line) for line in (H100 / "boards.jsonl").read_text().splitlines()]
    busy = [line for line in said if line["call"] == "reading" and line["value"]["power_w"] > 500.0]
    took_s = busy[-1]["t_s"] - busy[0]["t_s"]
    counted_j = busy[-1]["value"]["energy_j_total"] - busy[0]["value"]["energy_j_total"]
    mean_w = sum(line["value"]["power_w"] for line in busy) / len(busy)
    assert took_s > 5.0
    assert counted_j / took_s == pytest.approx(mean_w, rel=0.05)
