"""What was tried: how often each act was done, and which kinds of messages its run had been sent by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

KINDS: Final = (
    "signal",
    "signal_with_start",
    "promise",
    "vote",
    "link",
    "delegation",
    "update",
    "event",
    "cancel",
)
ENDINGS: Final = (
    "succeeds",
    "fails",
    "cancelled",
    "terminated",
    "continues",
    "retry",
    "fork",
    "fork+edit",
    "rerun",
    "stuck+resume",
    "pause+resume",
    "version move",
    "delete",
    "retention",
    "export+import",
)
WHY_NOT: Final = {
    ("cancel", "stuck+resume"): "a run that was asked to stop and is stuck is not resumed by a story",
}
"""Pairs that no story can have, and why."""


class Tally(msgspec.Struct):
    acts: Counter[str] = msgspec.field(default_factory=Counter)
    styles: Counter[str] = msgspec.field(default_factory=Counter)
    doors: Counter[str] = msgspec.field(default_factory=Counter)
    kills: int = 0
    pairs: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    races: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Pairs in which the message was on its way while the act was."""

    def pair(self, kinds: Iterable[str], act: str, on_the_way: Iterable[str] = ()) -> None:
        assert act in ENDINGS, act
        self.pairs.update((kind, act) for kind in kinds)
        self.races.update((kind, act) for kind in on_the_way)

    def missing(self) -> list[str]:
        return [f"{k} x {a}" for k in KINDS for a in ENDINGS if not self.pairs[k, a] and (k, a) not in WHY_NOT]

    def __str__(self) -> str:
        wide = max(map(len, KINDS))
        lines = [f"{'sent before + meanwhile':>{wide}}  " + "  ".join(ENDINGS)]
        for k in KINDS:
            cells = (f"{self.pairs[k, a]}+{self.races[k, a]}".rjust(len(a)) for a in ENDINGS)
            lines.append(f"{k:>{wide}}  " + "  ".join(cells))
        for name, counted in (("acts", self.acts), ("styles", self.styles), ("doors", self.doors)):
            lines.append(f"{name}: " + ", ".join(f"{what} {n}" for what, n in counted.most_common()))
        lines.append(f"kills: {self.kills}")
        lines.append("never tried: " + (", ".join(self.missing()) or "nothing"))
        return "\n".join(lines)
