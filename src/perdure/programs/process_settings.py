"""The base of `ServerSettings` and `WorkerSettings`: pydantic-settings, fed by the layers of settings_sources.

Groups of settings that other layers of Perdure own (EngineSettings, OidcSettings) stay the structs they are: every field of theirs is a
setting by itself, so a field that is added there can be set from everywhere without a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

import msgspec
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from perdure.app import setting_values as values
from perdure.core.errors import InvalidInput
from perdure.programs.settings_sources import Layer, Setting

MASK: Final = "***"
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_layers: ContextVar[Sequence[Layer]] = ContextVar("perdure_settings_layers", default=())


class Named(msgspec.Struct, frozen=True):
    """Marks a field in its annotation: its variable, and whether it is a secret. An internal field cannot be set from outside."""

    variable: str = ""
    secret: bool = False
    internal: bool = False


class WrongValue(ValueError):
    """A value of a group; `key` is its path inside."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(why)
        self.key = key


class LayerSource(PydanticBaseSettingsSource):
    def __init__(self, settings: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._layer.nested().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._layer.nested()


class ProcessSettings(BaseSettings):
    """Constructed directly it has what it was given; `load` takes layers, the first of which wins."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )
    section: ClassVar[str]
    prefix: ClassVar[str]
    """Of its variables, where a field does not name another."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, *(LayerSource(settings_cls, layer) for layer in _layers.get()))

    @classmethod
    def load(cls, layers: Sequence[Layer]) -> Self:
        """A value that is wrong is named as the user wrote it."""
        token = _layers.set(layers)
        try:
            return cls()
        except ValidationError as error:
            raise InvalidInput(_explained(error, layers)) from None
        finally:
            _layers.reset(token)

    @classmethod
    def settings(cls) -> list[Setting]:
        """Everything that can be set, in the order of the fields."""
        out: list[Setting] = []
        for name, field in cls.model_fields.items():
            named = next((m for m in field.metadata if isinstance(m, Named)), Named())
            if named.internal:
                continue
            group = values.struct_of(field.annotation)
            keys = [name] if group is None else list(_keys(group, name))
            for key in keys:
                variable = named.variable or cls.prefix + key.replace(".", "_").upper()
                out.append(Setting(key, variable, named.secret or key in SECRET))
        return out

    def effective(self, layers: Sequence[Layer]) -> Iterator[str]:
        """Every setting as a line of TOML, with its source. Secrets are masked."""
        yield f"[{self.section}]"
        for one in self.settings():
            value = self._value(one.key)
            source = next((layer.names[one.key] for layer in layers if one.key in layer.names), "default")
            if value is None or value == "" or value == ():
                yield f"# {one.key} is not set"
            else:
                shown = self.masked(one.key, value) if one.secret else value
                yield f"{one.key} = {values.as_toml(shown)}  # {source}"

    def masked(self, key: str, value: object) -> str:
        return MASK

    def _value(self, key: str) -> object:
        value: object = self
        for name in key.split("."):
            value = getattr(value, name) if value is not None else None
        return value


def group(cls: type[msgspec.Struct], prefix: str) -> BeforeValidator:
    """Makes a struct of a table; `prefix` is that of its variables, for errors."""

    def validate(value: object) -> object:
        return _build(cls, value, "", prefix) if isinstance(value, Mapping) else value

    return BeforeValidator(validate)


def _build(cls: type[msgspec.Struct], table: Mapping[str, Any], before: str, prefix: str) -> msgspec.Struct:
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    given: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{before}{name}"
        if name not in fields:
            raise WrongValue(key, "there is no such setting")
        inner = values.struct_of(fields[name].type)
        try:
            if inner is not None and isinstance(value, Mapping):
                given[name] = _build(inner, value, f"{key}.", prefix)
            else:
                given[name] = values.converted(value, name, fields[name].type)
        except WrongValue:
            raise
        except (ValueError, InvalidInput) as error:
            raise WrongValue(key, str(error)) from None
    for name, field in fields.items():
        if field.required and name not in given:
            variable = f"{prefix}{before}{name}".replace(".", "_").upper()
            raise InvalidInput(
                f"{variable} is not set: {', '.join(sorted(given))} of the same group cannot be used alone"
            )
    return cls(**given)


def _keys(cls: type[msgspec.Struct], before: str) -> Iterator[str]:
    for field in msgspec.structs.fields(cls):
        inner = values.struct_of(field.type)
        key = f"{before}.{field.name}"
        if inner is not None:
            yield from _keys(inner, key)
        elif key not in INTERNAL:
            yield key


INTERNAL: Final = frozenset({"engine.namespace", "engine.payload_stores", "engine.payload_inline_bytes"})
"""Fields of groups that another setting determines."""
SECRET: Final = frozenset({"oidc.client_secret"})
"""Fields of groups that are secrets."""


def _explained(error: ValidationError, layers: Sequence[Layer]) -> str:
    found = error.errors()[0]
    key = ".".join(str(part) for part in found["loc"])
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, WrongValue):
        key = f"{key}.{cause.key}"
    name = next((layer.names[key] for layer in layers if key in layer.names), key)
    return f"{name}: {cause or found['msg']}"


def checked(parse: Callable[[str], object]) -> BeforeValidator:
    """Parses text, or the list of texts that a file may have instead; any other value has its type already."""

    def validate(value: object) -> object:
        if isinstance(value, list):
            value = ",".join(str(one) for one in value)
        try:
            return parse(value) if isinstance(value, str) else value
        except InvalidInput as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(validate)


Seconds = Annotated[float, checked(values.seconds)]
Switch = Annotated[bool, checked(values.switch)]
Words = Annotated[tuple[str, ...], checked(values.words)]
FilePath = Annotated[Path | None, checked(values.file)]
Format = Annotated[LogFormat, checked(values.choice(get_args(LogFormat))), Named("PERDURE_LOG_FORMAT")]
Level = Annotated[LogLevel, checked(values.choice(get_args(LogLevel))), Named("PERDURE_LOG_LEVEL")]
