"""Writes the JSON files of this folder from the conformance tests of CEL: `python convert.py CEL_SPEC COMMIT`.

CEL_SPEC is a directory with a copy of https://github.com/google/cel-spec. The tests are protobuf in text form; only as much of that form is
read here as they use. A case that needs a protobuf message cannot be asked of a language of JSON values and is left out, by name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
FILES: Final = (
    "basic",
    "comparisons",
    "conversions",
    "fields",
    "fp_math",
    "integer_math",
    "lists",
    "logic",
    "macros",
    "parse",
    "plumbing",
    "string",
    "timestamps",
)
TOKEN: Final = re.compile(
    r"""\s*(?:\#[^\n]*\n\s*)*(?:
      (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<type>\[[\w./]+\])
    | (?P<word>[\w.+-]+)
    | (?P<symbol>[{}:,;<>\[\]])
    )""",
    re.VERBOSE,
)
ESCAPE: Final = re.compile(
    rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
ESCAPED: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
MESSAGES: Final = re.compile(r"TestAllTypes|google\.protobuf\.|GlobalEnum|NestedTestAllTypes|cel\.expr\.")
TIMES: Final = {"google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration"}

Message = dict[str, list[Any]]


class NeedsMessage(Exception):
    """The case has a value that only protobuf has."""


def tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while match := TOKEN.match(text, at):
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()
    assert not re.sub(r"#[^\n]*", "", text[at:]).strip(), f"cannot read {text[at : at + 80]!r}"
    yield "end", ""


def unquoted(text: str) -> bytes:
    def replaced(found: re.Match[bytes]) -> bytes:
        if found[1]:
            return bytes([int(found[1], 16)])
        if found[2]:
            return bytes([int(found[2], 8)])
        if found[3] or found[4]:
            return chr(int(found[3] or found[4], 16)).encode()
        return ESCAPED.get(found[5], found[5])

    return ESCAPE.sub(replaced, text[1:-1].encode())


class Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._next = 0

    def message(self, closing: str = "") -> Message:
        out: Message = {}
        while True:
            kind, text = self._take()
            if text == closing and kind in ("symbol", "end"):
                return out
            if text in (",", ";"):
                continue
            name = text[1:-1].rpartition("/")[2] if kind == "type" else text
            out.setdefault(name, []).extend(self._value())

    def _value(self) -> list[Any]:
        kind, text = self._take()
        if text == ":":
            kind, text = self._take()
        if kind == "symbol" and text in "{<":
            return [self.message("}" if text == "{" else ">")]
        if kind == "symbol" and text == "[":
            out: list[Any] = []
            while self._tokens[self._next][1] != "]":
                if self._tokens[self._next][1] == ",":
                    self._take()
                else:
                    out += self._value()
            self._take()
            return out
        if kind == "string":
            whole = unquoted(text)
            while self._tokens[self._next][0] == "string":
                whole += unquoted(self._take()[1])
            return [whole]
        return [text]

    def _take(self) -> tuple[str, str]:
        self._next += 1
        return self._tokens[self._next - 1]


def text_of(message: Message, field: str) -> str:
    found = message.get(field, [b""])[0]
    return found.decode() if isinstance(found, bytes) else str(found)


def value_of(message: Message) -> Any:
    """A value with its kind where JSON does not tell: `{"double": 1.0}`. Strings, booleans, null, lists and integers stand for themselves."""
    ((kind, (value, *_)),) = message.items()
    match kind:
        case "int64_value":
            return int(value)
        case "uint64_value":
            return {"uint": int(value)}
        case "double_value":
            return {"double": value if value.lstrip("-").lower() in ("inf", "infinity", "nan") else float(value)}
        case "string_value":
            return value.decode()
        case "bytes_value":
            return {"bytes": value.hex()}
        case "bool_value":
            return value == "true"
        case "null_value":
            return None
        case "type_value":
            return {"type": value.decode()}
        case "list_value":
            return [value_of(one) for one in value.get("values", [])]
        case "map_value":
            return {"map": [[value_of(e["key"][0]), value_of(e["value"][0])] for e in value.get("entries", [])]}
        case "object_value":
            return object_of(value)
        case _:
            raise NeedsMessage(kind)


def object_of(message: Message) -> Any:
    ((name, (fields, *_)),) = message.items()
    if name not in TIMES:
        raise NeedsMessage(name)
    return {TIMES[name]: [int(fields.get("seconds", ["0"])[0]), int(fields.get("nanos", ["0"])[0])]}


def case_of(section: str, test: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"name": f"{section}/{text_of(test, 'name')}", "expr": text_of(test, "expr")}
    if (
        MESSAGES.search(out["expr"])
        or "container" in test
        or any(MESSAGES.search(repr(t)) for t in test.get("type_env", []))
    ):
        raise NeedsMessage(out["expr"])
    bound = {text_of(b, "key"): value_of(b["value"][0]["value"][0]) for b in test.get("bindings", [])}
    if bound:
        out["bindings"] = bound
    if "eval_error" in test or "any_eval_errors" in test:
        out["error"] = True
    elif "value" in test:
        out["value"] = value_of(test["value"][0])
    elif "typed_result" in test:
        out["value"] = value_of(test["typed_result"][0]["result"][0])
    else:
        out["value"] = True
    return out


def converted(text: str) -> dict[str, Any]:
    file = Reader(text).message()
    cases: list[dict[str, Any]] = []
    left_out: list[str] = []
    for section in file.get("section", []):
        for test in section.get("test", []):
            try:
                cases.append(case_of(text_of(section, "name"), test))
            except NeedsMessage:
                left_out.append(f"{text_of(section, 'name')}/{text_of(test, 'name')}")
    return {"left_out": left_out, "cases": cases}


def written(found: dict[str, Any], commit: str) -> str:
    """One case on a line."""
    cases = ",\n".join("  " + json.dumps(case, ensure_ascii=True) for case in found["cases"])
    left_out = json.dumps(found["left_out"])
    return f'{{"commit": "{commit}",\n "left_out": {left_out},\n "cases": [\n{cases}\n]}}\n'


def main(spec: Path, commit: str) -> None:
    for name in FILES:
        found = converted((spec / "tests" / "simple" / "testdata" / f"{name}.textproto").read_text())
        (HERE / f"{name}.json").write_text(written(found, commit))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
