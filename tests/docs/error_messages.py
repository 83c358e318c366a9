"""The messages that the source can give to each error code, as patterns: an example in the docs must be one of them.

Read from the calls of error classes and of `Failure`: literal text, f-strings with any text for their values, and conditional choices.
Names that hold a text in the same module are followed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from perdure.core.errors import error_classes

SOURCE = Path(__file__).parents[2] / "src" / "perdure"


@cache
def messages() -> dict[str, list[str]]:
    """Code -> patterns."""
    codes = {cls.__name__: cls.code for cls in error_classes()}
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        if "pb" in file.parts:
            continue
        tree = ast.parse(file.read_text())
        texts = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            for code, argument in _subjects(call, codes):
                found[code] += [pattern for pattern in _patterns(argument, texts) if re.sub(r"\.\*\??|\W", "", pattern)]
    return dict(found)


def _subjects(call: ast.Call, codes: dict[str, str]) -> list[tuple[str, ast.expr]]:
    """(code, the expression of its message) of a call that makes an error."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in codes and call.args:
        return [(codes[name], argument) for argument in call.args[:2]]
    literal = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return [(literal[0], argument) for argument in call.args[1:3]] if literal and len(call.args) > 1 else []


def _patterns(node: ast.expr, texts: dict[str, ast.expr], depth: int = 0) -> list[str]:
    if isinstance(node, ast.Constant):
        return [re.escape(node.value)] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(re.escape(v.value) if isinstance(v, ast.Constant) else ".*?" for v in node.values)]
    if isinstance(node, ast.IfExp):
        return _patterns(node.body, texts, depth) + _patterns(node.orelse, texts, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _patterns(node.left, texts, depth) or [".*?"], _patterns(node.right, texts, depth) or [".*?"]
        return [a + b for a in left for b in right]
    if isinstance(node, ast.Name) and node.id in texts and depth < 3:
        return _patterns(texts[node.id], texts, depth + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return [re.sub(r"\\\{.*?\\\}", ".*?", p) for p in _patterns(node.func.value, texts, depth)]
    return []


@cache
def _texts() -> list[tuple[str, str]]:
    """(longest literal part, pattern) of every text of the source that is long enough to be a message."""
    found: set[str] = set()
    for file in sorted(SOURCE.rglob("*.py")):
        if "pb" not in file.parts:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, (ast.Constant, ast.JoinedStr)):
                    found.update(p for p in _patterns(node, {}) if len(re.sub(r"\.\*\?|\W", "", p)) > 8)
    return [
        (max((re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in p.split(".*?")), key=len), p) for p in found
    ]


def can_be_printed(code: str, example: str) -> bool:
    """Whether a call that makes an error of this code, or else any text of the source, has this form."""
    if any(re.fullmatch(p, example, re.DOTALL) for p in messages().get(code, ())):
        return True
    return any(literal in example and re.fullmatch(p, example, re.DOTALL) for literal, p in _texts())
