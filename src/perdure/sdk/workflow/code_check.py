"""Reads a workflow's bytecode for calls that no run-time guard can see.

`datetime.now` belongs to a C type and cannot be replaced; `from time import time` may have bound the real function
before the guards were installed. Both are found by resolving what each call instruction calls.

Only what is certain is reported: a name is followed through globals, closure cells, imports inside the function and the
attributes of modules and classes, never through instances, other locals or results. Only what is *called* counts, not
what is passed on: in `wf.run("now", datetime.now)` or `wf.run("roll", lambda: random())` the call is recorded, which
is right.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from perdure.core.errors import InvalidInput, WorkflowRuleBroken
from perdure.sdk.workflow.forbidden import forbidden_call

_UNKNOWN: Final[Any] = object()
_ATTR_PUSHES_SELF = sys.version_info >= (3, 12)
"""Since 3.12 LOAD_ATTR says in its lowest bit whether a call follows; before, LOAD_METHOD did."""
_INLINE = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_NULL_AFTER_CALLEE = sys.version_info >= (3, 13)
"""A NULL on the stack marks what is going to be called. It is pushed before the callee until 3.12, after it since."""


class _Call(NamedTuple):
    line: int
    local: str
    """The name, if it is a local one; else empty."""
    target: Any


_NO_CHAIN: Final = _Call(0, "", _UNKNOWN)


class ForbiddenCall(NamedTuple):
    """A call in workflow code that a replay would answer differently."""

    name: str
    fix: str
    file: str
    line: int
    function: str


def check_code(fn: Callable[..., Any]) -> None:
    """Raise if calling this workflow function would break a rule. Meant to run once, before its first run."""
    for call in forbidden_calls(fn):
        raise WorkflowRuleBroken(
            f"workflow code calls {call.name} at {call.file}:{call.line} in {call.function}. A replay "
            f"would get another answer and the run could not be resumed. Instead, {call.fix}."
        )


def forbidden_calls(fn: Callable[..., Any]) -> Iterator[ForbiddenCall]:
    """Every forbidden call of a workflow function and of the functions of its module that it calls. InvalidInput for a generator."""
    function: Any = inspect.unwrap(fn)
    function = getattr(function, "__func__", function)
    _require_plain(function)
    if not isinstance(function, FunctionType):
        return
    helpers: dict[FunctionType, None] = {}
    for code, call in _calls_of(function):
        if (found := _forbidden(code, call)) is not None:
            yield found
        helper = call.target
        if isinstance(helper, FunctionType) and helper.__module__ == function.__module__ and helper is not function:
            helpers[helper] = None
    for helper in helpers:  # one level: deeper helpers are the run-time guards' business
        for code, call in _calls_of(helper):
            if (found := _forbidden(code, call)) is not None:
                yield found


def _require_plain(fn: Any) -> None:
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise InvalidInput(
            f"workflow {fn.__qualname__}() is a generator: it has a `yield`. A workflow is an `async def` that "
            "awaits and returns one value. To publish values on the way, set a State or send a signal; to wait, await."
        )


def _forbidden(code: CodeType, call: _Call) -> ForbiddenCall | None:
    found = None if call.target is _UNKNOWN else forbidden_call(call.target)
    return ForbiddenCall(*found, code.co_filename, call.line, code.co_qualname) if found else None


def _calls_of(fn: FunctionType) -> Iterator[tuple[CodeType, _Call]]:
    """Calls in a function and in those nested functions that it calls itself."""
    scope = _closure(fn)
    waiting, called, postponed = [fn.__code__], set[str](), list[CodeType]()
    while waiting:
        code = waiting.pop()
        for call in _calls_in(code, fn.__globals__, scope):
            called.add(call.local)
            yield code, call
        postponed += [const for const in code.co_consts if isinstance(const, CodeType)]
        reached = [c for c in postponed if c.co_name in _INLINE or c.co_name in called]
        postponed = [c for c in postponed if c not in reached]
        waiting += reached


def _closure(fn: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    return found


def _calls_in(code: CodeType, scope: Mapping[str, Any], cells: Mapping[str, Any]) -> Iterator[_Call]:
    """Follow each chain of loads, such as `dt` `.datetime` `.now`, to its end and report it if the end is called."""
    names = {**_local_imports(code), **{name: cells[name] for name in code.co_freevars if name in cells}}
    chain, line, called, after_null = _NO_CHAIN, code.co_firstlineno, False, False
    for step in dis.get_instructions(code):
        line, op = _line(step) or line, step.opname
        if op in ("EXTENDED_ARG", "CACHE"):
            continue
        if op in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = _Call(line, "", _attribute(chain.target, step.argval))
            called = called or op == "LOAD_METHOD" or (_ATTR_PUSHES_SELF and _lowest_bit(step))
            continue
        if called or (op == "PUSH_NULL" and _NULL_AFTER_CALLEE and chain is not _NO_CHAIN):
            yield chain
        called = after_null and not _NULL_AFTER_CALLEE
        if op == "LOAD_GLOBAL":
            chain = _Call(line, "", scope.get(step.argval, getattr(builtins, step.argval, _UNKNOWN)))
            called = called or _lowest_bit(step)
        elif op.startswith(("LOAD_FAST", "LOAD_DEREF")) and isinstance(step.argval, str):
            chain = _Call(line, step.argval, names.get(step.argval, _UNKNOWN))
        else:
            chain, called = _NO_CHAIN, False
        after_null = op == "PUSH_NULL"


def _lowest_bit(step: dis.Instruction) -> bool:
    return bool((step.arg or 0) & 1)


def _line(step: dis.Instruction) -> int | None:
    number = getattr(step, "line_number", _UNKNOWN)  # 3.13
    if number is _UNKNOWN:
        number = step.starts_line
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a module or a class. Instances are not asked: reading an attribute of theirs may run code."""
    if isinstance(owner, ModuleType):
        return vars(owner).get(name, _UNKNOWN)
    if isinstance(owner, type):
        return getattr(owner, name, _UNKNOWN)
    return _UNKNOWN


def _local_imports(code: CodeType) -> dict[str, Any]:
    """Names bound by imports inside the function, if the module is loaded and nothing else is stored to the name."""
    found: dict[str, Any] = {}
    spoilt: set[str] = set()
    module, value = _UNKNOWN, _UNKNOWN
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = sys.modules.get(step.argval, _UNKNOWN)
            value = sys.modules.get(step.argval.partition(".")[0], _UNKNOWN)
        elif step.opname == "IMPORT_FROM":
            value = _attribute(module, step.argval)
        elif step.opname in ("STORE_FAST", "STORE_DEREF"):
            if value is _UNKNOWN or step.argval in found:
                spoilt.add(step.argval)
            found[step.argval], value = value, _UNKNOWN
        elif step.opname not in ("EXTENDED_ARG", "CACHE"):
            value = _UNKNOWN
    return {name: value for name, value in found.items() if name not in spoilt}
