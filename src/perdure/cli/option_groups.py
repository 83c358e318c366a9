"""Options that belong together, as one parameter of a command.

    @dataclass(frozen=True)
    class Page:
        limit: Annotated[int, typer.Option("--limit", "-l")] = 30

    def list_runs(server: Remote, page: Page) -> None: ...

Typer reads one parameter of a function per option and has no notion of a group. `Signature` therefore replaces a dataclass
parameter by its fields in the signature that typer reads, and builds the dataclass again when the command is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


class CommandSignature:
    """The options and arguments of a command function, after its first parameter."""

    def __init__(self, body: Callable[..., None]) -> None:
        self._groups: dict[str, type[Any]] = {}
        self.parameters: list[inspect.Parameter] = []
        for parameter in list(inspect.signature(body, eval_str=True).parameters.values())[1:]:
            if is_dataclass(parameter.annotation) and isinstance(parameter.annotation, type):
                self._groups[parameter.name] = parameter.annotation
                self.parameters += _parameters_of(parameter.annotation)
            else:
                self.parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def grouped(self, values: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the function, from one value per option."""
        rest = dict(values)
        built = {
            name: group(**{field.name: rest.pop(field.name) for field in fields(group)})
            for name, group in self._groups.items()
        }
        return rest | built


def _parameters_of(group: type[Any]) -> list[inspect.Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=annotations[field.name]
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
