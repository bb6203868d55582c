"""Commands that make HAProxy's slots hold the routes: from any state to any other, and nothing more than needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.haproxy import FORCED_DRAIN, Slot, changes, read_slots
from app.routing.routes import RouteServer
from tests.unit.app.routing.model import CONFIGURED_OFF, Backend, empty

STATES = """1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state \
bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port \
srv_check_addr srv_agent_addr srv_agent_port
3 vision:labels 1 slot1 127.0.0.1 0 8 100 100 2 8 2 0 6 0 0 0 - 18081 - 0 0 - - 0
3 vision:labels 2 slot2 ::1 2 5 50 1 2 1 0 0 14 0 0 0 - 1 - 0 0 - - 0
4 other 1 s 10.0.0.1 2 0 1 1 2 1 0 0 14 0 0 0 - 80 - 0 0 - - 0
"""
CONNECTIONS = """# bkname/svname bkid/svid addr port - purge_delay used_cur used_max need_est unsafe_nb safe_nb idle_lim
vision:labels/slot1 3/1 127.0.0.1 18081 - 5000 7 9 1 0 0 -1
vision:labels/slot2 3/2 ::1 1 - 5000 0 0 0 0 0 -1
"""


def server(port: int, weight: int = 100) -> RouteServer:
    return RouteServer(host="10.0.0.1", port=port, weight=weight)


def holding(name: str, port: int, *, weight: int = 100, admin_state: int = 0, used: int = 0) -> Slot:
    return Slot(name=name, host="10.0.0.1", port=port, weight=weight, admin_state=admin_state, used=used)


def words(slots: list[Slot], *wanted: RouteServer) -> list[str]:
    return [f"{command.slot} {command.words}" for command in changes(wanted, slots).commands]


def test_slots_are_read_from_what_haproxy_shows() -> None:
    found = read_slots(STATES, CONNECTIONS)
    assert found["vision:labels"] == (
        Slot(name="slot1", host="127.0.0.1", port=18081, weight=100, admin_state=8, used=7),
        Slot(name="slot2", host="::1", port=1, weight=50, admin_state=5, used=0),
    )
    assert set(found) == {"vision:labels", "other"}
    assert [slot.draining for slot in found["vision:labels"]] == [True, False]
    assert [slot.in_maintenance for slot in found["vision:labels"]] == [False, True]
    with pytest.raises(ValueError, match="no table of be_id"):
        read_slots("Can't find backend.", CONNECTIONS)


def test_a_new_server_is_placed_in_maintenance_and_then_ready() -> None:
    assert words([holding("a", 9001), empty("b")], server(9001), server(9002, 40)) == [
        "b addr 10.0.0.1 port 9002",
        "b weight 40",
        "b state ready",
    ]


def test_a_hand_over_readies_the_new_before_it_drains_the_old_and_frees_it_when_it_is_done() -> None:
    backend = Backend([holding("a", 9001, used=3), empty("b")])
    assert [f"{command.slot} {command.words}" for command in changes([server(9002)], backend.shown()).commands] == [
        "b addr 10.0.0.1 port 9002",
        "b weight 100",
        "b state ready",
        "a state drain",
    ]
    for command in changes([server(9002)], backend.shown()).commands:
        backend.take(command)
    assert changes([server(9002)], backend.shown()).commands == ()
    backend.finish_requests()
    assert [f"{command.slot} {command.words}" for command in changes([server(9002)], backend.shown()).commands] == [
        "a state maint"
    ]


def test_a_server_that_comes_back_while_it_drains_is_only_told_to_be_ready() -> None:
    assert words([holding("a", 9001, admin_state=FORCED_DRAIN, used=2)], server(9001)) == ["a state ready"]


def test_weights_alone_change_in_place() -> None:
    assert words([holding("a", 9001)], server(9001, 70)) == ["a weight 70"]


def test_what_is_so_already_is_left_alone() -> None:
    assert words([holding("a", 9001), empty("b")], server(9001)) == []


def test_a_server_held_twice_is_kept_once() -> None:
    assert words([holding("a", 9001), holding("b", 9001)], server(9001)) == ["b state drain"]


def test_with_every_slot_taken_those_that_leave_make_room() -> None:
    assert words([holding("a", 9001, used=5), holding("b", 9002)], server(9002), server(9003)) == [
        "a state maint",
        "a addr 10.0.0.1 port 9003",
        "a state ready",
    ]


def test_servers_without_a_slot_are_said() -> None:
    found = changes([server(9001), server(9002)], [empty("a")])
    assert found.homeless == (server(9002),)


_slots = st.lists(
    st.builds(
        lambda port, weight, state, used: holding("", port, weight=weight, admin_state=state, used=used),
        st.integers(9000, 9005),
        st.integers(1, 100),
        st.sampled_from([0, FORCED_DRAIN, 1, CONFIGURED_OFF, 1 | FORCED_DRAIN]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
).map(lambda slots: [replace(slot, name=f"slot{number}") for number, slot in enumerate(slots, 1)])
_wanted = st.dictionaries(st.integers(9000, 9009), st.integers(1, 100), max_size=8).map(
    lambda found: [server(port, weight) for port, weight in sorted(found.items())]
)


@given(_slots, _wanted)
def test_from_any_state_to_any_routes(slots: list[Slot], wanted: list[RouteServer]) -> None:
    backend = Backend(slots)
    found = changes(wanted, backend.shown())
    assert len(found.homeless) == max(0, len(wanted) - len(slots))
    served, spare = bool(backend.ready()), any(not slot.ready for slot in slots)
    for command in found.commands:
        backend.take(command)
        # Whoever was served goes on being served in between, where there is a slot to do it with.
        assert backend.ready() or not (served and wanted and spare)
    housed = {(each.host, each.port): each.weight for each in wanted if each not in found.homeless}
    assert backend.ready() == housed
    # The same routes again: what drains is freed once its requests are done, and then nothing is left to do.
    backend.finish_requests()
    for command in changes(wanted, backend.shown()).commands:
        assert command.words == "state maint"
        backend.take(command)
    assert changes(wanted, backend.shown()).commands == ()
    assert backend.ready() == housed
