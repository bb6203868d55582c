"""Handing over batch sizes: what waits, what is refused, what is found out later."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agents.crew import crew as crew_page
from agents.crew.web import Question, WebAnswer
from agents.errors import BusyError, NotFoundError, NotSupportedError, WorkerError
from tests.unit.agents.crew.doubles import OK, World, only, order, target


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(folder=tmp_path, pages={"/health": OK, "/headroom/batch": OK})


def test_a_worker_told_another_batch_reads_it_back_and_another_agent_too(world: World) -> None:
    crew = world.crew()
    crew.launch(order())
    wanted = replace(only(crew).reading.spec, batch=16, latency_ms_limit=20.0)
    crew.tune("shop/search-0@1", wanted)
    assert only(crew).reading.spec == wanted
    assert only(world.crew()).reading.spec == wanted
    assert json.loads(world.fetched[0].body) == {"batch": 16, "latency_ms_limit": 20.0}


def test_a_server_that_refuses_keeps_what_it_has(world: World) -> None:
    crew = world.crew()
    crew.launch(order())
    before = only(crew).reading.spec
    world.pages["/headroom/batch"] = WebAnswer(status=500, body=b"no")
    with pytest.raises(WorkerError, match="answered 500 no"):
        crew.tune("shop/search-0@1", replace(before, batch=16))
    assert only(crew).reading.spec == before
    world.pages["/headroom/batch"] = OK
    crew.tune("shop/search-0@1", replace(before, batch=16))
    assert only(crew).reading.spec.batch == 16
    with pytest.raises(NotFoundError):
        crew.tune("nobody", before)


def test_limits_alone_are_told_only_where_they_can_be(world: World) -> None:
    crew = world.crew()
    crew.launch(order())
    wanted = replace(only(crew).reading.spec, latency_ms_limit=20.0)
    world.pages["/headroom/batch"] = WebAnswer(status=404)
    crew.tune("shop/search-0@1", wanted)
    assert only(crew).reading.spec.latency_ms_limit == 20.0
    with pytest.raises(NotSupportedError):
        crew.tune("shop/search-0@1", replace(wanted, batch=9))


def test_where_a_new_process_is_needed_only_the_limit_can_be_tuned(world: World) -> None:
    crew = world.crew()
    crew.launch(order(worker=target(adapter="vllm")))
    before = only(crew).reading.spec
    with pytest.raises(NotSupportedError, match="new process"):
        crew.tune("shop/search-0@1", replace(before, batch=16))
    crew.tune("shop/search-0@1", replace(before, latency_ms_limit=7.0))
    assert only(crew).reading.spec.latency_ms_limit == 7.0
    assert world.fetched == []


def test_a_slow_reload_goes_on_and_is_found_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_page, "WAIT_S", 0.01)
    release, threads = threading.Event(), []

    def aside(work: object) -> None:
        assert callable(work)
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    def slow(question: Question) -> WebAnswer:
        assert release.wait(10.0)
        return OK

    crew = world.crew()
    crew.launch(order())
    crew._bench.host = replace(crew._bench.host, aside=aside, fetch=slow)
    wanted = replace(only(crew).reading.spec, batch=16)
    for _ in range(3):
        with pytest.raises(BusyError, match="still takes"):
            crew.tune("shop/search-0@1", wanted)
    assert only(crew).reading.spec.batch == 4
    assert len(threads) == 1
    release.set()
    threads[0].join()
    assert only(crew).reading.spec.batch == 16
    crew.tune("shop/search-0@1", wanted)


def test_changes_of_workers_that_are_gone_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_page, "WAIT_S", 0.0)
    crew = world.crew()
    crew._bench.host = replace(crew._bench.host, aside=lambda work: None)
    for number in range(3):
        name = f"shop/search-0@{number}"
        crew.launch(order(name))
        with pytest.raises(BusyError, match="still takes"):
            crew.tune(name, replace(only(crew).reading.spec, batch=16))
        crew.end(name, lambda pid: None)
        world.run(crew, 2.0)
        assert crew.found() == ()
    assert len(crew._tuning._changes) == 1


def test_nonsense_from_a_server_is_its_error(world: World) -> None:
    crew = world.crew()
    crew.launch(order(worker=target(adapter="torchserve")))
    world.pages["/models/bert"] = WebAnswer(status=200, body=b"[7]")
    with pytest.raises(WorkerError):
        crew.tune("shop/search-0@1", replace(only(crew).reading.spec, batch=16))
