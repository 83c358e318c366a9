"""Bodies by the API's own schemas, as kubernetes-validate has them."""

from __future__ import annotations

import functools
from typing import Any, Final

import jsonschema
from kubernetes_validate import utils
from referencing import Registry
from referencing import Resource as Contents

from tests.executors.kubernetes_emulator.resources import Object, Resource
from tests.executors.kubernetes_emulator.status import ApiError, Cause, bad_request, invalid

SCHEMA_VERSION: Final = "1.37"
_FOLDER: Final = f"kubernetes-json-schema/v{SCHEMA_VERSION}.0-local-strict"


def check_schema(resource: Resource, obj: Object) -> None:
    """A wrong type and an unknown field cannot be read at all; a field that is missing is invalid."""
    missing: list[Cause] = []
    for error in _validator(resource).iter_errors(obj):
        path = ".".join(map(str, error.absolute_path))
        if error.validator != "required":
            raise _unreadable(resource, path, error.message)
        missing += [
            Cause("FieldValueRequired", f"{path}.{name}".lstrip("."), "Required value")
            for name in error.validator_value
            if name not in error.instance
        ]
    if missing:
        raise invalid(resource.kind, resource.group, str(obj["metadata"].get("name", "")), missing)


def _unreadable(resource: Resource, path: str, message: str) -> ApiError:
    return bad_request(
        f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: strict decoding error: {path}: {message}'
    )


@functools.cache
def _validator(resource: Resource) -> Any:
    version = resource.api_version.replace("/", "-")
    schema = utils.schema_contents(f"{_FOLDER}/{resource.kind.lower()}-{version}.json", SCHEMA_VERSION)
    registry: Any = Contents.from_contents(_definitions()) @ (Contents.from_contents(schema) @ Registry())
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions() -> Any:
    return utils.schema_contents(f"{_FOLDER}/_definitions.json", SCHEMA_VERSION)
