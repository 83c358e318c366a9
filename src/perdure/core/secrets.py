"""References to secrets in the inputs of tasks.

A flow says `${ secret.TOKEN }` in what a task is given. The history holds a reference in its place, and the options of the task, which its flow
decides, list where references stand. A worker puts the values there right before the task begins.

    written    {"headers": {"Authorization": "Bearer ${ secret.TOKEN }"}}
    recorded   {"headers": {"Authorization": {"$secret": ["Bearer ", "TOKEN", ""]}}}      input of the task
               [SecretPlace(("headers", "Authorization"), ("TOKEN",))]                    options of the task

Laws:

1. Only a listed place is looked at, and only a reference to the listed names is resolved there. The list comes from the text of the flow alone.
   So data of a run that looks like a reference stays data, wherever it comes from.
2. The path of a place consists of keys and indexes that are written in the flow: no value of a run leads elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec

from perdure.core.application_limits import SECRET_NAME_CHARS_MAX
from perdure.core.errors import InvalidInput
from perdure.core.payloads import decode_tree, encode_tree

KEY: Final = "$secret"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_OWN: Final = frozenset({"KEY", "KEY_FILE", "DATABASE_URL"})
"""PERDURE_SECRET_KEY is the key of a server, not a secret named KEY."""


class SecretPlace(msgspec.Struct, frozen=True, array_like=True):
    """A place of a task's input that secrets stand in."""

    path: tuple[str | int, ...]
    names: tuple[str, ...]
    """In the order of the text."""


def checked_secret_name(name: str) -> str:
    """The name, if it can be one."""
    if not _NAME.match(name) or len(name) > SECRET_NAME_CHARS_MAX:
        raise InvalidInput(
            f"{name[:SECRET_NAME_CHARS_MAX]!r} cannot be the name of a secret: use letters, digits, _, . and -, not . or - first, at most "
            f"SECRET_NAME_CHARS_MAX={SECRET_NAME_CHARS_MAX}"
        )
    variable = variable_of(name).upper()
    if variable in _OWN or variable.startswith("PERDURE_"):
        raise InvalidInput(f"the secret {name!r} belongs to Perdure and is not given to tasks; use another name")
    return name


def variable_of(name: str) -> str:
    """The end of the variable that may hold a secret: a variable has no `.` and no `-` in its name."""
    return name.replace(".", "_").replace("-", "_")


def names_of(places: Iterable[SecretPlace]) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(name for place in places for name in place.names))


def filled(payload: bytes, places: Iterable[SecretPlace], value_of: Callable[[str], str]) -> bytes:
    """The input of a task with the values of its secrets."""
    tree = [decode_tree(payload)]
    for place in places:
        _fill(tree, (0, *place.path), place.names, value_of)
    return encode_tree(tree[0])


def filled_spec(spec: dict[str, Any], places: Iterable[SecretPlace], value_of: Callable[[str], str]) -> dict[str, Any]:
    """The same for arguments that are decoded and not shared."""
    for place in places:
        _fill(spec, place.path, place.names, value_of)
    return spec


def _fill(tree: Any, path: tuple[str | int, ...], names: tuple[str, ...], value_of: Callable[[str], str]) -> None:
    try:
        for step in path[:-1]:
            tree = tree[step]
        found = tree[path[-1]]
    except (LookupError, TypeError):
        found = None
    parts = _parts(found, names)
    if parts is None:
        raise InvalidInput(
            f"the input of the task does not have a reference to {', '.join(names)} where its flow puts one; it was changed since"
        )
    tree[path[-1]] = "".join(value_of(part) if n % 2 else part for n, part in enumerate(parts))


def _parts(found: Any, names: tuple[str, ...]) -> list[str] | None:
    """Text, name, text, name ... text; None: this is no reference to these names."""
    if not isinstance(found, dict):
        return None
    reference = cast(dict[str, Any], found)
    said: Any = reference.get(KEY) if len(reference) == 1 else None
    parts: Any = ["", said, ""] if isinstance(said, str) else said
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return None
    texts: list[str] = parts
    return texts if tuple(texts[1::2]) == names and len(texts) == 2 * len(names) + 1 else None
