"""Whether the code of a workflow makes signals, promises, updates, approvals or named events while it runs, so that their names are not known before.

Code objects are searched for names of these classes: that of the workflow, and of the functions, classes and objects that it names, as far
as their packages use Perdure at all. Nothing is called. In doubt the answer is yes: then unknown names are accepted.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from perdure.sdk.approvals import Approval
from perdure.sdk.messages import NamedEvent, Promise, Signal
from perdure.sdk.updates import Update

CLASSES: Final = (Signal, Promise, Update, Approval, NamedEvent)
FUNCTIONS_MAX: Final = 2_000
"""Functions that are searched; code that reaches more may do anything."""
_OWN: Final = "perdure"


class _NotLoaded(Exception):
    """The code imports a module that is not loaded yet."""


def makes_messages(fn: Callable[..., Any]) -> bool:
    waiting: list[Any] = [fn]
    seen = set[int]()
    uses = dict[str, bool]()
    searched = 0
    try:
        while waiting:
            one = waiting.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, type) and issubclass(one, CLASSES):
                return True
            function = _function(one)
            if function is None:
                waiting.extend(_members(one, uses))
            elif one is fn or _uses_perdure(function.__module__, uses):
                searched += 1
                if searched > FUNCTIONS_MAX:
                    return True
                waiting.extend(_named_in(function))
    except _NotLoaded:
        return True
    return False


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


def _members(value: Any, uses: dict[str, bool]) -> list[Any]:
    """What calls of a class, or of an object's methods, may execute."""
    kind: type = value if isinstance(value, type) else type(value)
    if isinstance(value, ModuleType) or not _uses_perdure(kind.__module__, uses):
        return []
    return [member for base in kind.__mro__ if base is not object for member in vars(base).values()]


def _uses_perdure(module: str | None, uses: dict[str, bool]) -> bool:
    """Whether any module of this top-level package names something of Perdure. Perdure itself and the standard library do not count."""
    top = (module or "").partition(".")[0]
    found = uses.get(top)
    if found is None:
        found = top not in ("", "builtins", _OWN) and top not in sys.stdlib_module_names
        found = uses[top] = found and any(map(_names_perdure, _modules_of(top)))
    return found


def _modules_of(top: str) -> list[ModuleType]:
    return [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == top and isinstance(m, ModuleType)]


def _names_perdure(module: ModuleType) -> bool:
    return any(_is_own(value) for value in list(vars(module).values()))


def _is_own(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
    if isinstance(value, (type, FunctionType)):
        home = value.__module__
    return isinstance(home, str) and home.partition(".")[0] == _OWN


def _named_in(function: FunctionType) -> Iterator[Any]:
    """What the code names: globals, what its closure holds, and attributes of the modules among them."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    yield from filter(None, (inspect.unwrap(function),))
    for code in _codes(function.__code__):
        found: list[Any] = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        found += _imported(code)
        modules, met = [value for value in found if isinstance(value, ModuleType)], set[int]()
        while modules:
            module = modules.pop()
            if id(module) in met:
                continue
            met.add(id(module))
            inner = [vars(module)[name] for name in code.co_names if name in vars(module)]
            found += inner
            modules += [value for value in inner if isinstance(value, ModuleType)]
        yield from found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _imported(code: CodeType) -> list[Any]:
    found: list[Any] = []
    module: ModuleType | None = None
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = sys.modules.get(step.argval)
            if module is None:  # also one that is named from where the code stands
                raise _NotLoaded
            found += [module, sys.modules[step.argval.partition(".")[0]]]
        elif step.opname == "IMPORT_FROM":
            if step.argval not in vars(module):
                raise _NotLoaded
            found.append(vars(module)[step.argval])
    return found
