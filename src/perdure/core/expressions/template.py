"""Values with expressions inside: `{"day": "${ input.day }", "note": "day ${ input.day } of 7"}`.

Laws:
- A string that is exactly one `${ expression }` becomes the expression's value, with its type. With text around, it becomes text: null
  is nothing, strings are as they are, everything else is JSON. `$${` is a literal `${`. Keys take no expressions.
- Parts without expressions are constants: every evaluation hands out the same objects. So are values that an expression reads from the
  scope. Do not change a result; copy what you want to change.
- evaluate raises ExprError and nothing else, and its result weighs no more than TEMPLATE_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perdure.core.expressions import Expr, ExprError, Path, Scope, parse_at
from perdure.core.expressions.nodes import Fault, Get, Meter, Root
from perdure.core.expressions.operators import text_of, weigh
from perdure.core.limits import TEMPLATE_BYTES_MAX
from perdure.core.payloads import inside
from perdure.core.secrets import KEY as SECRET_KEY
from perdure.core.secrets import SecretPlace

TEMPLATE_DEPTH_MAX: Final = 100
"""Lists and objects within each other."""
_READS_UNWEIGHED: Final = 8
"""A template that reads no more often than this cannot swell by much, and its result is not weighed: weighing costs more than all else."""

SECRET: Final = "secret"
"""The root of `secret.NAME`, which no scope has: secrets are taken out of a template before it is evaluated."""

Fill = Callable[[Scope, Meter], Any]


class _Text(msgspec.Struct, frozen=True):
    """A string with expressions in it."""

    parts: tuple[str | Expr, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Template:
    """A compiled value. Immutable. Make it with `make`, `of` or `literal`."""

    form: Any
    """The value with expressions in place of their text."""
    is_constant: bool
    exprs: tuple[Expr, ...]
    places: tuple[Path, ...]
    """Where in the value each of them stands."""
    roots: frozenset[str]
    fill: Fill
    weighed: bool

    @staticmethod
    def make(value: Any) -> Template:
        return make(value)

    @staticmethod
    def of(expr: Expr) -> Template:
        return of(expr)

    @staticmethod
    def literal(value: Any) -> Template:
        return literal(value)

    @property
    def constant(self) -> Any:
        """The value of a constant template."""
        assert self.is_constant, "only a template without expressions has a value of its own"
        return self.form

    def evaluate(self, scope: Scope, meter: Meter | None = None) -> Any:
        """Its value. Raises ExprError. All its expressions share the meter: one of its own, unless it is given."""
        try:
            value = self.fill(scope, Meter() if meter is None else meter)
        except RecursionError:
            raise ExprError("the value does not fit on the stack here") from None
        if self.weighed and weigh(value, None, TEMPLATE_BYTES_MAX) > TEMPLATE_BYTES_MAX:
            raise _too_large()
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and bool(self.form == other.form)

    def __hash__(self) -> int:
        return hash(self.exprs)

    def __repr__(self) -> str:
        return f"Template({self.form!r})"


def make(value: Any) -> Template:
    """From a JSON value whose strings may hold `${ }`. An error's `path` says which string, its `offset` where in it."""
    found: list[tuple[Path, Expr]] = []
    return _template(_form(value, (), found), found)


def of(expr: Expr) -> Template:
    """The value of one expression."""
    return _template(expr, [((), expr)])


def literal(value: Any) -> Template:
    """A value that is what it is, `${` and all."""
    return Template(value, True, (), (), frozenset(), lambda scope, meter: value, False)


def secret_name(expr: Expr) -> str | None:
    """The NAME of `secret.NAME`; None for every other expression."""
    tree = expr.tree
    if isinstance(tree, Get) and isinstance(tree.base, Root) and tree.base.name == SECRET and len(tree.steps) == 1:
        name = tree.steps[0]
        return name if isinstance(name, str) else None
    return None


def without_secrets(made: Template) -> tuple[Template, tuple[SecretPlace, ...]]:
    """The template with references in the place of `secret.NAME`, and where they stand (core/secrets.py)."""
    places: list[SecretPlace] = []
    form = _referring(made.form, (), places)
    found = [pair for pair in zip(made.places, made.exprs, strict=True) if secret_name(pair[1]) is None]
    return _template(form, found), tuple(places)


def _referring(form: Any, path: Path, places: list[SecretPlace]) -> Any:
    if isinstance(form, dict):
        return {key: _referring(value, (*path, key), places) for key, value in form.items()}
    if isinstance(form, list):
        return [_referring(value, (*path, n), places) for n, value in enumerate(form)]
    parts: tuple[str | Expr, ...] = (form,) if isinstance(form, Expr) else form.parts if isinstance(form, _Text) else ()
    names = tuple(name for part in parts if isinstance(part, Expr) and (name := secret_name(part)) is not None)
    if not names:
        return form
    places.append(SecretPlace(path, names))
    return {SECRET_KEY: names[0] if len(parts) == 1 else _in_turn(parts)}


def _in_turn(parts: tuple[str | Expr, ...]) -> list[Any]:
    """Text, name, text, name ... text."""
    out: list[Any] = []
    text: list[str | Expr] = []
    for part in parts:
        name = secret_name(part) if isinstance(part, Expr) else None
        if name is None:
            text.append(part)
        else:
            out += [_joined(text), name]
            text = []
    return [*out, _joined(text)]


def _joined(parts: list[str | Expr]) -> Any:
    if any(isinstance(part, Expr) for part in parts):
        return _Text(tuple(parts))
    return "".join(part for part in parts if isinstance(part, str))


def _template(form: Any, found: list[tuple[Path, Expr]]) -> Template:
    if not found:
        return literal(form)
    exprs = tuple(expr for _, expr in found)
    places = tuple(path for path, _ in found)
    roots = frozenset[str]().union(*(expr.roots for expr in exprs))
    swells = sum(expr.reads for expr in exprs) > _READS_UNWEIGHED
    return Template(form, False, exprs, places, roots, _fill(form), swells)


def _too_large() -> ExprError:
    return ExprError(f"the value would have more than {TEMPLATE_BYTES_MAX} bytes; pass a reference to it instead")


def _form(value: Any, path: Path, found: list[tuple[Path, Expr]]) -> Any:
    if len(path) > TEMPLATE_DEPTH_MAX:
        raise ExprError(f"the value is nested more than {TEMPLATE_DEPTH_MAX} deep", path=path[:4])
    if isinstance(value, str):
        return _string(value, path, found)
    if isinstance(value, Mapping):
        out: dict[str, Any] = {}
        for key, inner in value.items():
            if "${" in str(key):
                raise ExprError(
                    "keys take no expressions; use merge() in an expression for the whole object",
                    path=(*path, str(key)),
                )
            out[key] = _form(inner, (*path, str(key)), found)
        return out
    if isinstance(value, list | tuple):
        return [_form(inner, (*path, index), found) for index, inner in enumerate(value)]
    return value


def _string(value: str, path: Path, found: list[tuple[Path, Expr]]) -> Any:
    if "${" not in value:
        return value
    try:
        parts = _parts(value)
    except ExprError as exc:
        exc.path = path
        raise
    exprs = [part for part in parts if isinstance(part, Expr)]
    found.extend((path, expr) for expr in exprs)
    if not exprs:
        return "".join(part for part in parts if isinstance(part, str))
    return exprs[0] if len(parts) == 1 else _Text(tuple(parts))


def _parts(value: str) -> list[str | Expr]:
    """Text and expressions in turn, without empty texts."""
    out: list[str | Expr] = []
    plain: list[str] = []
    at = 0
    while (mark := value.find("${", at)) >= 0:
        if mark > at and value[mark - 1] == "$":
            plain.append(value[at : mark - 1] + "${")
            at = mark + 2
            continue
        plain.append(value[at:mark])
        if text := "".join(plain):
            out.append(text)
        plain = []
        expr, at = parse_at(value, mark + 2)
        out.append(expr)
    plain.append(value[at:])
    if text := "".join(plain):
        out.append(text)
    return out


def _fill(form: Any) -> Fill:
    if isinstance(form, Expr):
        return _fill_expr(form)
    if isinstance(form, _Text):
        return _fill_text(form)
    if isinstance(form, dict):
        return _fill_object(form)
    if isinstance(form, list):
        return _fill_list(form)
    return lambda scope, meter: form


def _fill_expr(expr: Expr) -> Fill:
    return expr.run


def _fill_text(form: _Text) -> Fill:
    parts = [part if isinstance(part, str) else part.run for part in form.parts]
    whole = "".join(part if isinstance(part, str) else f"${{ {part.text} }}" for part in form.parts)

    def fill(scope: Scope, meter: Meter) -> str:
        try:
            texts = [part if isinstance(part, str) else text_of(inside(part(scope, meter)), meter) for part in parts]
        except Fault as fault:
            raise ExprError(str(fault), 0, whole) from None
        if sum(map(len, texts)) > TEMPLATE_BYTES_MAX:
            raise _too_large()
        return "".join(texts)

    return fill


def _fill_object(form: dict[str, Any]) -> Fill:
    # A copy of the constants, with places kept for the rest, keeps the order as written.
    base = {key: None if _varies(value) else value for key, value in form.items()}
    varying = [(key, _fill(value)) for key, value in form.items() if _varies(value)]

    def fill(scope: Scope, meter: Meter) -> dict[str, Any]:
        out: dict[str, Any] = base.copy()
        for key, run in varying:
            out[key] = run(scope, meter)
        return out

    return fill


def _fill_list(form: list[Any]) -> Fill:
    base = [None if _varies(value) else value for value in form]
    varying = [(index, _fill(value)) for index, value in enumerate(form) if _varies(value)]

    def fill(scope: Scope, meter: Meter) -> list[Any]:
        out: list[Any] = base.copy()
        for index, run in varying:
            out[index] = run(scope, meter)
        return out

    return fill


def _varies(form: Any) -> bool:
    if isinstance(form, dict):
        return any(map(_varies, form.values()))
    if isinstance(form, list):
        return any(map(_varies, form))
    return isinstance(form, Expr | _Text)
