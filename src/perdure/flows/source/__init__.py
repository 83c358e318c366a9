"""Text to a document: strict YAML 1.2 (core schema) or JSON, with the place of every key and value.

Laws:

1. What comes out is JSON: objects with text keys, lists, text, numbers, true, false, null. Only what the core schema calls a number,
   a boolean or a null is one; `on`, `yes`, `12:30` and dates stay text.
2. Nothing is guessed: tags, merge keys, duplicate keys, keys that are no text and second documents are refused.
3. Everything is bounded: bytes, depth and nodes, with an alias counted as what it stands for.

The tree is built from the parser's events in one loop, never by recursion, so that depth is ours to limit. JSON text has a scanner of
its own: YAML has other ideas about surrogates, line separators and long keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml
from yaml.error import MarkedYAMLError

from perdure.core.limits import DOCUMENT_BYTES_MAX
from perdure.flows.problems import DocumentProblem, FlowError
from perdure.flows.source.document import BREAK, Document, Spot, Tree
from perdure.flows.source.json_text import JsonSource

_LOADER: Any = getattr(yaml, "CLoader", yaml.Loader)
_UNREADABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMBER_START: Final = frozenset("0123456789+-.")
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_ANCHOR = re.compile(r"&[^\s]+[ \t]+")
_JSON_BEGIN = re.compile(r"[ \t\r\n]*[{\[]")
_EXPLAINED: Final = {
    "mapping values are not allowed": "put quotes around a value that holds a colon and a space, or check the indentation",
    "could not find expected ':'": "a key needs a colon behind it; check the indentation",
    "cannot start any token": "put quotes around text that begins with this character",
    "did not find expected key": "check the indentation of this line and the one above it",
    "did not find expected '-' indicator": "check the indentation of this line and the one above it",
    "unexpected end of stream": "a quote is not closed",
    "did not find expected ',' or": "a bracket is not closed, or a comma is missing",
}


def read(text: str | bytes, *, name: str = "<flow>") -> Document:
    """Read a document. FlowError with every problem found."""
    whole = _decoded(text, name)
    if _JSON_BEGIN.match(whole):
        document = JsonSource(whole, name).json()
        if document is not None:
            return document
    return YamlSource(whole, name).yaml()


def _decoded(text: str | bytes, name: str) -> str:
    if isinstance(text, str):
        size = len(text) if len(text) > DOCUMENT_BYTES_MAX else len(text.encode("utf-8", "replace"))
    else:
        size = len(text)
    if size > DOCUMENT_BYTES_MAX:
        _refuse(name, f"the document has more than DOCUMENT_BYTES_MAX={DOCUMENT_BYTES_MAX} bytes")
    whole = text if isinstance(text, str) else _utf8(text, name)
    return whole.removeprefix("\ufeff")


def _utf8(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        before = BREAK.split(data[: e.start].decode("utf-8"))
        _refuse(
            name, f"byte 0x{data[e.start]:02x} is not UTF-8", len(before), len(before[-1]) + 1, "save the file as UTF-8"
        )


def _refuse(name: str, message: str, line: int = 1, column: int = 1, hint: str = "") -> NoReturn:
    raise FlowError([DocumentProblem(file=name, message=message, line=line, column=column, hint=hint)])


class YamlSource(Tree):
    def yaml(self) -> Document:
        self.begin()
        for m in _UNREADABLE.finditer(self.text):
            line, column = self.at(m.start())
            code = f"U+{ord(m.group()):04X}"
            self.problem(
                line, column, f"the character {code} may not stand in YAML", 'write it as an escape in "double quotes"'
            )
        if self.problems:
            raise FlowError(self.problems)
        documents = 0
        for event in self._events():
            mark = event.start_mark
            # The parser may count a line more than there is, for what is missing at the end.
            line, column = min(mark.line + 1, len(self.lines)), mark.column + 1
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._check_tag(event, line, column)
                self._yaml_scalar(event, line, column)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._check_tag(event, line, column)
                self.open(Spot(line, column), mapping=kind is yaml.MappingStartEvent, anchor=event.anchor)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self.close()
            elif kind is yaml.AliasEvent:
                self.alias(event.anchor, Spot(line, column))
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self.fatal(line, column, "a second document begins here", "put every flow in a file of its own")
                if event.version not in {None, (1, 2)}:
                    self.problem(line, column, "documents are read as YAML 1.2", "remove the %YAML line")
        return self.document()

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self.text, Loader=_LOADER)
        except MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self._syntax(line, column, e)
        except (yaml.YAMLError, ValueError) as e:
            self.fatal(1, 1, f"this is not YAML: {str(e).splitlines()[0][:200]}")

    def _syntax(self, line: int, column: int, e: MarkedYAMLError) -> NoReturn:
        problem = e.problem or "it cannot be read"
        shown = self.lines[line - 1] if line <= len(self.lines) else ""
        if "\t" in shown[: len(shown) - len(shown.lstrip())]:
            self.fatal(line, column, "a tab indents this line", "YAML is indented with spaces")
        said = f"this is not YAML: {problem}"
        if e.context:
            begun = f" that begins on line {e.context_mark.line + 1}" if e.context_mark else ""
            said += f" ({e.context}{begun})"
        self.fatal(line, column, said, next((h for p, h in _EXPLAINED.items() if p in problem), ""))

    def _check_tag(self, event: Any, line: int, column: int) -> None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")[:100]
            self.problem(
                line,
                column,
                f"the tag {tag} is refused",
                "put quotes around what is to be text; nothing else has a tag",
            )

    def _yaml_scalar(self, event: Any, line: int, column: int) -> None:
        start, end = event.start_mark, event.end_mark
        spot = Spot(line, column)
        if start.line == end.line < len(self.lines):
            raw = self.lines[start.line][start.column : end.column]
            if event.anchor is not None and (m := _ANCHOR.match(raw)) is not None:
                spot.column += m.end()
                raw = raw[m.end() :]
            spot.raw = raw
        elif event.style == "|":
            spot.raw = "|" + event.value
        plain = not event.style
        value = self._typed(event.value, spot) if plain else event.value
        self.scalar(value, spot, event.anchor, plain=plain)

    def _typed(self, text: str, spot: Spot) -> Any:
        """What a plain scalar is in the core schema."""
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if text[0] not in _NUMBER_START:
            return text
        if _INTEGER.match(text):
            return self.integer(text, 10, spot)
        if _BASED.match(text):
            return self.integer(text[2:], 8 if text[1] == "o" else 16, spot)
        if _FLOAT.match(text):
            return self.float(text, spot)
        if _NOT_FINITE.match(text):
            self.problem(
                spot.line, spot.column, f"{text} is not a number in JSON", "put quotes around it if it is text"
            )
            return 0
        return text
