"""JSON values that are decoded and encoded on demand, at most once each."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core.payloads import MARK, any_by_reference, decode_tree, encode_tree, without_contents

_UNKNOWN: Final[Any] = object()


class JsonValue(msgspec.Struct, eq=False, gc=False):
    """One JSON value, as bytes, as objects, or both. The object that `obj` returns must not be changed."""

    _raw: bytes | None = None
    _obj: Any = _UNKNOWN

    @classmethod
    def of(cls, obj: Any) -> JsonValue:
        return cls(None, obj)

    @classmethod
    def list_of(cls, parts: list[bytes]) -> JsonValue:
        if any_by_reference(parts):
            return cls.of([decode_tree(part) for part in parts])
        return cls(b"[" + b",".join(parts) + b"]")

    @property
    def undecoded(self) -> int:
        """Bytes that `obj` will have to decode."""
        return len(self._raw) if self._obj is _UNKNOWN and self._raw is not None else 0

    @property
    def size(self) -> int:
        """Bytes, as far as they are known."""
        return len(self._raw) if self._raw is not None else 0

    @property
    def obj(self) -> Any:
        if self._obj is _UNKNOWN:
            assert self._raw is not None
            self._obj = decode_tree(self._raw) if self._raw else None
        return self._obj

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = encode_tree(self._obj)
        elif self._raw.startswith(MARK):
            return without_contents(self._raw)
        return self._raw or b"null"


NULL: Final = JsonValue(b"null", None)


def written(state: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of the state with a value at a dotted path; values in its way are replaced by objects."""
    out = dict(state)
    at = out
    for key in path[:-1]:
        inner: Any = at.get(key)
        copy: dict[str, Any] = dict(inner) if isinstance(inner, dict) else {}
        at[key] = copy
        at = copy
    at[path[-1]] = value
    return out
