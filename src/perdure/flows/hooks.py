"""Hooks of flows: `on_failure` and `on_success`, one node each, which runs after a run of the flow has ended.

A hook is a flow of its own, with the one node, that is deployed with the flow and is called `FLOW.on_failure`. Its runs get the ended run as
the input `run`. So a hook is retried, drawn, listed and limited as every flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

HOOKS: Final = {"on_failure": "failed", "on_success": "success"}
"""Key of a document -> the status of the runs that it is for."""


def hook_documents(flow: str, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Key of a document -> the document of its hook."""
    found: dict[str, dict[str, Any]] = {}
    for key in HOOKS:
        if document.get(key) is None:
            continue
        made: dict[str, Any] = {
            "flow": hook_name(flow, key),
            "description": f"Runs after a run of {flow} has ended: {HOOKS[key]}.",
            "input": {"run": {"type": "object"}},
        }
        if document.get("defaults") is not None:
            made["defaults"] = document["defaults"]
        found[key] = {**made, "tasks": {key: document[key]}}
    return found


def hook_name(workflow: str, key: str) -> str:
    return f"{workflow}.{key}"
