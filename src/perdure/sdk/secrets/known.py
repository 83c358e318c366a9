"""The values that tasks of this process read. They are masked in output, errors, progress and traces.

One set for the process, not one for each attempt: what a task has read may appear in lines that belong to no attempt, such as those of a client
library that logs from a thread of its own.
"""

from __future__ import annotations

import threading
from typing import Final

from perdure.core.application_limits import SECRETS_KNOWN_MAX
from perdure.core.redaction import Redactor

REDACTORS_MAX: Final = 256
"""Sets of values whose forms are kept."""

CUT_CHARS_MIN: Final = 4
"""Characters at the end of an error that are masked if a value begins with them."""


class KnownSecrets:
    """Called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._of_values: dict[frozenset[tuple[str, str]], Redactor] = {}
        self.redactor = Redactor()
        """Of all of them. Replaced as a whole, so that readers need no lock."""

    def learn(self, name: str, value: str) -> None:
        with self._lock:
            before = self._names.pop(value, None)
            self._names[value] = name
            if before != name:
                if len(self._names) > SECRETS_KNOWN_MAX:
                    del self._names[next(iter(self._names))]
                self.redactor = Redactor(self._names)

    def redactor_of(self, values: dict[str, str]) -> Redactor:
        """Of some values; their names by value."""
        key = frozenset(values.items())
        found = self._of_values.get(key)
        if found is None:
            found = Redactor(values)
            with self._lock:
                if len(self._of_values) >= REDACTORS_MAX:
                    self._of_values.clear()
                self._of_values[key] = found
        return found


known: Final = KnownSecrets()


def redacted(text: str) -> str:
    """The text without the values of secrets."""
    redactor = known.redactor
    return text if redactor.is_empty else redactor.text(text)


def redacted_error(text: str) -> str:
    """The same for the text of an error, which may quote the beginning of something long: a value that is cut off at its end is masked too."""
    redactor = known.redactor
    if redactor.is_empty:
        return text
    text = redactor.text(text)
    said = text.rstrip()
    cut = redactor.unfinished(said)
    return text if cut < CUT_CHARS_MIN else f"{said[:-cut]}***{text[len(said) :]}"


def redacted_data(data: bytes) -> bytes:
    """The same for JSON."""
    redactor = known.redactor
    return data if redactor.is_empty or not data else redactor.data(data)
