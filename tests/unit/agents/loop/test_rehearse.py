"""Rehearsals: every step on paper, none on the devices."""

from __future__ import annotations

from agents.config import WorkerRules
from agents.crew.users import refusal_of
from agents.errors import LostError
from agents.loop.rehearse import newest_target, rehearse
from agents.servers import Servers
from agents.state import TARGET_FILE, TOKEN_FILE
from agents.wire import encode
from tests.unit.agents.builders import (
    NODE,
    FakeClock,
    device_target,
    fake_devices,
    node_target,
    replica_target,
    worker_spec,
)
from tests.unit.agents.devices.nvidia.doubles import COMMAND, MemoryState, World

AS_AGENT = WorkerRules(workers_as_agent=True)
NOBODY = Servers(("http://127.0.0.1:9",), NODE)


def test_every_step_is_told_in_order_and_none_is_taken() -> None:
    clock = FakeClock()
    devices = fake_devices(clock)
    uuid = devices.inventory()[0].uuid
    devices.start(uuid, worker_spec("r1", memory=20_000))
    clock.pass_s(30.0)
    before = (devices.workers(), devices.settings(uuid))
    changed = device_target(uuid, replica_target("r1", memory=21_000), clock_mhz_sm=1380, power_limit_w=200.0)
    assert rehearse(NODE, devices, node_target(1, changed)) == [
        f"{uuid}: limit it to 200 W",
        f"{uuid}: lock the SM clock at 1380 MHz",
        f"{uuid}: drain r1@00000001",
        f"{uuid}: end r1@00000001",
        f"{uuid}: start r1 with 30 %, 21000 MiB, batch 8",
    ]
    assert (devices.workers(), devices.settings(uuid)) == before
    assert rehearse(NODE, devices, node_target(1, device_target(uuid, replica_target("r1", memory=20_000)))) == []


def test_modes_retirement_and_what_cannot_be_read_are_told() -> None:
    world = World()
    devices = world.devices()
    first, second = world.cards
    world.cards[second].lost = True
    retiring = replica_target("old", worker=COMMAND, retire_after_s=30.0)
    target = node_target(1, device_target(first, replica_target("a", worker=COMMAND), retiring), device_target(second))
    assert rehearse(NODE, devices, target) == [
        f"{second}: cannot be read (lost: {LostError(f'{second} has fallen off the bus')})",
        f"{first}: share it by mps",
        f"{first}: start a with 30 %, 4000 MiB, batch 8: serve",
        "after 30 s:",
    ]
    assert world.processes == {}


def test_the_target_is_the_one_held_where_nobody_answers() -> None:
    state = MemoryState()
    assert newest_target(NOBODY, NODE, state) == (None, "this node has not joined yet")
    held = node_target(4)
    state.write_json(TARGET_FILE, encode(held))
    assert newest_target(NOBODY, NODE, state) == (held, "as held; this node has not joined yet")
    state.write_text(TOKEN_FILE, "token\n")
    found, origin = newest_target(NOBODY, NODE, state)
    assert found == held
    assert "did not answer" in origin
    state.write_text(TARGET_FILE, "{}")
    found, origin = newest_target(NOBODY, NODE, state)
    assert found is None
    assert "cannot be read" in origin


def test_a_command_that_this_agent_would_refuse_is_told() -> None:
    devices = World().devices()
    uuid = devices.inventory()[0].uuid
    target = node_target(1, device_target(uuid, replica_target("a", worker=COMMAND)))
    reason = refusal_of(WorkerRules(), has_user=False)
    (told,) = [line for line in rehearse(NODE, devices, target, reason) if "start a " in line]
    assert "; refused: this agent would run it as its own user" in told
    for rules, has_user in ((WorkerRules(), True), (WorkerRules(executables=()), False), (AS_AGENT, False)):
        assert not [
            line for line in rehearse(NODE, devices, target, refusal_of(rules, has_user=has_user)) if "refused" in line
        ]
