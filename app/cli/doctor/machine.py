"""What is asked of the machine itself: Python, solvers, the home folder, its disk, the port and open files."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from app.cli.doctor.checks import Check, Symptom, odd, unseen, well, wrong
from app.settings import DESCRIPTORS_SPARE, Settings
from solvers.version import VERSION

PYTHON_LEAST = (3, 11)
DISK_GIB_LEAST, DISK_GIB_ENOUGH = 1.0, 10.0
ANSWER_S = 3.0
SECRETS = ("*.token", "client.json", "state.json", "authority.pem")


def machine_checks(settings: Settings, *, serves: bool) -> list[Check]:
    """`serves`: whether a control plane is looked for here, not only an agent."""
    always = [
        Check("python", _python),
        Check("home", lambda: _home(settings.home), "let this user own the home folder"),
        Check("disk", lambda: _disk(settings.home)),
    ]
    more = [
        Check("solvers", _solvers, "install headroom-gpu[server] anew from its locks"),
        Check("port", lambda: _port(settings), "choose another with HEADROOM_PORT"),
        Check("open files", lambda: _descriptors(settings)),
    ]
    return always + more if serves else always


def _python() -> Symptom:
    told = f"Python {platform.python_version()}, headroom {VERSION}"
    return well(told) if sys.version_info[:2] >= PYTHON_LEAST else wrong(told, "install Python 3.11 or newer")


def _solvers() -> Symptom:
    """Every library of solvers solves something small; nothing is compiled here."""
    import numpy as np

    from solvers.engines import base, compiled

    rows = base.ProgrammeRows()
    column = rows.add_columns(np.array([1.0]), np.array([5.0]))
    rows.enter(rows.add_rows(np.array([2.0]), np.array([np.inf])), column, 1.0)
    program = rows.program()
    answers = {name: base.create(name).solve(program, base.Limits(time_s=5.0)) for name in base.names()}
    silent = [f"{name} ({answer.note})" for name, answer in answers.items() if answer.objective != 2.0]
    missing = [source.name for source in compiled.sources() if not compiled.place(source).exists()]
    if missing:
        return wrong(f"not compiled: {', '.join(missing)}", "install gcc and libc6-dev, then headroom anew")
    loaded = {source.stem: compiled.loaded(source.stem) for source in compiled.sources()}
    if silent:
        return wrong(f"no answer from {', '.join(silent)}", "install headroom-gpu[server] anew from its locks")
    return well(f"{', '.join(answers)} solve; {', '.join(loaded)} load")


def _home(home: Path) -> Symptom:
    if not home.exists():
        return unseen(f"{home} is not there", "`headroom up` makes it; other deployments need none")
    if not home.is_dir():
        return wrong(f"{home} is not a folder", "name one with HEADROOM_HOME")
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return wrong(
            f"{home} cannot be written to by this user", "let this user own it, or name another with HEADROOM_HOME"
        )
    # Under root the embedded server's user has to pass: 0711.
    open_to_all = [home] if stat.S_IMODE(home.stat().st_mode) & 0o066 else []
    for secret in (found for pattern in SECRETS for found in home.glob(pattern)):
        open_to_all += [secret] if stat.S_IMODE(secret.stat().st_mode) & 0o077 else []
    if open_to_all:
        names = " ".join(map(str, open_to_all))
        return wrong(f"others may read or write: {names}", f"chmod go-rw {names}")
    return well(f"{home} is its user's alone")


def _disk(home: Path) -> Symptom:
    place = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    usage = shutil.disk_usage(place)
    free_gib = usage.free / 2**30
    told = f"{free_gib:.1f} of {usage.total / 2**30:.1f} GiB are free at {place}"
    if free_gib < DISK_GIB_LEAST:
        return wrong(told, "make room: without it the database stops")
    if free_gib < DISK_GIB_ENOUGH:
        return odd(told, "make room, or bound what is kept (HEADROOM_RETENTION_RAW_BYTES)")
    return well(told)


def _port(settings: Settings) -> Symptom:
    from app.demo.supervisor import check_port
    from solvers.errors import StateError

    settings = _standing(settings)
    place = f"{settings.host}:{settings.port}"
    try:
        check_port(settings.host, settings.port)
    except StateError as error:
        # First as it is expected to speak: it notes whatever it does not understand as a fault.
        schemes = ("https", "http") if settings.tls else ("http", "https")
        spoken = next((scheme for scheme in schemes if _is_api(settings, scheme)), None)
        if spoken is None:
            return wrong(error.message, "end what listens there, or choose another port with HEADROOM_PORT")
        if settings.tls and spoken == "http":
            return wrong(
                f"the API has {place}, without TLS, though HEADROOM_TLS is set here", "set it for the API, too"
            )
        return well(f"the API has {place}{', over TLS' if spoken == 'https' else ''}")
    return well(f"{place} is free")


def _standing(settings: Settings) -> Settings:
    """With the address of the `headroom up` that stands in this home: `--port` and `--host` are its alone."""
    from app.demo.home import Home

    state = Home(settings.home).read_state() if settings.home.is_dir() else None
    at = urlsplit(state.address) if state is not None else None
    return replace(settings, host=at.hostname, port=at.port) if at and at.hostname and at.port else settings


def _is_api(settings: Settings, scheme: str) -> bool:
    """Whether one answers there that speaks so. Nothing is told to it, so that its certificate is not looked at: whom
    this user believes is asked by the look at the API.
    """
    import httpx

    from app.demo.rooms import address_of

    try:
        health = f"{address_of(settings, scheme)}/v1/health"
        answer = httpx.get(health, verify=False, trust_env=False, timeout=ANSWER_S)  # noqa: S501 - as said above
        return bool(answer.json() == {"status": "ok"})
    except (httpx.HTTPError, ValueError):
        return False


def _descriptors(settings: Settings) -> Symptom:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = settings.connections_max + DESCRIPTORS_SPARE
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return well(f"{'any number' if hard == resource.RLIM_INFINITY else hard} may be open, {wanted} are wanted")
    told = f"{hard} may be open; HEADROOM_CONNECTIONS_MAX={settings.connections_max} wants {wanted}"
    return odd(told, "raise the hard limit (ulimit -Hn, LimitNOFILE=), or set fewer connections")
