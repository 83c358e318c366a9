"""The memory of a process that is simulated to die: plain values in the modules of tasks and workflows.

An engine and a worker that are abandoned in the middle of a test leave the modules as they are, and a task that keeps something in a global
variable would find it again, unlike after a crash. So plain values (numbers, texts, None, and lists, dicts, sets and deques of them) are
put back to what they were, in place, and caches of functools are cleared. Objects of other classes are left alone.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

ITEMS_MAX: Final = 10_000
"""Values in one variable; larger ones are left alone."""

_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes)
_MAPPINGS: Final = (dict, Counter, defaultdict, OrderedDict)
_CONTAINERS: Final = (list, tuple, set, frozenset, deque)


class ModuleMemory:
    """Of the modules that define these functions, as it is now."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._kept: dict[int, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {}
        for fn in functions:
            names = getattr(fn, "__globals__", None)
            if names is not None and id(names) not in self._kept:
                plain = {name: value for name, value in names.items() if _is_plain(name, value)}
                self._kept[id(names)] = names, plain, copy.deepcopy(plain)

    def restore(self, functions: Iterable[Any]) -> None:
        """In the modules of these functions."""
        for place in {id(getattr(fn, "__globals__", None)) for fn in functions}:
            if place in self._kept:
                _restore(*self._kept[place])


def _restore(names: dict[str, Any], objects: dict[str, Any], values: dict[str, Any]) -> None:
    for name in [n for n, value in names.items() if n not in values and _is_plain(n, value)]:
        del names[name]
    for name, value in values.items():
        names[name] = _refilled(objects[name], copy.deepcopy(value))
    for value in list(names.values()):
        if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
            value.cache_clear()


def _refilled(old: Any, value: Any) -> Any:
    """The same object with its old content: other modules may have imported it."""
    if type(old) in _MAPPINGS or type(old) is set:
        old.clear()
        old.update(value)
    elif type(old) is list or type(old) is deque:
        old.clear()
        old.extend(value)
    else:
        return value
    return old


def _is_plain(name: str, value: Any) -> bool:
    return not name.startswith("__") and _count(value, ITEMS_MAX) >= 0


def _count(value: Any, left: int) -> int:
    """How many values may still follow; negative: too many, or one that is not plain."""
    kind = type(value)
    if left < 0 or kind in _SCALARS:
        return left - 1
    if kind in _MAPPINGS:
        inside = [*value.keys(), *value.values()] if len(value) <= left else None
    elif kind in _CONTAINERS:
        inside = list(value) if len(value) <= left else None
    else:
        inside = None
    if inside is None:
        return -1
    for one in inside:
        left = _count(one, left)
        if left < 0:
            break
    return left - 1
