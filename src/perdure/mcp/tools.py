"""What a tool is: a function of a REST session and typed arguments, and what its act says about it.

    @reads(runs.LIST)
    def list_runs(api: HttpApi, query: Annotated[str, Field(description="...")] = "", ...) -> Page:
        '''The description that the agent reads.'''

The name of the function is the name of the tool, its signature the input schema. Whether a tool changes anything and whether it may be
repeated is read from the table of acts; the server checks the permission of the act.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from perdure.core.api.act import KEY_PREFIX, Act
from perdure.core.errors import InvalidInput
from perdure.core.limits import NAME_CHARS_MAX
from perdure.mcp.bounds import is_short
from perdure.programs.http_client import HttpApi, Params

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 50
"""Items of one page. A page that is too long for an answer comes with fewer."""
CURSOR_CHARS_MAX: Final = 500
TEXT_ARGUMENT_CHARS_MAX: Final = 1_000
"""Characters of a text that an agent writes: a reason, a comment, a JSON pointer."""
TIME_CHARS_MAX: Final = 50

Answer = dict[str, Any]
"""`{"result": ...}`."""
Page = dict[str, Any]
"""`{"items": [...], "next": ...}`."""
Body = Callable[..., Answer | Page]

RunArgument = Annotated[
    str,
    Field(
        min_length=1,
        max_length=NAME_CHARS_MAX + len(KEY_PREFIX),
        description="A run: its id, at least 6 of its first characters, key:KEY, or @last for the newest run.",
    ),
]
NameArgument = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
NameFilter = Annotated[str, Field(max_length=NAME_CHARS_MAX)]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX, description="Items of one page at most.")]
Cursor = Annotated[
    str | None,
    Field(max_length=CURSOR_CHARS_MAX, description="The `next` of the page before; none for the first page."),
]


class PageRequest(BaseModel):
    """Which page of a list."""

    limit: Limit = PAGE_DEFAULT
    cursor: Cursor = None


FIRST: Final = PageRequest()

_CUT: Final[dict[str, Any]] = {
    "type": "array",
    "description": "What was left out of this answer to keep it short. Empty: nothing.",
    "items": {
        "type": "object",
        "properties": {
            "at": {"type": "string", "description": "JSON pointer into this answer."},
            "kept": {"type": ["integer", "null"]},
            "of": {"type": ["integer", "null"]},
            "unit": {"type": "string"},
        },
    },
}
PAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "object"}},
        "next": {
            "type": ["string", "null"],
            "description": "Pass it as `cursor` to go on; null: no more. A page may be short and still go on.",
        },
        "cut": _CUT,
    },
    "required": ["items", "next", "cut"],
}
ANSWER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"result": {}, "cut": _CUT},
    "required": ["result", "cut"],
}


@dataclass(frozen=True)
class AgentTool:
    body: Body
    act: Act[Any, Any]
    is_destructive: bool
    """It may end or decide something that cannot be taken back, or what it does is up to the workflow."""

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.body.__doc__ or "")

    @property
    def is_change(self) -> bool:
        return bool(self.act.audits)

    @property
    def is_repeatable(self) -> bool:
        return not self.act.audits or self.act.changes_once

    @property
    def output_schema(self) -> dict[str, Any]:
        return PAGE_SCHEMA if inspect.signature(self.body).return_annotation == "Page" else ANSWER_SCHEMA

    @cached_property
    def arguments(self) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        for name, (hint, default) in self._parameters.items():
            group = _group(hint)
            fields |= group if group is not None else {name: (hint, default)}
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def _parameters(self) -> dict[str, tuple[Any, Any]]:
        """Type and default of each parameter after the session."""
        hints = get_type_hints(self.body, include_extras=True)
        parameters = list(inspect.signature(self.body).parameters.values())[1:]
        return {p.name: (hints[p.name], ... if p.default is inspect.Parameter.empty else p.default) for p in parameters}

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return self.arguments.model_json_schema()

    def call(self, api: HttpApi, arguments: dict[str, Any]) -> Answer | Page:
        try:
            given = self.arguments.model_validate(arguments)
        except ValidationError as e:
            wrong = "; ".join(f"{'.'.join(map(str, w['loc'])) or 'arguments'}: {w['msg']}" for w in e.errors())
            raise InvalidInput(f"the arguments of {self.name} do not fit: {wrong}") from None
        values = {name: _argument(name, hint, given) for name, (hint, _) in self._parameters.items()}
        return self.body(api, **values)


def _group(hint: Any) -> dict[str, Any] | None:
    """The fields of a parameter that is a group of arguments, which several tools share."""
    if not (isinstance(hint, type) and issubclass(hint, BaseModel)):
        return None
    hints = get_type_hints(hint, include_extras=True)
    return {name: (hints[name], field.default) for name, field in hint.model_fields.items()}


def _argument(name: str, hint: Any, given: BaseModel) -> Any:
    group = _group(hint)
    return getattr(given, name) if group is None else hint(**{part: getattr(given, part) for part in group})


READING: Final[dict[str, AgentTool]] = {}
CHANGING: Final[dict[str, AgentTool]] = {}


def reads(act: Act[Any, Any]) -> Callable[[Body], Body]:
    assert not act.audits, f"{act.name} changes something"

    def register(body: Body) -> Body:
        READING[body.__name__] = AgentTool(body, act, is_destructive=False)
        return body

    return register


def changes(act: Act[Any, Any], *, is_destructive: bool) -> Callable[[Body], Body]:
    assert act.audits, f"{act.name} changes nothing"

    def register(body: Body) -> Body:
        CHANGING[body.__name__] = AgentTool(body, act, is_destructive=is_destructive)
        return body

    return register


def fetch_page(api: HttpApi, path: str, params: Params, wanted: PageRequest) -> Page:
    """A page of a list, with fewer items than asked for if these are large."""
    limit = wanted.limit
    while True:
        page: Page = api.get(path, [*params, ("limit", limit), ("cursor", wanted.cursor)])
        if limit == 1 or is_short(page):
            return {"items": page["items"], "next": page["next"]}
        limit //= 2


def given(**fields: Any) -> list[tuple[str, Any]]:
    """Query parameters without those that were not given."""
    return [(name, value) for name, value in fields.items() if value not in (None, "")]
