"""Lines of a plan. A line holds its formula in words and in numbers; the numbers can be evaluated as they stand, and a test does."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class PlanLine(msgspec.Struct, frozen=True):
    section: str
    name: str
    value: float
    unit: str
    words: str
    """The formula, in words."""
    numbers: str
    """The formula, in numbers: `+ - * /`, parentheses, `ceil` and `max`."""

    @property
    def shown(self) -> str:
        return f"{number(self.value)} {self.unit}".strip()


class Sheet:
    """Collects the lines of a plan."""

    def __init__(self) -> None:
        self.lines: list[PlanLine] = []
        self._section = ""

    def section(self, title: str) -> None:
        self._section = title

    def add(self, name: str, value: float, unit: str, words: str, numbers: str) -> float:
        self.lines.append(PlanLine(self._section, name, value, unit, words, numbers))
        return value

    def __iter__(self) -> Iterator[PlanLine]:
        return iter(self.lines)


def number(value: float) -> str:
    """With four digits that count, and thousands apart."""
    if value == 0 or (value == int(value) and abs(value) < 1e15):
        return f"{value:,.0f}"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    digits = f"{value:.4g}"
    return digits if "e" not in digits else f"{value:.3e}".replace("e-0", "e-")
