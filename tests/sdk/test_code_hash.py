"""The version of a Python workflow is a hash of its code and of what it imports from its package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.sdk.code_hash import code_hash

PACKAGE = {
    "__init__.py": "",
    "flows.py": "from . import steps\nfrom hashed_pkg.deep.one import ONE\n\n\nasync def main() -> int:\n    return ONE\n",
    "steps.py": "def step() -> int:\n    from hashed_pkg import lazy\n    return lazy.N\n",
    "lazy.py": "N = 1\n",
    "deep/__init__.py": "",
    "deep/one.py": "import json\nfrom ..lazy import N\nONE = 1\n",
    "other.py": "X = 1\n",
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    before = sys.path[:]
    yield
    sys.path[:] = before
    _forget()


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "hashed_pkg"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def hashed(root: Path, newline: str = "\n", **changed: str) -> str:
    """The hash of `main` in a copy of the package with some files changed."""
    _forget()
    for name, text in (PACKAGE | {k.replace("__", "/") + ".py": v for k, v in changed.items()}).items():
        place = root / "hashed_pkg" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.replace("\n", newline).encode())
    sys.path.insert(0, str(root))
    return code_hash(importlib.import_module("hashed_pkg.flows").main)


def test_the_hash_does_not_depend_on_place_or_line_endings(tmp_path: Path) -> None:
    one = hashed(tmp_path / "a")
    assert hashed(tmp_path / "b") == one
    assert hashed(tmp_path / "c", newline="\r\n") == one


@pytest.mark.parametrize("module", ["steps", "lazy", "deep__one"])
def test_what_it_imports_from_its_package_counts(tmp_path: Path, module: str) -> None:
    text = PACKAGE[module.replace("__", "/") + ".py"]
    assert hashed(tmp_path / "a") != hashed(tmp_path / "b", **{module: text + "Y = 2\n"})


def test_what_it_does_not_import_does_not_count(tmp_path: Path) -> None:
    assert hashed(tmp_path / "a") == hashed(tmp_path / "b", other="X = 2\n")


def test_two_functions_of_one_module_have_different_hashes() -> None:
    async def one() -> int:
        return 1

    async def two() -> int:
        return 2

    assert code_hash(one) != code_hash(two)
    assert code_hash(one) == code_hash(one)
