"""What the helper does with a request: originals first, one write at a time for each GPU, all brought back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from agents.devices.parts import ComputeMode
from agents.errors import BusyError, DeviceTimeoutError, NoPermissionError, OutOfRangeError, StateFileError
from agents.helper.desk import JOURNAL_FILE, Audit, HelperOriginals, Peer
from agents.helper.protocol import HelperAnswer, HelperRequest, Value, Verb
from agents.state import StateDirectory
from tests.unit.agents.helper.doubles import GPUS, WALL_S, DoubleBoards, Held, Office, inventory_of

PEER = Peer(pid=77, uid=1001, gid=1002)
GPU = GPUS[0]


def ask(office: Office, verb: Verb, value: Value, device: str = GPU, number: int = 5) -> HelperAnswer:
    return office.desk.handle(PEER, HelperRequest(number=number, verb=verb, device=device, value=value))


def alone() -> bool:
    return True


ALL = [
    (Verb.LOCK_CLOCK, 900),
    (Verb.LIMIT_POWER, 62.0),
    (Verb.SET_COMPUTE_MODE, "exclusive_process"),
    (Verb.SET_PERSISTENCE, True),
]


def test_every_verb_reaches_the_device_and_is_brought_back(tmp_path: Path) -> None:
    office = Office(tmp_path)
    for verb, value in ALL:
        assert ask(office, verb, value) == HelperAnswer(number=5)
    assert office.boards.held[GPU] == Held(clock=900, power=62.0, mode=ComputeMode.EXCLUSIVE_PROCESS, persistence=True)
    assert office.desk.owes()
    assert office.desk.restore(alone) == 0
    assert office.boards.held[GPU] == Held()
    assert not office.desk.owes()


def test_the_audit_says_who_asked_for_what_and_what_came_of_it(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ask(office, Verb.LOCK_CLOCK, 900)
    ask(office, Verb.LOCK_CLOCK, 901)
    ask(office, Verb.LOCK_CLOCK, 900, device="GPU-\n" + "x" * 80)
    office.desk.restore(alone)
    who = {"time": "2027-01-15T08:00:00.250Z", "event": "helper.asked", "uid": 1001, "gid": 1002, "pid": 77}
    first, second, third, restored = office.told()
    assert first == who | {"verb": "lock_clock", "device": GPU, "value": 900, "outcome": "ok"}
    assert second["outcome"] == "out-of-range: 901 MHz is no clock of this device"
    assert third["outcome"] == "not-found: this helper serves no such device"
    assert restored["by"] == "helper"
    assert (restored["verb"], restored["value"], restored["outcome"]) == ("lock_clock", None, "restored")


def test_the_original_is_on_disk_before_the_device_is_written_to(tmp_path: Path) -> None:
    office = Office(tmp_path)
    seen = []

    def look(verb: str, uuid: str) -> None:
        seen.append(json.loads((tmp_path / "state" / JOURNAL_FILE).read_text())["originals"])

    office.setters.fault = look
    ask(office, Verb.LIMIT_POWER, 61.0)
    ask(office, Verb.LIMIT_POWER, 62.0)
    row = {"device": GPU, "verb": "limit_power", "value": 65.0}
    assert seen == [[row], [row]]


def test_after_a_crash_the_next_helper_restores(tmp_path: Path) -> None:
    office = Office(tmp_path)
    for verb, value in ALL:
        ask(office, verb, value)
    following = Office(tmp_path, boards=office.boards)
    assert following.desk.owes()
    assert following.desk.restore(alone) == 0
    assert office.boards.held[GPU] == Held()
    assert not Office(tmp_path, boards=office.boards).desk.owes()


def test_after_a_reboot_there_is_nothing_to_restore(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ask(office, Verb.LOCK_CLOCK, 900)
    assert not Office(tmp_path, boot_id="another").desk.owes()


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"form":2}', '{"form":1,"boot_id":"boot"}']
    + [
        f'{{"form":1,"boot_id":"boot","originals":[{row}]}}'
        for row in ("1", '{"device":"GPU-1","verb":"rm","value":1}', '{"device":"G","verb":"lock_clock","value":"x"}')
    ],
)
def test_a_journal_that_cannot_be_read_is_an_error(tmp_path: Path, content: str) -> None:
    state = StateDirectory(tmp_path / "state")
    state.write_text(JOURNAL_FILE, content)
    with pytest.raises(StateFileError):
        HelperOriginals(state, "boot")


def test_without_a_journal_nothing_is_written_to_a_device(tmp_path: Path) -> None:
    office = Office(tmp_path)
    (tmp_path / "state" / f".{JOURNAL_FILE}.new").mkdir()
    answer = ask(office, Verb.LOCK_CLOCK, 900)
    assert answer.code == "state-unusable"
    assert office.setters.calls == []


def test_whoever_sets_the_original_again_owes_nothing(tmp_path: Path) -> None:
    office = Office(tmp_path)
    for verb, value in ALL:
        ask(office, verb, value)
    for verb, value in (
        (Verb.LOCK_CLOCK, None),
        (Verb.LIMIT_POWER, 65.0),
        (Verb.SET_COMPUTE_MODE, "default"),
        (Verb.SET_PERSISTENCE, False),
    ):
        assert ask(office, verb, value).code == ""
    assert not office.desk.owes()


@pytest.mark.parametrize(
    ("error", "owes"),
    [
        (NoPermissionError("no"), False),
        (OutOfRangeError("no"), False),
        (BusyError("no"), True),
        (DeviceTimeoutError("no"), True),
    ],
)
def test_a_write_that_surely_failed_leaves_nothing_to_restore(
    tmp_path: Path, error: NoPermissionError, owes: bool
) -> None:
    office = Office(tmp_path)
    office.fail(error)
    answer = ask(office, Verb.LOCK_CLOCK, 900)
    assert (answer.number, answer.code, answer.message) == (5, error.code, "no")
    assert office.desk.owes() is owes


def test_what_cannot_be_restored_stays_owed(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ask(office, Verb.LOCK_CLOCK, 900)
    ask(office, Verb.LOCK_CLOCK, 900, device=GPUS[1])
    office.fail(BusyError("later"))
    assert office.desk.restore(alone) == 2
    office.fail(None)
    assert office.desk.restore(alone) == 0
    assert office.boards.held == {GPUS[0]: Held(), GPUS[1]: Held()}


def test_restoring_stops_when_somebody_comes(tmp_path: Path) -> None:
    office = Office(tmp_path)
    ask(office, Verb.LOCK_CLOCK, 900)
    ask(office, Verb.LOCK_CLOCK, 900, device=GPUS[1])
    # Asked before each device, and again once it is its turn.
    for come, left in (([True, True, False], [None, 900]), ([True, False], [None, 900])):
        answers = iter([*come, False])
        assert office.desk.restore(lambda answers=answers: next(answers)) == 0
        assert [held.clock for held in office.boards.held.values()] == left
        assert office.desk.owes()
    assert [line["outcome"] for line in office.told()][2:] == ["restored", "left"]


def test_refusals_are_passed_on(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.setters.reasons = {"set_clock": "laptop"}
    answer = office.desk.handle(PEER, HelperRequest(number=9, verb=Verb.REFUSALS))
    assert answer == HelperAnswer(number=9, refusals={"set_clock": "laptop"})


def crowd(office: Office, devices: list[str], writes: int = 20) -> None:
    """Threads that write to a device each, and wait until all are done."""

    def work(device: str) -> None:
        for number in range(writes):
            assert ask(office, Verb.LOCK_CLOCK, 900 + 15 * (number % 2), device=device).code == ""

    threads = [threading.Thread(target=work, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_writes_to_one_gpu_wait_for_each_other(tmp_path: Path) -> None:
    office = Office(tmp_path)
    crowd(office, [GPU] * 6)
    assert len(office.setters.calls) == 120
    assert office.setters.most_inside == 1


def test_mig_devices_of_one_gpu_wait_for_each_other_too(tmp_path: Path) -> None:
    slices = (inventory_of("MIG-1", 0, GPU), inventory_of("MIG-2", 1, GPU))
    office = Office(tmp_path, DoubleBoards(slices))
    crowd(office, ["MIG-1", "MIG-2"])
    assert office.setters.most_inside == 1


def test_gpus_do_not_wait_for_each_other(tmp_path: Path) -> None:
    office = Office(tmp_path)
    meeting = threading.Barrier(2, timeout=20)
    # Nobody gets past the barrier unless writes to both GPUs are under way at once.
    office.setters.fault = lambda verb, uuid: (meeting.wait(), None)[1]
    crowd(office, list(GPUS), writes=3)
    assert office.setters.most_inside == 2


def test_the_log_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path, lambda: WALL_S, bytes_max=2000)
    for number in range(100):
        audit.request(PEER, "ok", verb="lock_clock", device=GPU, value=number)
    older = path.with_name("audit.log.1")
    assert path.stat().st_size <= 2000
    assert older.stat().st_size <= 2000
    assert json.loads(path.read_text().splitlines()[-1])["value"] == 99
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1"]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    Audit(tmp_path).request(PEER, "ok", verb="lock_clock", device=GPU, value=1)


def test_strangers_cannot_fill_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    now = [WALL_S]
    audit = Audit(path, lambda: now[0])
    for _ in range(100):
        audit.stranger(PEER, "no")
    now[0] += 1.0
    audit.stranger(None, "no")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(told) == 6
    assert told[-1]["suppressed"] == 95
