"""Planners from a user's own file: `path/to/file.py:ClassName`.

Such a class can run wherever planners of Headroom run. What is imported is the text of one file, so a worker process,
here or elsewhere, loads it again from its path or from the text alone. It gets a private name made of both and can
shadow nothing, and an edited file is another module. A class that does not keep the contract of
`solvers.planners.base` is refused, saying what is missing.
"""

from __future__ import annotations

import faulthandler
import hashlib
import inspect
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from multiprocessing import parent_process
from pathlib import Path
from threading import current_thread, main_thread
from types import ModuleType
from typing import cast

from solvers.domain.value import check_name
from solvers.errors import FieldError, InputError, NotFoundError
from solvers.planners import registry
from solvers.planners.base import Planner, PlannerSpec
from solvers.planners.tuning import Scalar

SUFFIX = ".py"
LOAD_S = 60.0
"""To run a file and to make a planner, with whatever it imports."""
DEAF_TIMES, DEAF_S = 1.1, 2.0
"""So many times the limit and so much more a worker whose planner hears no signal may go on."""
_ARGUMENTS = {"first_state": 0, "propose": 3}
"""What each method of the contract is called with."""


def is_own(name: str) -> bool:
    return name.rpartition(":")[0].endswith(SUFFIX)


def create(name: str, settings: Mapping[str, Scalar] | None = None) -> Planner:
    """A planner by name, Headroom's or one's own. Raises as `registry.create` and `load_planner` do."""
    if not is_own(name):
        return registry.create(name, settings)
    return registry.with_settings(load_planner(name), settings or {})


def called(name: str) -> str:
    """What a planner calls itself. Raises as `create` does."""
    return load_planner(name).spec.name if is_own(name) else name


def load_planner(name: str) -> Planner:
    """A planner of one's own. Raises NotFoundError when there is no such file, InputError as `planner_from` does."""
    file, _, wanted = name.rpartition(":")
    return planner_from(source_of(file), str(Path(file).resolve()), wanted)


def source_of(file: str) -> str:
    """The text of a file with planners. Raises NotFoundError when it is missing, InputError when it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {file} to take a planner from", file=file) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}", file=file) from None


def planner_from(source: str, place: str, wanted: str) -> Planner:
    """The planner that a class in a file's text makes. `place`: where the file lies, for its name and for messages.
    Raises InputError when the text cannot be imported in time, or the class is missing or does not keep the contract.
    """
    try:
        with limited(LOAD_S, f"{place} takes more than {LOAD_S:g} s to load {wanted}"):
            return _loaded(source, place, wanted)
    except TooLongError as error:
        raise InputError(str(error)) from None


class TooLongError(BaseException):
    """Beyond what somebody's planner can catch by accident."""


@contextmanager
def limited(limit_s: float, said: str) -> Iterator[None]:
    """Ends what takes longer on the clock, saying so, where signals can (the main thread of a process); and a worker
    with it, if it hears none: in long native code, or since it caught or ignores them. Raises TooLongError.
    """
    if current_thread() is not main_thread():
        yield
        return

    def over(_number: int, _frame: object) -> None:
        raise TooLongError(said)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        if parent_process() is not None:
            faulthandler.dump_traceback_later(DEAF_TIMES * limit_s + DEAF_S, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


def _loaded(source: str, place: str, wanted: str) -> Planner:
    module = _imported(source, place)
    kind = getattr(module, wanted, None)
    if not inspect.isclass(kind) or kind.__module__ != module.__name__:
        listed = ", ".join(_classes(module)) or "none"
        raise InputError(f"{place} has no class {wanted}; it has {listed}")
    try:
        planner: object = kind()
    except Exception as error:
        raise InputError(f"{wanted} cannot be made without arguments: {type(error).__name__}: {error}") from error
    _check(planner, wanted)
    return cast("Planner", planner)


def _imported(source: str, place: str) -> ModuleType:
    name = "headroom_own_" + hashlib.sha256(f"{place}\n{source}".encode()).hexdigest()[:16]
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = place
    # Dataclasses and pickles look their module up by name while the file still runs.
    sys.modules[name] = module
    try:
        with redirect_stdout(sys.stderr):  # what it prints is no part of an answer that programs read
            exec(compile(source, place, "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(f"{place} cannot be imported{_line(error, place)}: {type(error).__name__}: {error}") from error
    return module


def _line(error: BaseException, place: str) -> str:
    at = error.lineno if isinstance(error, SyntaxError) else None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == place:
            at = step.tb_lineno
        step = step.tb_next
    return "" if at is None else f" (line {at})"


def _classes(module: ModuleType) -> list[str]:
    mine = inspect.getmembers(module, lambda item: inspect.isclass(item) and item.__module__ == module.__name__)
    return [name for name, _ in mine if not name.startswith("_")]


def _check(planner: object, name: str) -> None:
    spec = getattr(planner, "spec", None)
    if not isinstance(spec, PlannerSpec):
        raise InputError(f"{name} has no spec; it must be a PlannerSpec (see docs/reference/own-policy.md)")
    try:
        check_name("name", spec.name)
    except FieldError as error:
        raise InputError(f"{name}: its spec's {error.message}") from error
    if spec.name in registry.names():
        raise InputError(f"{name} calls itself {spec.name}, which is a planner of Headroom; give it another name")
    for method, count in _ARGUMENTS.items():
        found = getattr(planner, method, None)
        if not callable(found):
            raise InputError(f"{name} has no method {method} (see docs/reference/own-policy.md)")
        try:
            inspect.signature(found).bind(*[None] * count)
        except TypeError as error:
            raise InputError(f"{name}: {method} must take {count} arguments: {error}") from error
    if not isinstance(cast("Planner", planner).first_state(), bytes):
        raise InputError(f"{name}: first_state must return bytes")
