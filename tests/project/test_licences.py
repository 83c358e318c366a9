"""The licence of every dependency is known, and those that are always installed allow what Apache-2.0 allows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def tool() -> ModuleType:
    file = Path(__file__).parents[2] / "tools" / "licences.py"
    spec = importlib.util.spec_from_file_location("licences", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["licences"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


licences = tool()


def test_what_is_always_installed_has_an_allowed_licence() -> None:
    found = licences.packages()
    assert {p.name for p in found if p.of == "perdure-core"} > {"asyncpg", "msgspec"}
    assert [(p.name, p.said) for p in found if p.is_required and not p.is_allowed] == []


def test_the_licence_of_every_extra_is_known() -> None:
    assert [(p.name, p.said) for p in licences.packages() if not p.licences] == []


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ({"License-Expression": "MIT"}, True),
        ({"License-Expression": "GPL-3.0-only OR Apache-2.0"}, True),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, False),
        ({"License-Expression": "AGPL-3.0-or-later"}, False),
        ({"License": "BSD"}, True),
        ({"License": "GNU General Public License v3"}, False),
        ({"License": "", "Classifier": ["License :: OSI Approved :: MIT License"]}, True),
        ({"Classifier": ["License :: OSI Approved :: GNU Affero General Public License v3"]}, False),
        ({"License": "Proprietary"}, False),
        ({}, False),
    ],
)
def test_an_unknown_or_a_copyleft_licence_is_refused(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], allowed: bool
) -> None:
    class About(dict[str, Any]):
        def get_all(self, name: str, default: Any = None) -> Any:
            return self.get(name, default)

    monkeypatch.setattr(licences, "metadata", lambda name: About(said))
    assert licences._package("x", "perdure", {"x": {"version": "1"}}).is_allowed is allowed
