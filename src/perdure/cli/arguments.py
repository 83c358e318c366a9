"""The arguments of a workflow on the command line, for `perdure run` and `perdure schedule create`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from perdure.cli.remote_options import json_argument, value_of


@dataclass(frozen=True)
class WorkflowArguments:
    """By name, by position, or all of them as one JSON value."""

    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments by name; a value is JSON if it parses, else text."),
    ] = None
    positional: Annotated[
        list[str] | None, typer.Option("--arg", "-a", metavar="VALUE", help="Argument by position; repeatable.")
    ] = None
    input_json: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSON", help="All arguments as one JSON value, @FILE, or - for stdin."),
    ] = None

    def body(self) -> dict[str, Any]:
        """The fields of a REST request."""
        from perdure.core.errors import InvalidInput

        if self.input_json is not None:
            if self.named or self.positional:
                raise InvalidInput("--input cannot be combined with other arguments")
            return {"input": json_argument(self.input_json, "--input")}
        out: dict[str, Any] = {}
        if self.positional:
            out["args"] = [value_of(text) for text in self.positional]
        if self.named:
            out["kwargs"] = pairs(self.named, "arguments", " Pass an argument by position with -a.")
        return out


def pairs(texts: list[str], what: str, hint: str = "") -> dict[str, Any]:
    """NAME=VALUE, as many as there are."""
    from perdure.core.errors import InvalidInput

    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{what}: {text!r} is not NAME=VALUE.{hint}")
        if name in out:
            raise InvalidInput(f"{what}: {name} is given twice")
        out[name] = value_of(value)
    return out
