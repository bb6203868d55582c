"""Values of a worker's environment that its node alone knows: the control plane has where they are, and nothing more.

They are read whenever a worker starts, handed to its process, and kept nowhere. What may be read is for the host's
owner to say; where a reference leads elsewhere, the worker fails with a reason that names the reference and never what
is there.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from agents.config import WorkerRules
from agents.errors import NotSupportedError, WorkerError

SECRET_BYTES_MAX = 65_536
COMMAND_S = 5.0
"""So long other workers of the host wait meanwhile, at most."""


def of_variable(name: str, variable: str, project: str, rules: WorkerRules) -> str:
    """The agent's own variable. Raises NotSupportedError where it is not open to the project, WorkerError."""
    told = f"{name}: the agent's variable {variable}"
    if not {variable, f"{project}:{variable}"} & set(rules.secret_env):
        raise NotSupportedError(f"{told} is not open to project {project} (--secret-env)")
    return _text(os.environb.get(os.fsencode(variable)), told)


def of_file(name: str, path: str, project: str, rules: WorkerRules) -> str:
    """What a file holds, without the end of its last line. Raises NotSupportedError where it is not open to the
    project, WorkerError.
    """
    told = f"{name}: the file {path}"
    roots = tuple(os.path.realpath(each.replace("{project}", project)) + "/" for each in rules.secret_dirs)
    refusal = NotSupportedError(f"{told} is in no directory that is open to project {project} (--secret-dir)")
    if not os.path.realpath(path).startswith(roots):
        raise refusal
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK), "rb") as file:
            # Links may have changed since they were followed: what counts is what was opened.
            opened = Path(f"/proc/self/fd/{file.fileno()}").readlink()
            if not str(opened).startswith(roots) or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise refusal
            return _text(file.read(SECRET_BYTES_MAX + 1).removesuffix(b"\n"), told)
    except OSError as error:
        raise WorkerError(f"{told} cannot be read: {error.strerror}") from None


def of_command(name: str, asked: str, project: str, rules: WorkerRules) -> str:
    """What the owner's program answers when it is called with the project and what it is asked for, without the end of
    its last line. Raises NotSupportedError where there is none, WorkerError.
    """
    told = f"{name}: what the command answers to {asked}"
    if rules.secret_command is None:
        raise NotSupportedError(f"{told} is not open to project {project} (--secret-command)")
    try:
        done = subprocess.run(
            (rules.secret_command, project, asked),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"{told} took longer than {COMMAND_S:g} s") from None
    except subprocess.CalledProcessError as error:
        raise WorkerError(f"{told} is not to be had: it ended with status {error.returncode}") from None
    except OSError as error:
        raise WorkerError(f"{told} is not to be had: {error.strerror}") from None
    return _text(done.stdout.removesuffix(b"\n") or None, told)


def _text(content: bytes | None, told: str) -> str:
    if content is None or len(content) > SECRET_BYTES_MAX or b"\0" in content:
        raise WorkerError(f"{told} is missing, longer than {SECRET_BYTES_MAX} bytes or no text")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise WorkerError(f"{told} is no text") from None
