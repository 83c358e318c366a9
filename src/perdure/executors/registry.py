"""Executors by name: entry points of the group `perdure.executors`, Perdure's own and those of other packages.

An entry point names a subclass of Executor. Its options come from `--executor-option NAME.KEY=VALUE` and from the environment as
PERDURE_EXECUTOR_NAME_KEY; the command line wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.packages import install_command
from perdure.core.suggestions import did_you_mean
from perdure.executors.port import Executor

GROUP: Final = "perdure.executors"
ENV_PREFIX: Final = "PERDURE_EXECUTOR_"
EXECUTORS_MAX: Final = 50
"""Executors of one worker."""


def available() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def load(names: Iterable[str], given: Mapping[str, Mapping[str, Any]], env: Mapping[str, str]) -> list[Executor]:
    """The executors of these names with their options. `given` has options of the command line by executor."""
    wanted = list(dict.fromkeys(names))
    if len(wanted) > EXECUTORS_MAX:
        raise InvalidInput(f"a worker has at most EXECUTORS_MAX={EXECUTORS_MAX} executors, not {len(wanted)}")
    for name in given:
        if name not in wanted:
            raise InvalidInput(
                f"options are given for the executor {name!r}, which this worker does not have: add --executor {name}"
            )
    return [_load(name, {**options_of_environment(name, env), **given.get(name, {})}) for name in wanted]


def _load(name: str, options: Mapping[str, Any]) -> Executor:
    point = available().get(name)
    if point is None:
        known = sorted(available())
        raise InvalidInput(f"there is no executor {name!r}; {did_you_mean(name, known)} Installed: {', '.join(known)}.")
    try:
        kind: Any = point.load()
    except ImportError as e:
        raise InvalidInput(
            f"the executor {name!r} needs a package that is not installed: {e}. `{install_command(name)}` brings it."
        ) from e
    return make(kind, options)


def make(kind: type[Executor], options: Mapping[str, Any]) -> Executor:
    """An executor with its options, as text or as values."""
    known = [f.name for f in msgspec.structs.fields(kind.Options)]
    for key in options:
        if key not in known:
            raise InvalidInput(
                f"the executor {kind.name!r} has no option {key!r}; {did_you_mean(key, known)} It has: {', '.join(known) or 'none'}."
            )
    try:
        return kind(msgspec.convert(dict(options), kind.Options, strict=False))
    except msgspec.ValidationError as e:
        raise InvalidInput(f"an option of the executor {kind.name!r} is wrong: {e}") from e


def parse_options(pairs: Iterable[str]) -> dict[str, dict[str, str]]:
    """`executor.key=value` each."""
    found: dict[str, dict[str, str]] = {}
    for pair in filter(None, map(str.strip, pairs)):
        where, equals, value = pair.partition("=")
        name, dot, key = where.partition(".")
        if not (equals and dot and name and key):
            raise InvalidInput(f"{pair!r} is no option of an executor: write NAME.KEY=VALUE, such as process.user=jobs")
        found.setdefault(name.strip(), {})[key.strip()] = value.strip()
    return found


def options_of_environment(name: str, env: Mapping[str, str]) -> dict[str, str]:
    prefix = f"{ENV_PREFIX}{name.upper().replace('-', '_')}_"
    return {key[len(prefix) :].lower(): value for key, value in env.items() if key.startswith(prefix)}
