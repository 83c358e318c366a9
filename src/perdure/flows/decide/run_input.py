"""The input of a run of a flow: what it was called with, and whether it fits."""

from __future__ import annotations

from typing import Any

from perdure.core.json_schema import completed
from perdure.core.payloads import decode_tree, inside
from perdure.flows.model import Flow


def input_problem(flow: Flow, raw: bytes) -> str:
    """What is wrong with the input of a run, and what the flow takes; "" when it fits. Asked before a run is written."""
    data, offered = input_of(raw)
    _, wrong = completed(flow.input_schema, data, offered=offered)
    if not wrong:
        return ""
    schema = flow.input_schema or {}
    required = set(schema.get("required", ()))
    names = [f"{n}" if n in required else f"{n} (optional)" for n in schema.get("properties", {})]
    return f"{wrong}; {flow.name} takes {', '.join(names) or 'no input'}"


def input_of(raw: bytes) -> tuple[Any, bool]:
    """The input of a run: what it was called with, and whether that is an offer. A call with one argument by position is that argument."""
    data: Any = inside(decode_tree(raw)) if raw else {}
    if isinstance(data, dict) and len(data) == 1:
        if "**" in data and isinstance(data["**"], dict):
            return data["**"], True
        args = data.get("*")
        if isinstance(args, list):
            return (args[0] if len(args) == 1 else args), False
    return data, False
