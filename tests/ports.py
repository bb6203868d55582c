"""Ports that no other test process of this machine takes.

A worker binds its port after somebody looked whether it is free, so two agents with one range meet sooner or later. A
block belongs to whoever holds the abstract socket of its name, and to nobody once that process is gone. All lie below
the range from which the kernel gives ports to connections.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import socket

BLOCK = 200
STARTS = range(10_000, 30_000, BLOCK)
_HELD: list[int] = []
_NEXT = itertools.count()


def own_ports() -> range:
    """The block of this process, until it ends."""
    return _block_of(os.getpid())


@functools.cache
def _block_of(_pid: int) -> range:
    for start in random.Random().sample(STARTS, len(STARTS)):
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0headroom-test-ports-{start}")
        except OSError:
            holder.close()
            continue
        _HELD.append(holder.detach())
        return range(start, start + BLOCK)
    raise AssertionError(f"all {len(STARTS)} blocks of ports are taken")


def free_port() -> int:
    """A port of the block where nobody listens, another one each time."""
    block = own_ports()
    for number in itertools.islice(_NEXT, BLOCK):
        port = block[-1 - number % BLOCK]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all ports from {block.start} to {block.stop - 1} are taken")


def port_option() -> str:
    """The block as the agent's command takes it."""
    block = own_ports()
    return f"{block.start}-{block.stop - 1}"
