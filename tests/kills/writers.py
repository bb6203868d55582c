"""Those who write while processes die, each with a memory of what it was told is done.

Whatever gets no answer is asked again, unchanged; what the memory holds is compared with the database afterwards.
"""

from __future__ import annotations

import hashlib
import random
import threading
from abc import ABC, abstractmethod
from typing import Any

import httpx

from tests.integration.faults.fleet import CLOCK_MHZ, HIGH_RPS, LOW_RPS, PROJECT, SERVICES, plain, service
from tests.integration.faults.house import House
from tests.integration.faults.reporters import Reporter
from tests.waiting import spend

PAUSE_S = 0.05
POINTS = 40


class Writer(ABC):
    """Writes one thing after the other in a thread; `done` counts what was acknowledged."""

    def __init__(self, house: House, name: str) -> None:
        self.house, self.name, self.done = house, name, 0
        self.failure = ""
        self._http = httpx.Client(base_url=house.address, timeout=30.0)
        self._headers = {"Authorization": f"Bearer {house.admin}"}

    def run(self, ending: threading.Event) -> None:
        """Until told to end, and then until what was begun is answered."""
        try:
            self.work(ending)
        except Exception as error:  # noqa: BLE001 - whoever checks is told
            self.failure = f"{self.name}: {error!r}"
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    @abstractmethod
    def work(self, ending: threading.Event) -> None:
        """Until told to end."""

    @property
    def count(self) -> int:
        """How many things were acknowledged."""
        return self.done

    @abstractmethod
    def broken(self) -> list[str]:
        """What is not as it was acknowledged."""

    def insist(self, method: str, path: str, **sent: Any) -> httpx.Response:
        """Ask until somebody answers; 409 says that the first asking is still under way."""
        headers = self._headers | sent.pop("headers", {})
        while True:
            try:
                answer = self._http.request(method, path, headers=headers, **sent)
            except httpx.TransportError:
                spend(PAUSE_S)
                continue
            if answer.status_code < 500 and answer.status_code not in (409, 429):
                assert answer.is_success, f"{self.name}: {answer.status_code} {answer.text}"
                return answer
            spend(PAUSE_S)


class Repeater(Writer):
    """Has one thing after the other acknowledged."""

    def work(self, ending: threading.Event) -> None:
        while not ending.is_set():
            self.write(self.done + 1)
            self.done += 1
            spend(PAUSE_S)

    @abstractmethod
    def write(self, number: int) -> None:
        """Have one thing acknowledged."""


class Putter(Repeater):
    """Rewrites one document again and again: what stands is the last that was acknowledged."""

    def write(self, number: int) -> None:
        self.insist("PUT", f"/v1/projects/{self.name}", json={"name": self.name, "description": f"{number}"})

    def broken(self) -> list[str]:
        found = self.house.one("SELECT spec ->> 'description' FROM projects WHERE name = %s", self.name)
        return [] if found == str(self.done) else [f"{self.name}: {self.done} was acknowledged, {found} stands"]


class Poster(Repeater):
    """Makes tokens, each under an Idempotency-Key: one for each key, with the secret that was answered. An answer that
    is repeated has none.
    """

    def __init__(self, house: House, name: str) -> None:
        super().__init__(house, name)
        self._secrets: dict[str, str | None] = {}

    def write(self, number: int) -> None:
        name = f"{self.name}-{number}"
        sent = {"name": name, "role": "viewer"}
        made = self.insist("POST", "/v1/tokens", json=sent, headers={"Idempotency-Key": name}).json()["secret"]
        self._secrets[name] = None if made is None else hashlib.sha256(made.encode()).hexdigest()

    def broken(self) -> list[str]:
        query = "SELECT name, array_agg(encode(secret_hash, 'hex')) FROM tokens WHERE name LIKE %s GROUP BY 1"
        found = dict(self.house.rows(query, f"{self.name}-%"))
        told = [f"{name}: made {len(made)} times" for name, made in found.items() if len(made) != 1]
        for name, own in self._secrets.items():
            if name not in found or (own is not None and own not in found[name]):
                told.append(f"{name}: lost, or with another secret")
        return told


class Importer(Repeater):
    """Imports a model's measurements in one request: whole, once, or not at all."""

    def write(self, number: int) -> None:
        rows = [
            f"{self.name}-{number},t4,{1 + index % 8},{10 + index},{CLOCK_MHZ},{5 + index}.5,1500"
            for index in range(POINTS)
        ]
        head = "model,gpu_type,batch,share_pct_sm,clock_mhz_sm,latency_ms,memory_mib"
        model = {
            "name": f"{self.name}-{number}",
            "family": "resnet",
            "parameters_million": 25.6,
            "memory_mib_weights": 98,
        }
        self.insist("PUT", f"/v1/models/{model['name']}", json=model)
        self.insist(
            "POST", "/v1/profiles", content="\n".join([head, *rows]),
            headers={"Content-Type": "text/csv", "Idempotency-Key": f"{self.name}-{number}"},
        )  # fmt: skip

    def broken(self) -> list[str]:
        query = "SELECT model, count(*) FROM profile_points WHERE model LIKE %s GROUP BY 1"
        found = dict(self.house.rows(query, f"{self.name}-%"))
        wanted = {f"{self.name}-{number}" for number in range(1, self.done + 1)}
        return [
            f"{name}: {found.get(name, 0)} of {POINTS} points"
            for name in wanted | set(found)
            if found.get(name) != POINTS
        ]


class Demand(Repeater):
    """Makes one service busy and the other quiet, in turns, so that targets change all the time."""

    def write(self, number: int) -> None:
        for place, name in enumerate(SERVICES):
            rate = HIGH_RPS if place == number % len(SERVICES) else LOW_RPS
            self.insist("PUT", f"/v1/services/{PROJECT}/{name}", json=plain(service(name, rate)))
        spend(1.0)  # a demand lasts for a while, so that plans for it are made

    def broken(self) -> list[str]:
        return []


class Reporting(Writer):
    """A node that reports and hardly pauses: every report that was acknowledged is stored, once."""

    def __init__(self, house: House, name: str, stream: random.Random) -> None:
        super().__init__(house, name)
        self.reporter = Reporter(house.address, name, house.join, stream, PAUSE_S / 2)

    def work(self, ending: threading.Event) -> None:
        self.reporter.run(ending)

    def close(self) -> None:
        self.reporter.close()
        super().close()

    @property
    def count(self) -> int:
        return len(self.reporter.acknowledged)

    def broken(self) -> list[str]:
        query = "SELECT boot_id, sequence FROM report_log WHERE source = %s"
        stored = sorted(tuple(row) for row in self.house.rows(query, f"node/{self.name}"))
        told = [f"{self.name}: {text}" for text in self.reporter.refused[:3]]
        return (
            told if stored == sorted(self.reporter.acknowledged) else [*told, f"{self.name}: reports lost or doubled"]
        )
