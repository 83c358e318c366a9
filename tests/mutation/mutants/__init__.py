"""The planted bugs, layer by layer. Each replaces a text that occurs exactly once in its file; a test checks that it does.

They are semantic: a comparison flipped, a condition, a lock or a check dropped, an element lost. One that changes nothing that can be observed
does not belong here. One that survives for a reason that is worth keeping says so in `survives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

LAYERS = ("core", "flows", "engine", "store", "server", "sdk", "executors")


@dataclass(frozen=True)
class Mutant:
    id: str
    """The module and what is wrong with it."""
    file: str
    """Below src/perdure."""
    old: str
    new: str
    tests: str
    """The nearest tests, as pytest takes them, below tests/."""
    survives: str = ""
    """Why no test catches it, and why that is right."""
    layer: str = ""


@cache
def all_mutants() -> tuple[Mutant, ...]:
    return tuple(
        Mutant(m.id, m.file, m.old, m.new, m.tests, m.survives, layer)
        for layer in LAYERS
        for m in import_module(f"{__name__}.{layer}").MUTANTS
    )
