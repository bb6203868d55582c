"""Commands that run the processes of a control plane: each for itself, or all of one machine through the supervisor.

The server's libraries are not imported before a command needs them, so that the other commands stay quick and a GPU
host does without them.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import Server, Token, connect
from app.cli.output import CommandError, Exit, exit_code_of, sentence_of
from app.demo.fleet import GATEWAY
from app.settings import Settings, load_settings
from solvers.errors import InputError

if TYPE_CHECKING:
    from app.demo.home import Home, Message, SupervisorState

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (HEADROOM_HOST).", show_default=False)]
Port = Annotated[
    int | None, typer.Option("--port", help="Port to listen on (HEADROOM_PORT).", min=1, max=65535, show_default=False)
]

GC_THRESHOLDS = 50_000, 20, 50
SWITCH_S = 0.0005


def up(
    *,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay attached; Ctrl-C stops everything.")] = False,
    no_demo: Annotated[
        bool, typer.Option("--no-demo", help="Only the control plane: no simulated fleet, no traffic.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print how long each phase took.")] = False,
    host: Host = None,
    port: Port = None,
    progress_descriptor: Annotated[int | None, typer.Option("--progress-descriptor", hidden=True)] = None,
) -> None:
    """Start database, API, planner and, unless told otherwise, a simulated fleet with live traffic."""
    from app.demo.fleet import examples_path
    from app.demo.home import Home, SupervisorState
    from app.demo.process import holder

    # What this and its children leave is for nobody else to read, or to lock.
    os.umask(0o077)
    settings = _settings(host, port)
    if settings.tls:
        raise InputError("`headroom up` serves this machine without TLS; a fleet's API is `headroom serve`")
    if not no_demo:
        # Said before anything starts: without its files there is no demo.
        examples_path()
    home = Home(settings.home)
    home.prepare()
    found = holder(home)
    if isinstance(found, SupervisorState):
        _say_running(found, progress_descriptor)
        return
    found.close()
    if foreground:
        _supervise(settings, demo=not no_demo, verbose=verbose, progress_descriptor=progress_descriptor)
        return
    arguments = ["--foreground", *(["--no-demo"] if no_demo else []), "--host", settings.host]
    if _detach(home, [*arguments, "--port", str(settings.port)], verbose=verbose):
        _say_welcome(home, demo=not no_demo)


def down() -> None:
    """Stop what `up` started; data, tokens and logs stay."""
    from app.demo.home import Home, SupervisorState
    from app.demo.process import end_processes, holder

    home = Home(_settings(None, None).home)
    if not home.path.is_dir():
        typer.echo("headroom is not running")
        return
    found = holder(home)
    if isinstance(found, SupervisorState):
        # The supervisor stops its children one after the other, each with a deadline of its own.
        end_processes([found.supervisor], 90.0)
        # One that had to be killed leaves them running.
        if (lock := home.lock()) is not None:
            with lock:
                _clear(home)
        typer.echo("headroom has stopped; its data stays in " + str(home.path))
        return
    with found:
        is_ended = _clear(home)
    typer.echo("leftovers of a killed supervisor have been stopped" if is_ended else "headroom is not running")


def _clear(home: Home) -> bool:
    """End what a supervisor left running; whether there was anything. Only under the home's lock."""
    from app.demo.process import end_processes, leftovers
    from app.store.embedded import stop_embedded

    state = home.read_state()
    ended = end_processes(leftovers(home), 10.0)
    stopped_database = (state is None or state.owns_database) and stop_embedded(home.path)
    home.forget_state()
    return bool(ended) or stopped_database


def serve(
    *,
    host: Host = None,
    port: Port = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Speak TLS, with a certificate of the own authority (HEADROOM_TLS).")
    ] = False,
    tls_cert: Annotated[
        str | None, typer.Option(help="Or with this certificate (HEADROOM_TLS_CERT).", show_default=False)
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="And its key (HEADROOM_TLS_KEY).", show_default=False)] = None,
) -> None:
    """Run the API in this process."""
    from app.api.server import server_of
    from app.bootstrap import build_api
    from app.demo.supervisor import check_port

    settings = _settings(host, port)
    if tls or tls_cert or tls_key:
        settings = replace(
            settings, tls=True, tls_cert=tls_cert or settings.tls_cert, tls_key=tls_key or settings.tls_key
        )
    _configure_logs(settings.log_level)
    check_port(settings.host, settings.port)
    server = server_of(build_api(settings), settings)
    # Reports leave no cycles, and to look for them again and again cost a third of the time; and a thread that stores
    # hundreds waits for the interpreter a hundred times.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)
    server.run()


def planner() -> None:
    """Run the planner in this process: its loops, under the cluster's lease."""
    from app.bootstrap import build_planner

    settings = _settings(None, None)
    _configure_logs(settings.log_level)
    build_planner(settings).run()


def agent(context: typer.Context) -> None:
    """Turn this host into a node. All options go to the agent: see `headroom agent --help`."""
    # Replaces this process: an agent shall not carry the command line's libraries for the rest of its life.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "agents", *context.args])


def agent_helper(context: typer.Context) -> None:
    """Set clocks, power limits and modes for unprivileged agents: see `headroom agent-helper --help`."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", "agents.helper", *context.args])


def traffic(
    *,
    server: Server = None,
    token: Token = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Rate shapes; default: the demo's.")] = None,
    gateway: Annotated[str, typer.Option(help="Name under which offered load is reported.")] = GATEWAY,
    day_s: Annotated[float | None, typer.Option("--day-s", help="Seconds a day takes.", min=1, max=1e9)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the arrivals.")] = None,
    anchor_s: Annotated[
        float | None,
        typer.Option("--anchor-s", min=0, max=1e11, help="Epoch seconds at which the day began; default: now."),
    ] = None,
) -> None:
    """Play the users of the simulated fleet until stopped."""
    from app.demo.fleet import examples_path
    from app.demo.traffic import TrafficLoop, TrafficOrder, read_traffic_plan

    plan = read_traffic_plan(file or examples_path() / "traffic.yaml")
    plan = replace(plan, day_s=day_s or plan.day_s, seed=plan.seed if seed is None else seed)
    _configure_logs(load_settings(os.environ).log_level)
    with connect(server, token) as client:
        TrafficLoop(client, TrafficOrder(plan=plan, gateway=gateway, anchor_s=anchor_s)).run()


Force = Annotated[bool, typer.Option("--force", help="Also while a planner or an API uses the database.")]
migrate = typer.Typer(help="Bring the database schema up or down.", no_args_is_help=True)


@migrate.command("up")
def migrate_up(revision: Annotated[str, typer.Argument(help="Revision to stop at.")] = "head") -> None:
    """Migrate up."""
    from app.store.migrate import current, upgrade

    url = _database_url()
    upgrade(url, revision, _say_notice)
    typer.echo(f"schema is at {current(url)}")


@migrate.command("down")
def migrate_down(
    revision: Annotated[str, typer.Argument(help="Revision to go back to; `base` empties.")], *, force: Force = False
) -> None:
    """Migrate down. This removes columns and tables with what is in them."""
    from app.store.engine import Database
    from app.store.migrate import current, downgrade
    from app.store.targets import require_idle

    url = _database_url()
    # Leases are of 0002.
    if not force and (current(url) or "") >= "0002":
        database = Database(url, pool_size=1)
        try:
            database.read(require_idle)
        finally:
            database.dispose()
    downgrade(url, revision)
    typer.echo(f"schema is at {current(url) or 'base'}")


@migrate.command("current")
def migrate_current() -> None:
    """Print the schema's revision and the newest one."""
    from app.store.migrate import current, head

    typer.echo(f"schema is at {current(_database_url()) or 'base'}, the newest is {head()}")


def restore(
    *,
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Agents follow this database from where it stands.")
    ] = False,
    force: Force = False,
) -> None:
    """Have agents follow a database that was restored from a backup, though they hold newer generations."""
    from app.demo.tokens import ACTOR
    from app.services.declared.fleet import Fleet
    from app.services.declared.tokens import Deed
    from app.store.engine import Database

    if not new_epoch:
        raise InputError("say --new-epoch; rows are restored by PostgreSQL's own programs, such as pg_restore")
    database = Database(_database_url(), pool_size=1)
    try:
        before, after = Fleet(database, _settings(None, None).cluster).begin_epoch(Deed(actor=ACTOR), force=force)
    finally:
        database.dispose()
    typer.echo(f"cluster {after.cluster_id}: epoch {before.epoch} is over, epoch {after.epoch} has begun")
    typer.echo(f"agents follow from generation {after.generation} on")


def _configure_logs(level: str) -> None:
    from app.logs import configure_logs

    configure_logs(level)
    # Every request of a loop that runs each second is no news.
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _settings(host: str | None, port: int | None) -> Settings:
    settings = load_settings(os.environ)
    changed = replace(settings, host=host or settings.host, port=port or settings.port)
    return replace(changed, home=changed.home.absolute())


def _database_url() -> str:
    """Raises InputError where a pooler has that address: a migration's lock is a session's."""
    from app.store.engine import Database

    settings = _settings(None, None)
    if settings.session_url:
        Database(settings.session_url).require_sessions()
        return settings.session_url
    from app.store.embedded import embedded_url

    return embedded_url(settings.home)


def _say_notice(text: str) -> None:
    typer.echo(f"headroom: {text}", err=True)


def _say_running(found: SupervisorState, progress_descriptor: int | None) -> None:
    """Where another one runs, to whoever asked for one: it may have come first since that one looked."""
    from app.demo.home import Message, Teller

    where = f"at {found.address} (process {found.supervisor.pid})"
    told = f"headroom is already running {where}; stop it with: headroom down"
    if progress_descriptor is None:
        typer.echo(told)
    else:
        Teller(progress_descriptor).tell(Message(event="running", text=told))


def _supervise(settings: Settings, *, demo: bool, verbose: bool, progress_descriptor: int | None) -> None:
    from app.demo.home import Home, Message, SupervisorState, Teller
    from app.demo.process import holder
    from app.demo.rooms import LocalRooms, Order
    from app.demo.supervisor import AlreadyRunningError, Supervisor

    _configure_logs(settings.log_level)
    teller = Teller(progress_descriptor) if progress_descriptor is not None else None
    home = Home(settings.home)

    def phase(name: str, elapsed_s: float) -> None:
        if teller is not None:
            teller.tell(Message(event="phase", text=name, elapsed_s=elapsed_s))
        elif verbose:
            typer.echo(f"  {name:<12} {elapsed_s:6.2f} s")

    def noticed(text: str) -> None:
        if teller is None:
            _say_notice(text)
        else:
            teller.tell(Message(event="notice", text=text))

    def ready(elapsed_s: float) -> None:
        if teller is None:
            phase("all", elapsed_s)
            _say_welcome(home, demo=demo)
            return
        teller.tell(Message(event="ready", text="all", elapsed_s=elapsed_s))
        teller.close()

    order = Order(settings=settings, demo=demo)
    try:
        Supervisor(order, home, LocalRooms(order, home, noticed), phase).run(ready)
    except Exception as error:
        if isinstance(error, AlreadyRunningError) and isinstance(found := holder(home), SupervisorState):
            _say_running(found, progress_descriptor)
            return
        sentence = sentence_of(error)
        if teller is None or sentence is None:
            raise
        teller.tell(Message(event="failed", text=sentence, exit_code=exit_code_of(error)))
        raise typer.Exit(exit_code_of(error)) from error


def _detach(home: Home, arguments: list[str], *, verbose: bool) -> bool:
    """Whether it is the one that runs now."""
    from app.demo.home import listen

    reading, writing = os.pipe()
    with (home.logs / "supervisor.log").open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "app", "up", *arguments, "--progress-descriptor", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, "HEADROOM_HOME": str(home.path)},
        )
    os.close(writing)
    last: Message | None = None
    try:
        for message in listen(reading):
            last = message
            if verbose and message.event in ("phase", "ready"):
                typer.echo(f"  {message.text:<12} {message.elapsed_s:6.2f} s")
            if message.event == "notice":
                _say_notice(message.text)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    if last is not None and last.event == "ready":
        # It stays; leaving it unwaited is what detaching means.
        supervisor.returncode = 0
        return True
    supervisor.wait()
    if last is not None and last.event == "running":
        typer.echo(last.text)
        return False
    if last is not None and last.event == "failed":
        raise CommandError(last.text, Exit(last.exit_code))
    raise CommandError(f"the supervisor died while starting; see {home.logs / 'supervisor.log'}")


def _say_welcome(home: Home, *, demo: bool) -> None:
    from app.client.connection import read_connection

    connection = read_connection(home.path)
    if connection is None:
        raise InputError(f"{home.path} holds no connection")
    tries = (
        ("status", "explain vision/resnet50", "report cost --by service --last 1h")
        if demo
        else (f"apply -f {_demo_documents()}", "status", "agent --help")
    )
    typer.echo(f"console  {connection.server}/")
    typer.echo(f"token    {connection.token}")
    typer.echo("try next")
    for line in tries:
        typer.echo(f"  {_own_name()} {line}")


def _demo_documents() -> str:
    """The demo's documents as whoever stands here names them: a checkout has them, and an installation brings them."""
    from app.demo.fleet import examples_path

    found = examples_path() / "demo"
    return str(found.relative_to(Path.cwd()) if found.is_relative_to(Path.cwd()) else found)


def _own_name() -> str:
    """How this program can be called again from here: by name where the path knows it, else as it was called."""
    if shutil.which("headroom") is not None:
        return "headroom"
    called = sys.argv[0]
    return called if called.endswith("headroom") else f"{sys.executable} -m app"
