"""Which tasks and workflows this process has defined, by name.

A name that two different functions claim is not guessed at: looking it up raises and names both places.
"""

from __future__ import annotations

from typing import Any

from perdure.core.errors import NotRegistered


class Registry:
    """Definitions of one kind ('task' or 'workflow')."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._by_name: dict[str, Any] = {}
        self._rivals: dict[str, Any] = {}

    def add(self, definition: Any) -> None:
        """Defining the same function again (a reload, a nested definition) replaces it; another function under its name is a rival."""
        known = self._by_name.get(definition.name)
        if known is not None and _place(known) != _place(definition):
            self._rivals[definition.name] = known
        self._by_name[definition.name] = definition

    def adopt(self, definition: Any) -> None:
        """An explicit choice: this one is meant by its name from now on."""
        self._by_name[definition.name] = definition
        self._rivals.pop(definition.name, None)

    def get(self, name: str) -> Any:
        if name in self._rivals:
            a, b = _place(self._rivals[name]), _place(self._by_name[name])
            raise NotRegistered(f"two {self.kind}s are called {name!r}: {a} and {b}; give one of them another name=")
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name)[:10]) or "none"
            raise NotRegistered(
                f"no {self.kind} {name!r} is defined in this process (known: {known}); import the module that defines it"
            ) from None

    def names(self) -> list[str]:
        return [n for n in self._by_name if n not in self._rivals]

    def values(self) -> list[Any]:
        return [self._by_name[n] for n in self.names()]

    def copy(self) -> Registry:
        twin = Registry(self.kind)
        twin._by_name, twin._rivals = dict(self._by_name), dict(self._rivals)
        return twin


tasks = Registry("task")
workflows = Registry("workflow")


def add(definition: Any) -> None:
    (workflows if hasattr(definition, "version") else tasks).add(definition)


def _place(definition: Any) -> str:
    code = definition.fn.__code__
    return f"{definition.fn.__module__}.{definition.fn.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
