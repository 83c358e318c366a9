"""`${ secret.NAME }`: where it may stand, and what becomes of it.

Law: secrets are found in the text of a document, once, when it is compiled. The engine evaluates templates that hold references in their places
(core/secrets.py), and never a value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from perdure.core.application_limits import SECRETS_PER_TASK_MAX
from perdure.core.errors import ExprError, InvalidInput
from perdure.core.expressions import Expr
from perdure.core.expressions.template import SECRET, Template, secret_name, without_secrets
from perdure.core.jobs import CONTAINER, PROCESS
from perdure.core.secrets import SecretPlace, checked_secret_name
from perdure.flows.compile.reading import SECRET_HINT, Reader, Scope, inner
from perdure.flows.problems import Path

HTTP_SECRET_KEYS: Final = ("url", "headers", "query", "body")
COMMAND_SECRET_KEYS: Final = ("env",)
JOB_SECRET_KEYS: Final[dict[str, tuple[str, ...]]] = {
    PROCESS: COMMAND_SECRET_KEYS,
    CONTAINER: COMMAND_SECRET_KEYS,
    **dict.fromkeys(("kubernetes", "cloud-run", "ray", "objects", "service"), ()),
}
"""Keys of a job that secrets may stand in, by executor. Other executors say it to their workers."""
COMMAND_HINT: Final = "the list of processes shows arguments to everyone on the machine, and files stay on disk: put it in env, and read the variable there"
JOB_HINT: Final = "this executor would write it where others can read it; use a secret of that platform instead"


class TaskArgs(msgspec.Struct, frozen=True):
    """What a task is given."""

    template: Template
    secrets: tuple[SecretPlace, ...] = ()


def read_args(
    r: Reader, value: Any, path: Path, scope: Scope, keys: Collection[str] | None = None, hint: str = ""
) -> TaskArgs | None:
    """A value with `${ }` inside, and with secrets. `keys`: those of the value that secrets may stand in; None: all."""
    try:
        made = Template.make(value)
    except ExprError:
        made = None
    if made is None or SECRET not in made.roots:
        plain = r.template(value, path, scope)
        return None if plain is None else TaskArgs(plain)
    before = len(r.problems)
    for one, place in zip(made.exprs, made.places, strict=True):
        if SECRET not in one.roots:
            r.sound(one, (*path, *place), scope, inner(value, place))
            continue
        _check(r, one, (*path, *place))
        if not place or (keys is not None and place[0] not in keys):
            where = f"{place[0]}" if place else "the whole value"
            r.error((*path, *place), f"a secret cannot stand in {where} here", hint or SECRET_HINT)
    template, places = without_secrets(made)
    if len(places) > SECRETS_PER_TASK_MAX:
        r.error(path, f"secrets stand in {len(places)} places; SECRETS_PER_TASK_MAX={SECRETS_PER_TASK_MAX} are allowed")
    return TaskArgs(template, places) if len(r.problems) == before else None


def _check(r: Reader, one: Expr, path: Path) -> None:
    name = secret_name(one)
    if name is None:
        r.error(
            path,
            f"{one.text!r} computes with a secret, whose value is not known here",
            'write ${ secret.NAME } by itself or within text, as in "Bearer ${ secret.NAME }"; a name with . or - as ${ secret["my-token"] }',
        )
        return
    try:
        checked_secret_name(name)
    except InvalidInput as e:
        r.error(path, str(e))
