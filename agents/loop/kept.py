"""What the state directory has to hold though its disk may be full for a while."""

from __future__ import annotations

from agents.errors import StateFileError
from agents.log import Log
from agents.state import StateDirectory


class KeptText:
    """A file of the state directory that is written again until the disk has taken it."""

    def __init__(self, state: StateDirectory, name: str, log: Log, subject: str) -> None:
        """`subject`: what it is called in the log."""
        self._state, self._name, self._log, self._subject = state, name, log, subject
        self._text: str | None = None
        """What the file does not hold yet."""

    def keep(self, text: str) -> None:
        self._text = text
        self._write(again=False)

    def again(self) -> None:
        """Try once more, where it is not kept yet."""
        if self._text is not None:
            self._write(again=True)

    def _write(self, *, again: bool) -> None:
        try:
            self._state.write_text(self._name, self._text or "")
        except StateFileError as error:
            self._log.state(self._subject, "not_kept", reason=str(error))
        else:
            self._text = None
            if again:
                self._log.state(self._subject, "kept")
