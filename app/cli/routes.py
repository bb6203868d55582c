"""Commands for gateways: list routes, render them for HAProxy or nginx, and follow them. What is rendered and how it is
followed is `app.routing`.
"""

from __future__ import annotations

import logging
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.files import STANDARD, check_target
from app.cli.options import Server, Token, connect, project_and_name
from app.cli.output import CommandError, Exit, Format, Output, listed, show
from app.client.offered import ReportLedger, ReportSender
from app.kinds import DEFAULT
from app.logs import EventLog, configure_logs
from app.routing.haproxy import SLOTS, Balance, HaproxyFollower, HaproxyStyle, RuntimeSocket, backends
from app.routing.nginx import NginxFollower, NginxOrder, upstreams
from app.routing.offered import OfferedLoad
from app.routing.routes import NewestRoutes, ServiceRoutes, Watcher, read_service, write_whole
from app.signals import asked_to_end
from headroom_client import Client, Document

routes = typer.Typer(no_args_is_help=True, help="Where requests may go, for gateways.")
follow = typer.Typer(no_args_is_help=True, help="Keep a running gateway at the routes as they are.")
routes.add_typer(follow, name="follow")

ServiceOption = Annotated[
    list[str] | None,
    typer.Option("--service", help="PROJECT/NAME, more than once if need be; default: all.", show_default=False),
]
BalanceOption = Annotated[Balance, typer.Option("--balance", help="How the gateway picks a server.")]


class Gateway(StrEnum):
    """What can be rendered."""

    HAPROXY = "haproxy"
    NGINX = "nginx"


@routes.command("list")
def list_routes(
    service: ServiceOption = None, output: Output = Format.TABLE, *, server: Server = None, token: Token = None
) -> None:
    """Ready replicas of services with their addresses and weights."""
    with connect(server, token) as client:
        found = _documents(client, service)
    names = ("service", "replica", "endpoint", ">weight", "state", ">generation")
    columns = {name: name.removeprefix(">") for name in names}
    lines = [{"service": item["service"], **each} for item in found for each in item["replicas"] or [{}]]
    show(found, output, listed(columns, lines))


@routes.command()
def render(
    gateway: Annotated[Gateway, typer.Argument(help="haproxy (backend sections) or nginx (upstream blocks).")],
    service: ServiceOption = None,
    out: Annotated[str, typer.Option("--out", help="File to write; -: standard output.")] = STANDARD,
    *,
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=1000, help="HAProxy: server slots per backend; followers fill them.")
    ] = SLOTS,
    balance: BalanceOption = Balance.LEASTCONN,
    server: Server = None,
    token: Token = None,
) -> None:
    """Write the routes as part of a gateway's configuration."""
    check_target(out)
    with connect(server, token) as client:
        found = [read_service(item) for item in _documents(client, service)]
    if gateway is Gateway.HAPROXY:
        text = backends(found, HaproxyStyle(slots=slots, balance=balance))
    else:
        text = upstreams(found, balance)
    if out == STANDARD:
        sys.stdout.write(text)
    else:
        changed = write_whole(Path(out), text)
        typer.echo(f"{out}: {_count(found)}{'' if changed else ', unchanged'}")


@follow.command("haproxy")
def follow_haproxy(
    socket: Annotated[Path, typer.Option("--socket", help="HAProxy's stats socket, level admin.")],
    service: ServiceOption = None,
    *,
    gateway: Annotated[
        str | None,
        typer.Option(help="Report under this name what services are asked for; default: nothing.", show_default=False),
    ] = None,
    server: Server = None,
    token: Token = None,
) -> None:
    """Put every change into a running HAProxy over its runtime API, without a reload."""
    log = _voice()
    services = [_full(name) for name in service or ()]
    ledger = None if gateway is None else ReportLedger(gateway, str(uuid.uuid4()))
    offered = None if ledger is None else OfferedLoad(ledger)
    follower = HaproxyFollower(RuntimeSocket(socket), services, log, offered)
    follower.check()
    with ExitStack() as stack:
        if ledger is not None:
            stack.enter_context(_reported(connect(server, token), ledger))
        board, ending = stack.enter_context(_watched(connect(server, token), services, log))
        follower.run(board, ending)


@follow.command("nginx")
def follow_nginx(
    out: Annotated[Path, typer.Option("--out", help="File that nginx includes.")],
    reload_command: Annotated[
        str, typer.Option("--reload-command", help="Program and arguments, e.g. 'nginx -s reload'; no shell.")
    ],
    service: ServiceOption = None,
    *,
    balance: BalanceOption = Balance.LEASTCONN,
    server: Server = None,
    token: Token = None,
) -> None:
    """Write a file after every change and have nginx read it."""
    check_target(str(out))
    log = _voice()
    try:
        command = tuple(shlex.split(reload_command))
    except ValueError as error:
        raise CommandError(f"--reload-command: {error}", Exit.USAGE) from None
    if not command:
        raise CommandError("--reload-command names no program", Exit.USAGE)
    services = [_full(name) for name in service or ()]
    order = NginxOrder(out=out, reload_command=command, services=services, balance=balance)
    with _watched(connect(server, token), services, log) as (board, ending):
        NginxFollower(order, log).run(board, ending)


def _voice() -> EventLog:
    """A line for every change; not for every request."""
    configure_logs("INFO")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return EventLog("headroom.routes")


@contextmanager
def _reported(client: Client, ledger: ReportLedger) -> Iterator[None]:
    """What the ledger holds is sent while this lasts, and the rest of it in the end. The client is the sender's."""
    ledger.introduce(client, time.time())
    sender = ReportSender(ledger, client)
    sender.start()
    try:
        yield
    finally:
        ledger.cut(time.time())
        sender.close()


@contextmanager
def _watched(client: Client, services: list[str], log: EventLog) -> Iterator[tuple[NewestRoutes, threading.Event]]:
    """A board that is kept current, by the stream of the one service or by that of all, and whether to end. The client
    stays open: it is the watching thread's, which ends with the process.
    """
    board = NewestRoutes(log)
    watcher = Watcher(client, services[0] if len(services) == 1 else "", board, log)
    watcher.start()

    def end() -> None:
        watcher.ending.set()
        board.news.set()

    try:
        with asked_to_end(end):
            yield board, watcher.ending
    finally:
        end()


def _documents(client: Client, services: list[str] | None) -> list[Document]:
    if services:
        return [client.routes(service=_full(name)).body for name in services]
    found: list[Document] = client.routes().body["items"]
    return found


def _full(name: str) -> str:
    """`project/name`; without a project, the default one's."""
    return "/".join(project_and_name("service", name if "/" in name or not name else f"{DEFAULT}/{name}"))


def _count(found: list[ServiceRoutes]) -> str:
    servers = sum(len(each.servers) for each in found)
    return f"{len(found)} service{'' if len(found) == 1 else 's'}, {servers} server{'' if servers == 1 else 's'}"
