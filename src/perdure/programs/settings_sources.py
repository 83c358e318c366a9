"""Where the settings of a process come from.

    flags > environment > .env > secrets directory > configuration file > defaults

Each source is a layer: values by key, and what to call each value in an error. The first layer that has a key wins, key by key.
A key is the path of a field (`http`, `engine.lease_s`); its variable is `PERDURE_` and the key in capitals, unless the field names another.
An empty variable counts as unset. A secret may also be in a file that `<VARIABLE>_FILE` names, or in the secrets directory under the
name of its variable.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput

CONFIG_FILE: Final = "perdure.toml"
CONFIG_VARIABLE: Final = "PERDURE_CONFIG"
SECRETS_VARIABLE: Final = "PERDURE_SECRETS_DIR"
SECTIONS: Final = ("server", "worker")
"""Tables of a configuration file."""
SECRET_BYTES_MAX: Final = 65_536


class Setting(msgspec.Struct, frozen=True):
    """One value that can be set."""

    key: str
    variable: str
    secret: bool = False


class Layer(msgspec.Struct, frozen=True):
    """The values of one source."""

    values: dict[str, object] = {}
    names: dict[str, str] = {}
    """Key -> what the user wrote it as: `--http`, `PERDURE_HTTP_BIND`, `http in perdure.toml`."""

    def nested(self) -> dict[str, Any]:
        """As tables in tables, for validation."""
        out: dict[str, Any] = {}
        for key, value in self.values.items():
            *tables, name = key.split(".")
            inner = out
            for table in tables:
                inner = inner.setdefault(table, {})
            inner[name] = value
        return out


def flags(given: Mapping[str, tuple[str, object]]) -> Layer:
    """Key -> (flag, value); None is not given."""
    found = {key: (flag, value) for key, (flag, value) in given.items() if value is not None}
    return Layer({key: value for key, (_, value) in found.items()}, {key: flag for key, (flag, _) in found.items()})


def assignments(words: Iterable[str], settings: Sequence[Setting]) -> Layer:
    """`--set key=value`, as often as given."""
    layer = Layer({}, {})
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InvalidInput(f"--set {word}: write KEY=VALUE, for instance --set engine.lease_s=10")
        _check_known(key, settings, "--set")
        layer.values[key], layer.names[key] = value, f"--set {key}"
    return layer


def variables(environment: Mapping[str, str | None], settings: Sequence[Setting], origin: str = "") -> Layer:
    """Values of an environment, or of a file that is written like one."""
    layer = Layer({}, {})
    for one in settings:
        text = (environment.get(one.variable) or "").strip()
        file = (environment.get(f"{one.variable}_FILE") or "").strip() if one.secret else ""
        if text and file:
            raise InvalidInput(f"{one.variable} and {one.variable}_FILE are both set{origin}: keep one of them")
        if text or file:
            name = f"{one.variable}{'_FILE' if file else ''}{origin}"
            layer.values[one.key] = _secret(Path(file).expanduser(), name) if file else text
            layer.names[one.key] = name
    return layer


def dotenv(file: Path, settings: Sequence[Setting]) -> Layer:
    if not file.is_file():
        return Layer()
    from dotenv import dotenv_values

    return variables(dotenv_values(file), settings, f" in {file}")


def secrets(directory: Path | None, settings: Sequence[Setting]) -> Layer:
    """Files named like variables, in small or capital letters, as Docker and Kubernetes mount them."""
    layer = Layer({}, {})
    if directory is None:
        return layer
    if not directory.is_dir():
        raise InvalidInput(f"the secrets directory {directory} is not a directory")
    for one in settings:
        for name in (one.variable.lower(), one.variable):
            if (file := directory / name).is_file():
                layer.values[one.key], layer.names[one.key] = _secret(file, str(file)), str(file)
                break
    return layer


def config_file(file: Path | None, section: str, settings: Sequence[Setting]) -> Layer:
    """One table of a TOML file. None: perdure.toml, else `[tool.perdure]` of pyproject.toml, in the working directory."""
    found = _tables(file) if file is not None else _found_tables()
    if found is None:
        return Layer()
    name, tables = found
    if unknown := next((table for table in tables if table not in SECTIONS), None):
        raise InvalidInput(
            f"{name}: there is no table {unknown!r}; write one of {', '.join(f'[{s}]' for s in SECTIONS)}"
        )
    layer = Layer({}, {})
    keys = {one.key for one in settings}
    for key, value in _leaves(tables.get(section, {}), keys):
        _check_known(key, settings, f"{name} [{section}]")
        layer.values[key], layer.names[key] = value, f"{key} in {name}"
    return layer


def read(
    section: str,
    settings: Sequence[Setting],
    *,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
    secrets_dir: Path | None = None,
) -> list[Layer]:
    """Every source below the flags, in order of precedence. A None is looked up in the environment."""
    environment = os.environ if environment is None else environment
    config = config or _path(environment, CONFIG_VARIABLE)
    return [
        variables(environment, settings),
        dotenv(Path(".env"), settings),
        secrets(secrets_dir or _path(environment, SECRETS_VARIABLE), settings),
        config_file(config, section, settings),
    ]


def configured_dsn() -> str | None:
    """The database for commands that need nothing else; without the libraries that validate a server's settings."""
    dsn = Setting("dsn", "PERDURE_DSN", secret=True)
    # Other keys of the file are checked by the command that uses them.
    environment = os.environ
    layers = [
        variables(environment, [dsn]),
        dotenv(Path(".env"), [dsn]),
        secrets(_path(environment, SECRETS_VARIABLE), [dsn]),
    ]
    found = _tables(path) if (path := _path(environment, CONFIG_VARIABLE)) else _found_tables()
    from_file = found[1].get("server", {}).get("dsn") if found else None
    return next((str(layer.values["dsn"]) for layer in layers if "dsn" in layer.values), from_file)


def _path(environment: Mapping[str, str], variable: str) -> Path | None:
    text = environment.get(variable, "").strip()
    return Path(text).expanduser() if text else None


def _secret(file: Path, name: str) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"{name}: {file} is not a file that can be read: {reason}") from None


def _tables(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        return str(file), tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} is not TOML: {error}") from None


def _found_tables() -> tuple[str, dict[str, Any]] | None:
    if (own := Path(CONFIG_FILE)).is_file():
        return _tables(own)
    project = Path("pyproject.toml")
    if not project.is_file():
        return None
    _, tables = _tables(project)
    found = tables.get("tool", {}).get("perdure")
    return ("[tool.perdure] of pyproject.toml", found) if found is not None else None


def _leaves(table: Mapping[str, Any], keys: set[str], before: str = "") -> Iterator[tuple[str, Any]]:
    """A table that is itself a setting (roles of tokens) is one value."""
    for name, value in table.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and key not in keys:
            yield from _leaves(value, keys, f"{key}.")
        else:
            yield key, value


def _check_known(key: str, settings: Sequence[Setting], where: str) -> None:
    keys = [one.key for one in settings]
    if key in keys:
        return
    near = get_close_matches(key, keys, n=1, cutoff=0.5) or [k for k in keys if k.rsplit(".", 1)[-1] == key]
    raise InvalidInput(f"{where}: there is no setting {key!r}{f'; did you mean {near[0]!r}?' if near else ''}")
