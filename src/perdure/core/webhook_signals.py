"""Which signal a request of a webhook becomes, and the run that gets it, from expressions over `body` and `headers`.

    signal  the name of the signal
    run     a text with expressions: "key:order-${ body.order_id }", or the id of a run
    value   an expression: `body.amount`. None: the body
    start   a workflow: a run of it begins under that key, unless one is active there
    input   an expression for its input; an object has the arguments by name. None: no arguments

Laws:

1. What cannot be evaluated over a request is InvalidInput, for that request alone.
2. A request names one run, exactly: the key of a run or a whole id, never the beginning of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.named_events import SignalTarget
from perdure.core.errors import ExprError, InvalidInput
from perdure.core.names import checked_name, shown
from perdure.core.webhook_events import (
    bounded_meter,
    check_length,
    check_roots,
    delivery_key,
    expression_of,
    template_of,
)

_RUN_ID: Final = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")


class WebhookSignal(msgspec.Struct, frozen=True):
    """The signal of one request."""

    run: str
    """`key:` and the key of a run, or its id."""
    value: Any
    input: Any
    """Of the run that it starts."""
    key: str
    """Of the message: a repeated delivery has the same."""

    @property
    def run_key(self) -> str:
        return self.run.removeprefix(KEY_PREFIX)


def check_target(target: SignalTarget) -> None:
    """InvalidInput for a target that no request can reach."""
    if not target.signal:
        raise InvalidInput("run, value, start and input describe a signal. Give its name as signal.")
    checked_name("signal", target.signal)
    if not target.run:
        raise InvalidInput(f"run: the signal {target.signal!r} needs a run. Use {KEY_PREFIX}KEY or the id of a run.")
    try:
        template = template_of(check_length("run", target.run))
    except ExprError as e:
        raise InvalidInput(f"run: {e}") from None
    check_roots("run", template.roots)
    if template.is_constant:
        _check_run(template.constant)
    for name, text in (("value", target.value), ("input", target.input)):
        _check_expression(name, text)
    if not target.start:
        if target.input:
            raise InvalidInput("input: only a started run has an input. Give start, the name of its workflow, too.")
        return
    checked_name("workflow", target.start)
    if not target.run.startswith(KEY_PREFIX):
        raise InvalidInput(
            f"run: a run can be started only under a key: {target.run[:50]!r}. Begin with {KEY_PREFIX!r}."
        )


def _check_expression(name: str, text: str) -> None:
    if not text:
        return
    try:
        expr = expression_of(check_length(name, text))
    except ExprError as e:
        raise InvalidInput(f"{name}: {e}") from None
    check_roots(name, expr.roots)


def signal_of(
    webhook: str, target: SignalTarget, key: str, request: Mapping[str, Any], fingerprint: str
) -> WebhookSignal:
    """`request`: `body` and `headers` of a request whose signature holds."""
    scope, meter = request.__getitem__, bounded_meter()

    def value_of(text: str) -> Any:
        return expression_of(text).evaluate(scope, meter) if text else None

    try:
        run = _run_of(target.run, scope)
        value = value_of(target.value) if target.value else request["body"]
        given, ident = value_of(target.input), value_of(key)
    except ExprError as e:
        raise InvalidInput(f"the signal of this request can't be evaluated: {e}") from None
    return WebhookSignal(run, value, given, delivery_key(webhook, key, ident, fingerprint))


def _run_of(text: str, scope: Callable[[str], Any]) -> str:
    template, meter = template_of(text), bounded_meter()
    if any(part.evaluate(scope, meter) in (None, "") for part in template.exprs):
        raise InvalidInput(f"the request has no value for its run: {text}")
    return _check_run(template.evaluate(scope, meter))


def _check_run(run: Any) -> str:
    if isinstance(run, str) and run.startswith(KEY_PREFIX):
        checked_name("key", run.removeprefix(KEY_PREFIX))
        return run
    if isinstance(run, str) and _RUN_ID.fullmatch(run):
        return run
    raise InvalidInput(f"invalid run: {shown(str(run))}. Use {KEY_PREFIX}KEY or the whole id of a run.")
