"""Listens to the doorbell: one open stream that only says "generation N exists".

Owns the stream and its reconnects, with jittered back-off. It carries no content and is never needed: without it,
targets are polled.
"""

from __future__ import annotations

import json
import random
import threading

from agents.log import Log
from agents.loop.uplink import Mailbox, Uplink
from agents.transport import Connection, StatusError, UnreachableError

PATH = "/v1/doorbell"
SILENCE_S_MAX = 90.0
"""The server says something at least every twenty seconds or so; longer silence means that nobody is there."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.5, 30.0


def listen(server: str, uplink: Uplink, mailbox: Mailbox, stop: threading.Event, log: Log) -> None:
    """Ring the mailbox for every generation heard, until stopped."""
    connection = Connection(server)
    jitter = random.Random()
    backoff_s = BACKOFF_S_MIN
    while not stop.is_set():
        if not uplink.joined.wait(1.0):
            continue
        connection.token = uplink.token
        if _follow(connection, mailbox, stop, log):
            backoff_s = BACKOFF_S_MIN
        stop.wait(backoff_s * jitter.uniform(0.5, 1.0))
        backoff_s = min(BACKOFF_S_MAX, 2.0 * backoff_s)


def _follow(connection: Connection, mailbox: Mailbox, stop: threading.Event, log: Log) -> bool:
    """One stream from its opening to its end; whether the server said anything."""
    said = False
    try:
        for line in connection.lines(PATH, SILENCE_S_MAX):
            said = True
            generation = heard(line)
            if generation is not None:
                mailbox.ring(generation)
            log.state("doorbell", "heard")
            if stop.is_set():
                break
    except (UnreachableError, StatusError) as error:
        log.state("doorbell", "silent", reason=str(error))
    return said


def heard(line: bytes) -> int | None:
    """The generation a line tells, or None for comments and anything else."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    generation = found.get("generation") if isinstance(found, dict) else None
    return generation if isinstance(generation, int) and not isinstance(generation, bool) else None
