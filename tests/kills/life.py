"""One control plane's life: writers at work, processes killed and frozen at moments that a seed draws, and what must
hold afterwards.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from app.demo.home import SupervisedProcess
from app.demo.process import alive
from tests.integration.faults.fleet import DEVICES, seed
from tests.integration.faults.house import Background, House, Postgres, Process
from tests.integration.faults.invariants import Watch, behind, check_afterwards
from tests.kills.writers import Demand, Importer, Poster, Putter, Reporting, Writer
from tests.waiting import spend, wait_until

NODES = ("node-a", "node-b")
MOMENT_S = 1.0
"""Between two faults, at most; what is starting again meanwhile is hit as well."""
LEASE_S, FREEZE_S = 3.0, 4.0
"""Some freezes are longer than a lease."""
RESPITE = 10
"""After so many faults everything comes back before the next."""
RECOVERY_S = 120.0
EVERYBODY = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
RUNNING = """
SELECT id FROM cycles WHERE state = 'running' AND fencing_token < (SELECT token FROM leases WHERE name = 'planner')
"""


class Life:
    """A house, its processes by name, its writers, and the story of what was done to it."""

    def __init__(self, postgres: Postgres, number: int) -> None:
        self.faults: Counter[str] = Counter()
        self.story: list[str] = []
        self._seed = number
        self._stream = random.Random(number)
        self._began_s = time.monotonic()
        self.house = House(postgres, {"HEADROOM_LEASE_TTL_S": f"{LEASE_S}"})
        self._processes: dict[str, Process] = {}
        self._dead: list[Process] = []
        self._is_supervised = number % 2 == 0
        """Every other life has API and planner under `headroom up`, which is hit like everybody."""
        self._left: list[SupervisedProcess] = []
        """What killed supervisors left running."""
        alone: dict[str, Callable[[], Process]] = {
            "api": lambda: self.house.start_api(wait=False),
            "planner": self.house.start_planner,
        }
        self._starts: dict[str, Callable[[], Process]] = {
            **({"up": self.house.start_up} if self._is_supervised else alone),
            "rival": self.house.start_planner,
            **{node: partial(self.house.start_agent, node, DEVICES) for node in NODES},
        }
        self._acts: dict[str, Callable[[], None]] = {
            **{f"kill {name}": partial(self._kill, name) for name in self._starts},
            **{f"freeze {name}": partial(self._freeze, name) for name in self._starts},
            **({f"kill up's {name}": partial(self._kill_supervised, name) for name in alone if self._is_supervised}),
            "kill a planner's child": self._kill_child,
            "kill a database process": self._kill_backend,
            "crash the database": postgres.crash,
            "kill the postmaster": postgres.kill,
            "kill all": self._kill_all,
        }

    def live(self, faults: int) -> None:
        """Raises AssertionError with what does not hold, the story and the processes' last words."""
        try:
            self._live(faults)
        except AssertionError as error:
            told = "\n".join([f"seed {self._seed}: {error}", *self.story])
            raise AssertionError(told) from error

    def _live(self, faults: int) -> None:
        self._begin()
        ending = threading.Event()
        writers = self._writers()
        threads = [threading.Thread(target=writer.run, args=(ending,), daemon=True) for writer in writers]
        with Background(Watch(self.house)):
            for thread in threads:
                thread.start()
            while self.faults.total() < faults:
                spend(self._stream.uniform(0.0, MOMENT_S))  # a random moment
                self._strike()
                if self.faults.total() % RESPITE == 0:
                    self._recover(writers)
            self._recover(writers)
            ending.set()
            for thread in threads:
                thread.join(RECOVERY_S)
        assert not any(thread.is_alive() for thread in threads), "a writer never got its answer"
        self._check(writers)

    def _begin(self) -> None:
        if self._is_supervised:
            self._processes["up"] = self.house.start_up()
            self._await("the API serves", self.house.ready)
        else:
            self._processes["api"] = self.house.start_api()
        with self.house.client() as client:
            seed(client)
        self._bring_back()
        self.house.await_true("a first plan", lambda: self.house.generation() > 0 and not behind(self.house, *NODES))

    def _writers(self) -> list[Writer]:
        found: list[Writer] = [Reporting(self.house, f"reporter-{n}", self._stream) for n in range(2)]
        found += [Putter(self.house, f"put-{number}") for number in range(2)]
        return [*found, Poster(self.house, "post"), Importer(self.house, "import"), Demand(self.house, "demand")]

    # -- faults

    def _strike(self) -> None:
        name = self._stream.choice(sorted(self._acts))
        before = self.faults.total()
        self._acts[name]()
        self.faults[name] += self.faults.total() == before
        self.story.append(f"{time.monotonic() - self._began_s:7.2f} s  {name}")
        self._bring_back()

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        if name == "up":
            self._left += self.house.supervised()
        self._dead.append(process)

    def _freeze(self, name: str) -> None:
        self._processes[name].freeze()
        spend(self._stream.uniform(0.0, FREEZE_S))
        self._processes[name].thaw()

    def _kill_child(self) -> None:
        leader = self._processes["rival" if self._is_supervised else "planner"]
        for pid in leader.survivors():
            if pid != leader.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    def _kill_supervised(self, name: str) -> None:
        for process in self.house.supervised():
            if process.name == name and alive(process):
                os.kill(process.pid, signal.SIGKILL)

    def _kill_backend(self) -> None:
        found = sorted(row[0] for row in self.house.rows(EVERYBODY))
        with suppress(ProcessLookupError, IndexError):  # nobody may be connected
            os.kill(self._stream.choice(found), signal.SIGKILL)

    def _kill_all(self) -> None:
        for name in sorted(self._processes):
            self._kill(name)
            self.faults[f"kill {name}"] += 1
        self.house.postgres.crash()

    # -- recovery

    def _bring_back(self) -> None:
        self.house.postgres.start()
        for name, start in self._starts.items():
            if name not in self._processes or not self._processes[name].alive:
                self._processes[name] = start()

    def _recover(self, writers: list[Writer]) -> None:
        """Every writer gets on, a planner leads, and nobody has outlived who started it."""
        self._bring_back()
        before = {writer.name: writer.count for writer in writers}

        def all_get_on() -> bool:
            if self._is_supervised and not self._processes["up"].alive:
                # It ends where the database stays away for long; whoever runs it starts it again.
                self._processes["up"] = self.house.start_up()
            return all(writer.failure or writer.count > before[writer.name] for writer in writers)

        self._await("every writer gets on", all_get_on)
        assert not any(writer.failure for writer in writers), [writer.failure for writer in writers]
        generation = self.house.generation()
        self._await("plans go on", lambda: self.house.beyond(generation))
        self._await("what supervisors left is cleared", lambda: not any(map(alive, self._left)))
        orphans = {process.name: process.survivors() for process in self._dead}
        self._await("nobody outlives who started it", lambda: not any(each.survivors() for each in self._dead))
        self._dead.clear()
        self.story.append(
            f"{time.monotonic() - self._began_s:7.2f} s  all came back {orphans if any(orphans.values()) else ''}"
        )

    def _await(self, what: str, check: Callable[[], object]) -> None:
        self.house.await_true(what, check, RECOVERY_S)

    def _check(self, writers: list[Writer]) -> None:
        wrong = [line for writer in writers for line in (writer.failure, *writer.broken()) if line]
        assert not wrong, wrong
        self._await("agents hold the target", lambda: not behind(self.house, *NODES))
        self._await("no cycle is left running by the dead", lambda: not self.house.rows(RUNNING))
        assert self.house.rows("SELECT * FROM ledger_check WHERE difference_usd <> 0") == []
        # The child that was killed may have been the one that learns, which is told with all that is known.
        check_afterwards(self.house, "the process that learns ended without an answer")

    def end(self) -> None:
        """Nothing outlives it."""
        processes = list(self._processes.values())
        if self._is_supervised:
            self.house.run("down")
            self._left += self.house.supervised()
        self.house.close()
        assert not any(map(alive, self._left)), "`headroom down` leaves nothing running"
        wait_until(lambda: not any(process.survivors() for process in processes), "the end of all processes")
