"""Around a node of a graph: params, what goes in (`prep`), what comes out and under which action (`post`)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core import expressions
from perdure.core.expressions import Expr, ExprError
from perdure.core.expressions.template import Template
from perdure.flows.compile.nodes import WRITES_MAX
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.compile.verbs import NodeView
from perdure.flows.model import Choice, Write
from perdure.flows.problems import Path

PREPOST_KEYS: Final = ("params", "prep", "post", "default_action")
PREP_KEYS: Final = ("input_key", "input_map")
POST_KEYS: Final = ("output_key", "output_map", "action_static", "action_key")


class Exits(msgspec.Struct, frozen=True):
    """What becomes of a node's result."""

    writes: tuple[Write, ...] = ()
    action: str | None = None
    action_of: Template | None = None
    default: str | None = None
    """`default_action` of a node that chooses by itself."""


def read_params(r: Reader, view: NodeView, scope: Scope) -> Template | None:
    value = view.fields.get("params")
    if value is None or value == {}:
        return None
    if r.mapping(value, view.at("params"), f"params of {view.where}") is None:
        return None
    return r.template(value, view.at("params"), scope)


def read_prepare(r: Reader, view: NodeView, scope: Scope) -> Template | None:
    path = view.at("prep")
    fields = _filled(r, view, "prep", PREP_KEYS)
    if "input_key" in fields and "input_map" in fields:
        r.error((*path, "input_map"), f"prep of {view.where} has input_key and input_map", "keep one of them", key=True)
    elif "input_key" in fields:
        read = read_path(r, fields["input_key"], (*path, "input_key"), "input_key", "shared", scope)
        return None if read is None else Template.of(read)
    elif "input_map" in fields:
        at = (*path, "input_map")
        out: dict[str, str] = {}
        for key, value in (r.mapping(fields["input_map"], at, "input_map") or {}).items():
            read = read_path(r, value, (*at, key), "a path of input_map", "shared", scope)
            if read is not None:
                out[key] = f"${{ {expressions.to_text(read)} }}"
        return r.template(out, at, scope)
    return None


def read_exits(r: Reader, view: NodeView, scope: Scope, *, chooses: bool) -> Exits:
    """`chooses`: the node has an action of its own, and default_action is not the node's but its verb's."""
    fields = _filled(r, view, "post", POST_KEYS)
    path = view.at("post")
    writes = _writes(r, fields, path, scope)
    default: str | None = None
    if view.fields.get("default_action") not in (None, ""):
        default = r.name_of(view.fields["default_action"], view.at("default_action"), "default_action")
    if "action_static" in fields:
        if "action_key" in fields:
            r.warn((*path, "action_key"), "action_key has no effect beside action_static", key=True)
        action = r.name_of(fields["action_static"], (*path, "action_static"), "action_static")
        return Exits(writes, action, None, default)
    if "action_key" in fields:
        read = read_path(r, fields["action_key"], (*path, "action_key"), "action_key", "output", scope.plus("output"))
        if read is not None and default is not None and not chooses:
            read = _joined(r, (*path, "action_key"), f"({expressions.to_text(read)}) ?? {quoted(default)}")
        return Exits(writes, None, None if read is None else Template.of(read), default)
    return Exits(writes, None if chooses else default, None, default)


def settle_choice(r: Reader, view: NodeView, choice: Choice, exits: Exits) -> tuple[Choice, Exits]:
    """A case that holds goes before post.action_*, which go before default_action."""
    otherwise = next((a for a in (choice.otherwise, exits.action, exits.default) if a is not None), None)
    choice = msgspec.structs.replace(choice, otherwise=otherwise)
    action_of = None if exits.action_of is None else _first(r, view, choice, exits.action_of.exprs[0])
    return choice, msgspec.structs.replace(exits, action=None, action_of=action_of)


def _first(r: Reader, view: NodeView, choice: Choice, fallback: Expr) -> Template | None:
    """One expression for the action: the first case that holds, or else what the result says, or else the last resort."""
    text = expressions.to_text(fallback)
    if choice.otherwise is not None:
        text = f"({text}) ?? {quoted(choice.otherwise)}"
    for case, action in reversed(choice.cases):
        text = f"({expressions.to_text(case)}) ? {quoted(action)} : ({text})"
    read = _joined(r, view.at("post", "action_key"), text)
    return None if read is None else Template.of(read)


def _joined(r: Reader, path: Path, text: str) -> Expr | None:
    """Expressions that are right on their own may be too much together."""
    try:
        return expressions.parse(text)
    except ExprError as e:
        r.error(path, f"action_key together with what else may name the action: {e.message}")
        return None


def quoted(text: str) -> str:
    """As a literal of the expression language."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _filled(r: Reader, view: NodeView, key: str, known: tuple[str, ...]) -> dict[str, Any]:
    """The fields of prep or post that say something; programs write the others as null or empty."""
    value = view.fields.get(key)
    if value is None:
        return {}
    fields = r.mapping(value, view.at(key), f"{key} of {view.where}") or {}
    r.keys(fields, view.at(key), f"{key} of {view.where}", known)
    return {k: v for k, v in fields.items() if k in known and v is not None and v != ({} if k.endswith("_map") else "")}


def _writes(r: Reader, fields: dict[str, Any], path: Path, scope: Scope) -> tuple[Write, ...]:
    inner = scope.plus("output")
    out: list[Write] = []
    if "output_key" in fields:
        to = r.dotted(_shared(fields["output_key"]), (*path, "output_key"), "output_key")
        if to is not None:
            out.append(Write(to=to, value=Template.of(expressions.parse("output"))))
    if "output_map" in fields:
        at = (*path, "output_map")
        entries = r.mapping(fields["output_map"], at, "output_map") or {}
        if len(entries) > WRITES_MAX:
            r.error(at, f"output_map has more than WRITES_MAX={WRITES_MAX} entries")
            return ()
        for key, value in entries.items():
            to = r.dotted(_shared(key), (*at, key), "a key of output_map", key=True)
            read = read_path(r, value, (*at, key), "a path of output_map", "output", inner)
            if to is not None and read is not None:
                out.append(Write(to=to, value=Template.of(read)))
    return tuple(out)


def _shared(path: Any) -> Any:
    return path.removeprefix("$shared.") if isinstance(path, str) else path


def read_path(r: Reader, value: Any, path: Path, what: str, root: str, scope: Scope) -> Expr | None:
    """`$params.a.b`, or `a.b` below `root`."""
    text = r.text(value, path, what)
    if text is None:
        return None
    try:
        read = expressions.parse_path(text, root)
    except ExprError as e:
        r.error(path, f"{what}: {e.message}", offset=e.offset)
        return None
    for name in sorted(read.roots):
        if name not in scope:
            message, hint = scope.refusal(name)
            r.error(path, message, hint)
            return None
    return read
