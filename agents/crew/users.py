"""Users of their own for the processes of each project, so that the host itself keeps projects apart.

A project's user is whoever owns its home directory, and nothing else says so: the directory and everything it protects
come and go together, and a number is free for another project only when the home is gone. Where a project's search for
a number begins is derived from its name, so that a lost folder of homes mostly gives everybody the same number again.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.config import NAME, WORKER_UIDS, WorkerRules
from agents.errors import NotSupportedError, WorkerError

ALONE = (
    "this agent would run it as its own user, who can read the node's token: run the agent as root, so that projects"
    " have users of their own, list the programs that workers may be (--executables), or say --workers-as-agent"
)


@dataclass(frozen=True, slots=True)
class WorkerUser:
    uid: int
    """Also the number of its group, which has no other members."""
    home: Path
    project: str

    @property
    def environment(self) -> dict[str, str]:
        """What stands for the user; some programs ask nobody else."""
        name = f"headroom-{self.project}"
        return {"HOME": str(self.home), "TMPDIR": str(self.home), "USER": name, "LOGNAME": name}


class ProjectUsers:
    """The users of a folder of homes. Several processes may use the same one."""

    def __init__(self, homes: Path, uids: range) -> None:
        self._homes, self._uids = homes, uids

    def of(self, project: str) -> WorkerUser:
        """A project's user, who may be new. Raises WorkerError, NotSupportedError for what is no project's name."""
        if not NAME.fullmatch(project):
            raise NotSupportedError(f"{project[:80]!r} is no name of a project")
        home = self._homes / project
        try:
            with self._locked():
                return WorkerUser(self._owner(home) or self._given(home), home, project)
        except OSError as error:
            raise WorkerError(f"no user for project {project}: {home}: {error.strerror}") from error

    def _owner(self, home: Path) -> int | None:
        """Whose home it is; None where there is none yet, or where whoever made it died before it was given away."""
        try:
            found = home.lstat()
        except FileNotFoundError:
            return None
        if found.st_uid == os.geteuid():
            return None
        if found.st_uid not in self._uids or found.st_gid != found.st_uid or not stat.S_ISDIR(found.st_mode):
            raise WorkerError(f"{home} belongs to user {found.st_uid}, who is none of --worker-uids")
        return found.st_uid

    def _given(self, home: Path) -> int:
        taken = {entry.stat(follow_symlinks=False).st_uid for entry in os.scandir(self._homes)}
        start = int.from_bytes(hashlib.sha256(home.name.encode()).digest()[:8], "big") % len(self._uids)
        numbers = (self._uids[(start + step) % len(self._uids)] for step in range(len(self._uids)))
        uid = next((each for each in numbers if each not in taken and _unknown(each)), None)
        if uid is None:
            raise WorkerError(f"no user for project {home.name}: all of --worker-uids are taken")
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, uid, uid, follow_symlinks=False)
        return uid

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._homes.mkdir(mode=0o711, parents=True, exist_ok=True)
        folder = os.open(self._homes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise WorkerError(f"{self._homes} has to be this agent's, and writable by nobody else")
            os.fchmod(folder, 0o711)
            yield
        finally:
            os.close(folder)


def _unknown(uid: int) -> bool:
    """Whether neither a user nor a group of this host has this number."""
    with contextlib.suppress(KeyError):
        return not pwd.getpwuid(uid)
    with contextlib.suppress(KeyError):
        return not grp.getgrgid(uid)
    return True


def refusal_of(rules: WorkerRules, *, has_user: bool) -> str:
    """Why no program that a workload names is started here; empty where some are."""
    return "" if has_user or rules.workers_as_agent or rules.executables is not None else ALONE


def users_of(rules: WorkerRules) -> ProjectUsers | None:
    """The users that workers have here; None where they are the agent's own processes."""
    if rules.workers_as_agent or os.geteuid() != 0:
        return None
    return ProjectUsers(rules.worker_homes, rules.worker_uids or WORKER_UIDS)
