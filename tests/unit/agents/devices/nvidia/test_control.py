"""Originals on disk before the first write, once, and void after a reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.devices.nvidia.control import JOURNAL_FILE, Originals, SettingsJournal
from agents.errors import StateFileError
from agents.state import StateDirectory, host_boot_id
from tests.unit.agents.devices.nvidia.doubles import MemoryState

UUID = "GPU-1"


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "state")


def test_the_first_original_stays_whatever_is_written_later(state: StateDirectory) -> None:
    journal = SettingsJournal(state, "boot")
    journal.take_power(UUID, 250.0, 200.0)
    journal.take_power(UUID, 200.0, 150.0)
    journal.take_compute_mode(UUID, "default")
    journal.take_compute_mode(UUID, "exclusive_process")
    journal.take_persistence(UUID, False)
    journal.take_persistence(UUID, True)
    journal.take_clock(UUID, 1200)
    journal.take_clock(UUID, 900)
    assert journal.of(UUID) == Originals(
        taken=frozenset({"clock", "power", "compute_mode", "persistence"}),
        power_limit_w=250.0,
        power_limit_w_asked=150.0,
        compute_mode="default",
        persistence=False,
        clock_mhz_asked=900,
    )


def test_what_a_killed_agent_left_is_found_by_the_next_one_and_void_after_a_reboot(state: StateDirectory) -> None:
    SettingsJournal(state, "boot").take_power(UUID, 250.0, 200.0)
    again = SettingsJournal(state, "boot")
    again.take_power(UUID, 200.0, 200.0)
    found = again.of(UUID)
    assert found is not None
    assert (found.power_limit_w, again.uuids) == (250.0, (UUID,))
    assert SettingsJournal(state, "another boot").uuids == ()


def test_what_has_its_original_again_is_forgotten(state: StateDirectory) -> None:
    journal = SettingsJournal(state, "boot")
    journal.take_clock(UUID, 1200)
    journal.take_power(UUID, None, 200.0)
    journal.settle(UUID, "clock")
    found = SettingsJournal(state, "boot").of(UUID)
    assert found is not None
    assert (found.taken, found.clock_mhz_asked, found.power_limit_w_asked) == (frozenset({"power"}), None, 200.0)
    journal.settle(UUID, "power")
    journal.settle(UUID, "power")
    assert SettingsJournal(state, "boot").uuids == ()


def test_a_write_that_did_not_happen_leaves_the_journal_as_it_was(state: StateDirectory) -> None:
    journal = SettingsJournal(state, "boot")
    journal.take_clock(UUID, 1200)
    before = journal.of(UUID)
    journal.take_clock(UUID, 900)
    journal.put_back(UUID, before)
    journal.take_clock("GPU-2", 900)
    journal.put_back("GPU-2", None)
    assert (SettingsJournal(state, "boot").of(UUID), SettingsJournal(state, "boot").uuids) == (before, (UUID,))


def test_nothing_is_believed_to_be_kept_that_is_not_on_disk() -> None:
    state = MemoryState()
    journal = SettingsJournal(state, "boot")
    state.full = True
    with pytest.raises(StateFileError, match="space"):
        journal.take_power(UUID, 250.0, 200.0)
    assert journal.of(UUID) is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 9}', '{"version": 1, "boot_id": "boot", "devices": {"a": 1}}']
)
def test_a_journal_that_cannot_be_read_is_an_error(state: StateDirectory, text: str) -> None:
    state.write_text(JOURNAL_FILE, text)
    with pytest.raises(StateFileError):
        SettingsJournal(state, "boot")


def test_the_host_tells_its_boot() -> None:
    assert host_boot_id() == host_boot_id() != ""
