"""The tasks, workflows and schedules that this process has defined, by name.

A name that two different functions have is ambiguous: looking it up raises and names both places.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from perdure.core.errors import InvalidInput, NotRegistered


class Registry:
    """Definitions of one kind ('task' or 'workflow')."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._by_name: dict[str, Any] = {}
        self._ambiguous: dict[str, Any] = {}

    def add(self, definition: Any) -> None:
        """Register a definition. The same function defined again (a reload, a nested definition) replaces it; another function makes the name ambiguous."""
        known = self._by_name.get(definition.name)
        if known is not None and _place(known) != _place(definition):
            self._ambiguous[definition.name] = known
        self._by_name[definition.name] = definition

    def adopt(self, definition: Any) -> None:
        """Use this definition for its name from now on, also where the name was ambiguous."""
        self._by_name[definition.name] = definition
        self._ambiguous.pop(definition.name, None)

    def get(self, name: str) -> Any:
        """The definition of that name. Raises NotRegistered if there is none, or more than one."""
        if name in self._ambiguous:
            raise NotRegistered(self._conflict(name))
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(sorted(self._by_name)[:10]) or "none"
            raise NotRegistered(
                f"no {self.kind} {name!r} is defined in this process (known: {known}); import the module that defines it"
            ) from None

    def conflicts(self) -> dict[str, str]:
        """Names that two functions have, and what to do about each."""
        return {name: self._conflict(name) for name in self._ambiguous}

    def _conflict(self, name: str) -> str:
        a, b = _place(self._ambiguous[name]), _place(self._by_name[name])
        return f"two {self.kind}s are called {name!r}: {a} and {b}; give one of them another name="

    def names(self) -> list[str]:
        return [n for n in self._by_name if n not in self._ambiguous]

    def values(self) -> list[Any]:
        return [self._by_name[n] for n in self.names()]

    def copy(self) -> Registry:
        copied = Registry(self.kind)
        copied._by_name, copied._ambiguous = dict(self._by_name), dict(self._ambiguous)
        return copied


tasks = Registry("task")
workflows = Registry("workflow")
schedules: WeakSet[Any] = WeakSet()
"""Those that a variable of the program still holds."""


def schedules_by_name() -> list[Any]:
    """Raises InvalidInput if two schedules have one name."""
    found: dict[str, Any] = {}
    for one in schedules:
        if found.setdefault(one.name, one) is not one:
            raise InvalidInput(f"two schedules are called {one.name!r}; give one of them another name")
    return [found[name] for name in sorted(found)]


def add(definition: Any) -> None:
    (tasks if hasattr(type(definition), "effective") else workflows).add(definition)


def _place(definition: Any) -> str:
    code = definition.fn.__code__
    return f"{definition.fn.__module__}.{definition.fn.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
