"""Commands for access: sign in to a control plane and choose among those; create, list and revoke tokens, and make the
very first one of a control plane. A secret is printed once and stored nowhere but in the contexts of who signs in.
Who is told of what happens is here, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from app.cli.options import COUNT_MAX, Server, Token, connect, duration_s
from app.cli.output import Cell, CommandError, Exit, Format, Output, listed, show
from app.client.connection import Connection
from app.client.contexts import CONTEXT_VARIABLE, read_contexts, write_contexts
from app.demo.fleet import GATEWAY
from app.settings import load_settings
from headroom_client import ApiError, Client
from solvers.errors import InputError

token = typer.Typer(help="Access tokens: who may do what.", no_args_is_help=True)


_COLUMNS: Mapping[str, Cell] = {
    **{name: name for name in ("id", "name", "role", "purpose", "project", "subject")},
    "expires": "expires_at",
    "uses": lambda item: f"{item['uses']} of {item['uses_max']}" if item.get("uses_max") else None,
    "state": "state",
    "last used": "last_used_at",
}

if TYPE_CHECKING:
    from app.authority import Authority

SECRET_LENGTH_MIN = 24

Name = Annotated[str, typer.Argument(help="What the token is for, for people.")]
Lifetime = Annotated[
    str | None, typer.Option("--ttl", help="Lifetime such as 12h or 90d; default: for ever, a join token's an hour.")
]
Uses = Annotated[int | None, typer.Option(help="Of a join token: so many nodes may join with it; default: one.", min=1)]


@token.command("create")
def create(
    name: Name,
    *,
    role: Annotated[str, typer.Option(help="admin, operator, viewer, reporter or agent.")] = "viewer",
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
    purpose: Annotated[str | None, typer.Option(help="Of an agent token: join, node or gateway.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", "--node", help="The node or gateway an agent token speaks for.")
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="For a node to join with: the same as --role agent --purpose join.")
    ] = False,
    uses: Uses = None,
    ttl: Lifetime = None,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """Create a token and print its secret, which nobody can read again."""
    request: dict[str, object] = {"name": name, "role": role, "project": project}
    request |= {"purpose": purpose, "subject": subject, "uses_max": uses}
    if join:
        request |= {"role": "agent", "purpose": "join"}
    ttl_s = duration_s(ttl) if ttl is not None else None
    with connect(server, token) as client:
        made = client.create_token({**request, "ttl_s": ttl_s})
    show(made, output, made["secret"])


@token.command("list")
def list_tokens(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """List tokens; ended ones too."""
    with connect(server, token) as client:
        items = list(client.items("tokens"))
    show(items, output, listed(_COLUMNS, items))


@token.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token, as `list` prints it.")],
    server: Server = None,
    token: Token = None,
) -> None:
    """End a token now."""
    with connect(server, token) as client:
        client.revoke_token(token_id)
    typer.echo(f"revoked {token_id}")


def open_console(
    only_print: Annotated[bool, typer.Option("--print", help="Print the link and start no browser.")] = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Open the console in a browser, signed in: by a link that is good once, for a minute."""
    import webbrowser

    with connect(server, token) as client:
        link = client.sign_in_link()
    typer.echo(link)
    if not only_print:
        webbrowser.open(link)


ca = typer.Typer(help="The control plane's own certificate authority, in its file.", no_args_is_help=True)


@ca.command("init")
def ca_init() -> None:
    """Make it, unless it is there; `headroom serve --tls` does so by itself."""
    authority = _authority()
    typer.echo(f"{'made' if authority.create() else 'there is'} {authority.file}")
    typer.echo(f"sha256 {authority.fingerprint}")


@ca.command("show")
def ca_show() -> None:
    """Print the certificates to trust, for `headroom agent --ca`; the one that signs comes first."""
    typer.echo(_authority().bundle, nl=False)


@ca.command("fingerprint")
def ca_fingerprint() -> None:
    """Print the SHA-256 of the certificate that signs, for `headroom agent --ca-sha256`."""
    typer.echo(_authority().fingerprint)


@ca.command("rotate")
def ca_rotate() -> None:
    """Sign with a new key from now on. What was signed before stays good until `headroom ca retire`; nodes and servers
    change over by themselves.
    """
    authority = _authority()
    authority.rotate()
    typer.echo(f"sha256 {authority.fingerprint}")
    typer.echo("nodes have new keys signed within a minute or two, while they reach the server")
    typer.echo("when `headroom nodes identities` says that it signed every node's newest key: headroom ca retire")


@ca.command("retire")
def ca_retire() -> None:
    """Trust the newest authority alone."""
    ended = _authority().retire()
    typer.echo("the earlier authority is trusted no more" if ended else "there is no earlier authority")


def _authority() -> Authority:
    from app.authority import Authority, authority_file

    return Authority(authority_file(load_settings(os.environ)))


@token.command("bootstrap")
def bootstrap(
    name: Name = "first administrator",
    role: Annotated[str, typer.Option(help="admin, or agent for a join token.")] = "admin",
    uses: Uses = None,
    ttl: Lifetime = None,
) -> None:
    """Create an admin or join token straight in the database (HEADROOM_DATABASE_URL), for a plane without any token."""
    from app.demo.tokens import issue_locally
    from app.services.declared.tokens import TokenRequest
    from app.store.tokens import Purpose, Role

    if role not in ("admin", "agent"):
        raise InputError("--role must be admin or agent; other tokens are made with `headroom token create`")
    request = TokenRequest(
        name=name,
        role=Role(role),
        purpose=Purpose.JOIN if role == "agent" else None,
        ttl_s=duration_s(ttl) if ttl else None,
        uses_max=uses,
    )
    typer.echo(issue_locally(_database_url(), TokenRequest.counted(request)))


@token.command("seed")
def seed() -> None:
    """Store tokens with secrets of your choice: HEADROOM_ADMIN_TOKEN, HEADROOM_JOIN_TOKEN, HEADROOM_GATEWAY_TOKEN."""
    from app.demo.tokens import store_given
    from app.services.declared.tokens import TokenRequest
    from app.store.tokens import Purpose, Role

    requests = {
        "HEADROOM_ADMIN_TOKEN": TokenRequest(name="administrator", role=Role.ADMIN),
        "HEADROOM_JOIN_TOKEN": TokenRequest(name="joining nodes", role=Role.AGENT, purpose=Purpose.JOIN),
        "HEADROOM_GATEWAY_TOKEN": TokenRequest(
            name="gateway", role=Role.AGENT, purpose=Purpose.GATEWAY, subject=GATEWAY
        ),
    }
    told = [variable for variable in requests if os.environ.get(variable)]
    given = {os.environ[variable]: requests[variable] for variable in told}
    if len(given) < len(told):
        raise InputError(f"each token needs a secret of its own: {', '.join(told)}")
    short = [request.name for secret, request in given.items() if len(secret) < SECRET_LENGTH_MIN]
    if short:
        raise InputError(f"secrets need at least {SECRET_LENGTH_MIN} characters: {', '.join(short)}")
    if not given:
        raise InputError(f"none of {', '.join(requests)} is set")
    made = store_given(_database_url(), given)
    typer.echo(f"stored: {', '.join(made)}" if made else "all are stored already")


def _database_url() -> str:
    from app.store.engine import Database

    settings = load_settings(os.environ)
    if not settings.session_url:
        raise InputError("set HEADROOM_DATABASE_URL; `headroom up` makes its own tokens for the embedded database")
    Database(settings.session_url).require_sessions()
    return settings.session_url


# --- Control planes that this user signed in to


context = typer.Typer(help="Control planes that were signed in to.", no_args_is_help=True)
ContextName = Annotated[str, typer.Argument(help="Name of a context, as `list` prints it.")]


def login(
    server: Annotated[str, typer.Argument(help="Address of the API, e.g. https://headroom.example.org.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the context; default: the server's host.")] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar="HEADROOM_TOKEN", help="Bearer token; default: asked for, or a line of a pipe."),
    ] = None,
) -> None:
    """Sign in to a control plane: the token is tried, then kept for this user, and used from now on."""
    secret = token or (typer.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline())
    secret = secret.strip()
    if not secret.isascii() or not secret:
        raise CommandError("a token is one line of ASCII characters", Exit.USAGE)
    with Client(server, secret) as client:
        try:
            client.fleet()
        except ApiError as error:
            # Reporters and agents may not read the fleet, and are known all the same.
            if error.status != 403:
                raise
        connection = Connection(server=client.server, token=secret)
    chosen = name or urlsplit(connection.server).hostname or "default"
    write_contexts(read_contexts().added(chosen, connection))
    typer.echo(f"signed in to {connection.server} as context {chosen}")


@context.command("list")
def list_contexts(output: Output = Format.TABLE) -> None:
    """List contexts; the current one is marked."""
    found = read_contexts()
    current = os.environ.get(CONTEXT_VARIABLE) or found.current
    items = [
        {"name": name, "server": item.server, "current": name == current} for name, item in sorted(found.known.items())
    ]
    show(
        items,
        output,
        listed({"": lambda item: "*" if item["current"] else "", "name": "name", "server": "server"}, items),
    )


@context.command("use")
def use_context(name: ContextName) -> None:
    """Make a context the current one."""
    write_contexts(read_contexts().used(name))
    typer.echo(f"using {name}")


@context.command("remove")
def remove_context(name: ContextName) -> None:
    """Forget a context and its token; the token itself stays good."""
    write_contexts(read_contexts().removed(name))
    typer.echo(f"forgot {name}")


# --- Webhooks


webhook = typer.Typer(help="Who is told of what happens; declare them with apply -f.", no_args_is_help=True)
_WEBHOOKS: Mapping[str, Cell] = {
    **{name: name for name in ("name", "url", "project", "enabled")},
    "events": lambda item: ", ".join(item["events"]),
}
_DELIVERIES: Mapping[str, Cell] = {
    **{name: name for name in ("id", "state", "attempts", "created_at", "status", "error")},
    "event": "event_id",
}


@webhook.command("list")
def list_webhooks(output: Output = Format.TABLE, server: Server = None, token: Token = None) -> None:
    """List webhooks."""
    with connect(server, token) as client:
        items = list(client.items("webhooks"))
    show(items, output, listed(_WEBHOOKS, items))


@webhook.command("deliveries")
def list_deliveries(
    name: Annotated[str, typer.Argument(help="The webhook.")],
    *,
    last: Annotated[int, typer.Option("-n", "--last", help="So many, the newest first.", min=1, max=COUNT_MAX)] = 50,
    output: Output = Format.TABLE,
    server: Server = None,
    token: Token = None,
) -> None:
    """List what a webhook was told, what waits, and why."""
    with connect(server, token) as client:
        items = list(islice(client.items(f"webhooks/{quote(name, safe='')}/deliveries", limit=min(last, 500)), last))
    show(items, output, listed(_DELIVERIES, items))
