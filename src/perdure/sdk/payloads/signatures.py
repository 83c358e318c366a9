"""How the arguments and the result of one function travel.

Arguments are one JSON object keyed by parameter name, `{"url": "...", "depth": 2}`, so that a call can also be written
by hand, in a flow document or with curl. `*args` is an array and `**kwargs` an object under their own names. A call from elsewhere
may give arguments by position instead, or offer more than the function takes, see core/calls.py.

Only what the caller gave is written. Defaults are filled in by the function itself when it runs, so a new default
applies to calls made before it, exactly as it does to any Python call.

A Struct with one field per parameter is generated for each function: binding, writing and checking a call then happen
in msgspec's C code. A parameter that msgspec cannot carry is a field of raw JSON with a converter of its own.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, Final

import msgspec

from perdure.core.calls import OFFER, POSITIONAL
from perdure.core.errors import InvalidInput, PayloadMismatch, PerdureError
from perdure.core.limits import SCHEMA_BYTES_MAX
from perdure.core.parameters import Parameters
from perdure.core.payloads import MARK, any_by_reference
from perdure.sdk.payloads import markers
from perdure.sdk.payloads.blobs import Blob
from perdure.sdk.payloads.converters import Converter
from perdure.sdk.payloads.schemas import described, schemas_of

OFFERED_SHOWN: Final = 20
"""Names of an offer that an error lists."""

_MISSING: Final[Any] = object()
"""Stands for an argument that was not given. Fields of this default are left out of the JSON."""

_NOT_NAMED: Final = (POSITIONAL, OFFER)
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_NEVER = (typing.NoReturn, typing.Never)


class Signature:
    """The typed shape of one function, compiled at its first use."""

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        self._fn = fn
        self.name = name or str(getattr(fn, "__qualname__", repr(fn)))
        self._arguments = f"the arguments of {self.name}()"
        self._result = f"the result of {self.name}()"

    @staticmethod
    def of(fn: Callable[..., Any]) -> Signature:
        """The signature of a function. Kept for functions that live as long as the program.

        Not for lambdas and local functions: there is a new one per call, and each would pin what it closes over.
        """
        if "<" in getattr(fn, "__qualname__", "<"):
            return Signature(fn)
        try:
            return _cached(fn)
        except TypeError:  # a callable that cannot be hashed
            return Signature(fn)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        try:
            call = self._struct(*args, **kwargs) if self._is_simple else self._bind(args, kwargs)
        except TypeError as error:
            raise self._wrong_call(args, kwargs, error) from None
        except markers.HasBlobs:
            return markers.written_with_blobs(lambda: self._call.dump(self._bind(args, kwargs)))
        return self._call.encode(call, self._arguments)

    def decode_call(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if data.startswith(MARK):
            return self._decode_with_blobs(data)
        if data.startswith(_NOT_NAMED):
            data = self._named(data) if data.startswith(POSITIONAL) else self._taken(data)
        elif self._rest is not None:
            data = self._gathered(data, self._rest)
        values = msgspec.structs.astuple(self._call.decode(data, self._arguments))
        if not self._is_simple:
            return self._unbind(values)
        for value in values:
            if value is _MISSING:
                return self._unbind(values)
        return values, {}

    def _decode_with_blobs(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with markers.reading(data) as envelope:
            args, kwargs = self.decode_call(envelope.body)
            return markers.adopted(args, envelope, Blob), markers.adopted(kwargs, envelope, Blob)

    def encode_calls(self, items: Iterable[Any]) -> list[bytes]:
        """One call per item, the item being its single argument: the bulk form of `encode_call`."""
        self._require_single_argument()
        first = self._parameters[0]
        if first.kind not in _POSITIONAL:  # *args: rare enough for the general path
            return [self.encode_call((item,), {}) for item in items]
        encode, what = self._converters[first.name].encode, f"the argument `{first.name}` of {self.name}()"
        head = b"{" + msgspec.json.encode(first.name) + b":"
        given = list(items)
        values = [encode(item, what) for item in given]
        if any_by_reference(values):
            return [self.encode_call((item,), {}) for item in given]
        return [head + value + b"}" for value in values]

    def encode_result(self, value: Any) -> bytes:
        return self._returned.encode(value, self._result)

    def decode_result(self, data: bytes) -> Any:
        return self._returned.decode(data, self._result)

    def decode_results(self, blobs: list[bytes]) -> list[Any]:
        return self._returned.decode_all(blobs, self._result)

    def parameters(self) -> Parameters:
        """What a start is checked against before it is written."""
        ordered = sorted(self._parameters, key=lambda p: p.kind not in _POSITIONAL)  # stable: those by position first
        return Parameters(
            names=tuple(p.name for p in ordered),
            positional=sum(p.kind in _POSITIONAL for p in ordered),
            required=tuple(p.name for p in ordered if _is_required(p)),
            takes_more=any(p.kind is Parameter.VAR_POSITIONAL for p in ordered),
            takes_any=any(p.kind is Parameter.VAR_KEYWORD for p in ordered),
            schema=self._published_schema(),
        )

    def _published_schema(self) -> dict[str, Any] | None:
        try:
            schema = self.json_schema()
            return schema if len(msgspec.json.encode(schema)) <= SCHEMA_BYTES_MAX else None
        except (PerdureError, TypeError, ValueError):  # a type that cannot be described, or a default that is no JSON
            return None

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of a call, for editors. A parameter whose type cannot be described takes anything."""
        return self._schema

    # Compiled at first use, because annotations may name classes that are defined after the function.

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self._fn)
        except ValueError as error:
            raise InvalidInput(
                f"{self.name} has no signature to check calls against: {error}. Wrap it in a def."
            ) from error

    @functools.cached_property
    def _parameters(self) -> list[Parameter]:
        return list(self._signature.parameters.values())

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return _type_hints(self._fn, self.name)

    @functools.cached_property
    def _converters(self) -> dict[str, Converter[Any]]:
        return {p.name: Converter.of(_annotation(p, self._hints)) for p in self._parameters}

    @functools.cached_property
    def _returned(self) -> Converter[Any]:
        hint = self._hints.get("return", Any)
        return Converter.of(None if hint in _NEVER else hint)

    @functools.cached_property
    def _is_simple(self) -> bool:
        """Whether the generated Struct binds arguments by the very rules of the function."""
        return all(
            p.kind is Parameter.POSITIONAL_OR_KEYWORD and self._converters[p.name].native for p in self._parameters
        )

    @functools.cached_property
    def _rest(self) -> str | None:
        """The name of its `**kwargs`, where it has some."""
        return next((p.name for p in self._parameters if p.kind is Parameter.VAR_KEYWORD), None)

    @functools.cached_property
    def _struct(self) -> type[msgspec.Struct]:
        fields: list[Any] = []
        for p in self._parameters:
            converter = self._converters[p.name]
            kind = converter.annotation if converter.native else msgspec.Raw
            fields.append((p.name, kind) if _is_required(p) else (p.name, kind, _MISSING))
        kw_only = not self._is_simple  # a required parameter may follow an optional one there
        return msgspec.defstruct("Arguments", fields, kw_only=kw_only, omit_defaults=True, forbid_unknown_fields=True)

    @functools.cached_property
    def _call(self) -> Converter[Any]:
        return Converter(self._struct)

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        kinds = {p.name: self._converters[p.name].annotation for p in self._parameters}
        properties, definitions = schemas_of(kinds)
        for p in self._parameters:
            if p.default is not Parameter.empty:
                properties[p.name] = described(properties[p.name], p.default, self._converters[p.name])
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [p.name for p in self._parameters if _is_required(p)]:
            schema["required"] = required
        if said := (inspect.getdoc(self._fn) or "").strip().partition("\n")[0]:
            schema["description"] = said
        if definitions:
            schema["$defs"] = definitions
        return schema

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Struct:
        given = self._signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            converter = self._converters[name]
            if not converter.native:
                given[name] = msgspec.Raw(self._part(converter, value, name))
        return self._struct(**given)

    def _part(self, converter: Converter[Any], value: Any, name: str) -> bytes:
        if markers.is_collecting():  # a part of a call that is an envelope as a whole
            return converter.dump(value)
        data = converter.encode(value, f"the argument `{name}` of {self.name}()")
        if data.startswith(MARK):
            raise markers.HasBlobs
        return data

    def _named(self, data: bytes) -> bytes:
        """The same call by names: who calls from elsewhere may know the order of the parameters only."""
        try:
            given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            args = msgspec.json.decode(given.pop("*"), type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise PayloadMismatch(f"{self._arguments} are not a call: {error}") from None
        try:
            bound = self._signature.bind(*args, **given)
        except TypeError as error:
            raise self._wrong_call(tuple(args), dict(given), error) from None
        return msgspec.json.encode(bound.arguments)

    def _taken(self, data: bytes) -> bytes:
        """Of an offer, what the parameters name. `**kwargs` takes what nothing else does; `*args` has no names to take."""
        try:
            given = msgspec.json.decode(data, type=dict[str, dict[str, msgspec.Raw]])
        except msgspec.DecodeError as error:
            raise PayloadMismatch(f"{self._arguments} are not an offer: {error}") from None
        offered = given.pop("**")
        if given:
            raise PayloadMismatch(f"{self._arguments} are not an offer: {next(iter(given))!r} stands beside it")
        taken: dict[str, Any] = {}
        for p in self._parameters:
            if p.kind not in _VARIADIC and p.name in offered:
                taken[p.name] = offered[p.name]
            elif _is_required(p):
                raise self._not_offered(offered)
        for p in self._parameters:
            if p.kind is Parameter.VAR_KEYWORD:
                taken[p.name] = {name: value for name, value in offered.items() if name not in taken}
        return msgspec.json.encode(taken)

    def _not_offered(self, offered: dict[str, msgspec.Raw]) -> PayloadMismatch:
        missing = [p.name for p in self._parameters if _is_required(p) and p.name not in offered]
        names = sorted(offered)
        shown = ", ".join(names[:OFFERED_SHOWN]) + (
            f" and {len(names) - OFFERED_SHOWN} more" if len(names) > OFFERED_SHOWN else ""
        )
        near = [(m, close[0]) for m in missing if (close := difflib.get_close_matches(m, names, 1))]
        hint = f" Did you mean {near[0][1]!r} to be `{near[0][0]}`?" if near else ""
        return PayloadMismatch(
            f"{self.name}{self._signature} needs {' and '.join(f'`{m}`' for m in missing)}, and was offered "
            f"{shown or 'nothing'}.{hint} Rename the parameter, or say what it gets with `with:`."
        )

    def _gathered(self, data: bytes, rest: str) -> bytes:
        """A call written by hand names what `**kwargs` takes beside the other arguments, as a Python call does."""
        try:
            given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            return data  # the error names what is wrong
        known = {p.name for p in self._parameters}
        more = {name: value for name, value in given.items() if name not in known}
        if not more or rest in given:
            return data
        return msgspec.json.encode({**{n: v for n, v in given.items() if n in known}, rest: more})

    def _unbind(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p, value in zip(self._parameters, values, strict=True):
            if isinstance(value, msgspec.Raw):
                value = self._converters[p.name].decode(bytes(value), f"the argument `{p.name}` of {self.name}()")
            if p.kind in _POSITIONAL:  # a gap is closed with the function's own default, so that order holds
                args.append(p.default if value is _MISSING else value)
            elif value is _MISSING:
                continue
            elif p.kind is Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif p.kind is Parameter.VAR_KEYWORD:
                kwargs.update(value)
            else:
                kwargs[p.name] = value
        return tuple(args), kwargs

    def _require_single_argument(self) -> None:
        try:
            self._signature.bind(None)
        except TypeError as error:
            raise PayloadMismatch(
                f"{self.name}{self._signature} cannot be mapped over items: it must accept one positional argument "
                f"({error}). Wrap it in a function of one argument, such as a dataclass that holds them all."
            ) from None

    def _wrong_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> PayloadMismatch:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as better:  # Python's own wording, which names what is missing or unexpected
            error = better
        return PayloadMismatch(
            f"wrong arguments for {self.name}(): {error}. Its signature is {self.name}{self._signature}."
        )


@functools.lru_cache(maxsize=4096)
def _cached(fn: Callable[..., Any]) -> Signature:
    return Signature(fn)


def _is_required(p: Parameter) -> bool:
    return p.default is Parameter.empty and p.kind not in _VARIADIC


def _annotation(p: Parameter, hints: dict[str, Any]) -> Any:
    hint: Any = hints.get(p.name, Any)
    if p.kind is Parameter.VAR_POSITIONAL:
        return list.__class_getitem__(hint)
    if p.kind is Parameter.VAR_KEYWORD:
        return (
            typing.get_args(hint)[0]
            if typing.get_origin(hint) is typing.Unpack
            else dict.__class_getitem__((str, hint))
        )
    return hint


def _type_hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    target = inspect.unwrap(fn)
    if isinstance(target, functools.partial):
        target = target.func
    if not hasattr(target, "__annotations__"):
        target = type(target).__call__
    # A class that is local to the enclosing function can be named as well, if the function's body uses it.
    nonlocals = dict(inspect.getclosurevars(target).nonlocals) if inspect.isfunction(target) else {}
    try:
        return typing.get_type_hints(target, localns=nonlocals or None, include_extras=True)
    except NameError as error:
        raise InvalidInput(_unresolved(target, name, error)) from error


def _unresolved(fn: Any, name: str, error: NameError) -> str:
    wanted = error.name or ""
    culprits = [n for n, text in fn.__annotations__.items() if isinstance(text, str) and wanted in text]
    where = " and ".join("the result" if n == "return" else f"the parameter `{n}`" for n in culprits) or "an annotation"
    return (
        f"{name}(): the type of {where} cannot be resolved: {error}. A type that is local to a function or imported "
        "under TYPE_CHECKING does not exist at run time; define or import it at module level."
    )
