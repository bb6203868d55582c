"""What a planner process tells of itself, over HTTP."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from app.workers.told import PlannerTold
from solvers.errors import InputError
from tests.ports import free_port


def test_loops_and_leadership_are_told_until_it_closes() -> None:
    told, port = PlannerTold(lambda: True), free_port()
    told.open("127.0.0.1", port)
    told.ran("place", 1.5, well=True)
    told.ran("place", 0.5, well=False)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    told.close()
    told.close()
    for line in (
        'headroom_planner_loops_total{loop="place",outcome="well"} 1.0',
        'headroom_planner_loops_total{loop="place",outcome="failed"} 1.0',
        'headroom_planner_loop_seconds_total{loop="place"} 2.0',
        'headroom_planner_step_seconds_total{step="propose"} 0.0',
        "headroom_planner_leading 1.0",
    ):
        assert line in lines
    assert any(line.startswith("process_cpu_seconds_total") for line in lines)
    assert not [line for line in lines if "_created" in line]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"):
            PlannerTold(lambda: False).open("127.0.0.1", port)
