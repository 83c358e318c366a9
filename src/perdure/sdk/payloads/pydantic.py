"""Payloads through pydantic: models, and unions that JSON alone cannot tell apart.

pydantic is optional. It is recognised by the attributes of its classes and errors, and imported only to build an
adapter, so that programs without it neither need it nor pay for its import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.packages import install_command
from perdure.sdk.payloads.blobs import Blob
from perdure.sdk.payloads.roundtrip import type_name

Codec = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
"""How to write a value and how to read it."""


def is_model(kind: Any) -> bool:
    """Whether this is a pydantic model class. Asked of its attributes, so that pydantic need not be imported to ask."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def is_pydantic_error(error: Exception) -> bool:
    return type(error).__module__.startswith("pydantic")


def through_pydantic(annotation: Any, *, strict: bool | None, refusal: TypeError | None = None) -> Codec:
    adapter = _adapter(annotation, refusal)
    # round_trip leaves out computed fields, which a model that forbids extra fields would refuse to read.
    dump = functools.partial(adapter.dump_json, by_alias=True, round_trip=True, warnings="error")
    return dump, functools.partial(adapter.validate_json, strict=strict)


def _adapter(annotation: Any, refusal: TypeError | None) -> Any:
    try:
        import pydantic
    except ImportError:
        raise InvalidInput(
            f"`{type_name(annotation)}` cannot be a payload type here: {refusal}. Install pydantic, which can tell "
            f"such types apart: {install_command('pydantic')}. Or declare the members of the union as "
            "`class A(msgspec.Struct, tag=True)`, which carry their name in the JSON."
        ) from refusal
    # Model classes bring their own configuration, and pydantic refuses to be given another for them.
    config = None if refusal is None else pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        return pydantic.TypeAdapter(annotation, config=config)
    except pydantic.PydanticUserError as error:
        if config is not None and error.code == "type-adapter-config-unused":
            return pydantic.TypeAdapter(annotation)
        raise InvalidInput(f"`{type_name(annotation)}` cannot be a payload type: {error}") from error
    except Exception as error:
        raise InvalidInput(
            f"`{type_name(annotation)}` cannot be a payload type: {refusal or error}; nor can pydantic: {error}"
        ) from error


@functools.lru_cache(maxsize=4096)
def _codec(model: Any) -> Codec:
    return through_pydantic(model, strict=None)


def write_model(value: Any) -> Any:
    """Called by msgspec for a value that it does not know: a pydantic model, a blob, or nothing that can be sent."""
    kind: Any = type(value)
    if is_model(kind):
        return msgspec.Raw(_codec(kind)[0](value))
    if kind is Blob:
        return value.to_marker()
    raise TypeError(f"a `{type_name(kind)}` is not data")


def read_model(kind: Any, data: Any) -> Any:
    """Called by msgspec for a type that it does not know. Goes through JSON again for pydantic's own JSON rules."""
    if is_model(kind):
        return _codec(kind)[1](msgspec.json.encode(data))
    if kind is Blob:
        return Blob.at_marker(data)
    if kind is object:  # everything is one, so it says as little as Any
        return data
    raise TypeError(f"a `{type_name(kind)}` is not data")


def explain(error: Any) -> str:
    """What was expected, what was found and where, in one line."""
    if is_pydantic_error(error) and hasattr(error, "errors"):
        return "; ".join(
            f"{e['msg']}, got `{type_name(type(e['input']))}` - at `{'.'.join(['$', *map(str, e['loc'])])}`"
            for e in error.errors(include_url=False)[:3]
        )
    return str(error) or type(error).__name__
