"""What a decision still has to do, and what it has cost so far.

Costs are counted in steps of expressions and never in time: they decide how commands are batched, and a replay has to make the same batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from perdure.core.errors import Failure
from perdure.core.expressions import Expr, ExprError
from perdure.core.expressions.nodes import Fault, Meter
from perdure.core.expressions.template import Template
from perdure.core.limits import EXPR_STEPS_MAX
from perdure.flows.decide.frames import Scope, Trouble
from perdure.flows.decide.values import JsonValue

FILL_STEPS: Final = 30_000
"""Steps of expressions after which one step of the decision starts no further execution, and the pending tasks are scheduled."""
ITEM_STEPS: Final = 50
"""Cost of one step of a decision besides its expressions."""
READ_STEP_BYTES: Final = 32
"""Bytes of an output whose decoding counts as one step."""
READ_FREE_BYTES: Final = 64 * 1024
"""Up to this size an output costs nothing once it has been decoded."""


class Agenda:
    def __init__(self) -> None:
        self._todo: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.meter = Meter()
        """Of the step that is being made; renewed with every step."""
        self.spent = 0
        """Steps of the decision so far: everything that follows from one record."""
        self.cost = 0
        """Of the step that is being made, up to the last `renew`."""

    @property
    def is_empty(self) -> bool:
        return not self._todo

    def begin_record(self) -> None:
        self.spent = 0

    def later(self, act: Callable[..., None], *args: Any) -> None:
        """Do it after what is being done; nothing recurses."""
        self._todo.append((act, args))

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        """Do it now, or later if this step has already cost much. Its expressions have steps of their own."""
        self.charge()
        if self.cost > FILL_STEPS:
            self.later(act, *args)
        else:
            act(*args)

    def charge(self) -> bool:
        """Add the cost since the last call to the step. True: the step has cost enough."""
        self.cost += self.renew()
        return self.cost > FILL_STEPS

    def renew(self) -> int:
        """What comes next has steps of its own. Returns the cost since the last call."""
        cost = self.meter.renew() + ITEM_STEPS
        self.spent += cost
        return cost

    def end_step(self) -> None:
        self.renew()
        self.cost = 0

    def run(self, is_up: Callable[[], bool], steps_max: int) -> bool:
        """Work through the agenda. False: the time is up, or the decision has taken more than `steps_max`."""
        todo, meter = self._todo, self.meter
        steps = 0
        while todo:
            act, args = todo.popleft()
            act(*args)
            steps += 1
            if meter.steps < EXPR_STEPS_MAX or self.cost:
                self.end_step()
            elif steps & 7:
                continue
            else:
                self.spent += 8 * ITEM_STEPS
            if self.spent > steps_max or is_up():
                return False
        return True

    def evaluate(self, what: Template | Expr, scope: Scope) -> Any:
        try:
            return what.evaluate(scope, self.meter)
        except ExprError as e:
            raise Trouble(e.to_failure()) from None

    def read(self, value: JsonValue) -> Any:
        """An output as an object; a large one costs steps."""
        if value.size >= READ_STEP_BYTES:
            cost = value.undecoded // READ_STEP_BYTES + (value.size >> 8 if value.size > READ_FREE_BYTES else 0)
            try:
                self.meter.spend(cost)
            except Fault as e:
                message = f"reading an output of {value.size} bytes: {e}"
                raise Trouble(Failure("expression_error", message)) from None
        return value.obj
