"""Two packages from one tree: perdure-core, which applications embed, and perdure, which adds the command line, the server and workers."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perdure.core.packages import install_command
from perdure.core.version import VERSION

ROOT = Path(__file__).parents[2]
WHOLE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE: dict[str, Any] = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text())
INCLUDED = {"client", "encryption", "http", "schemas", "webhooks"}
"""Extras of perdure-core that perdure always has."""
TOUCHED = {
    "cronsim": "core/schedules/cron.py reads the sets that it parses into",
    "fastapi": "server/rest/guard.py reads its dependants",
    "jsonschema-rs": "core/json_schema.py reads the kinds and texts of its errors",
    "opentelemetry-sdk": "wire/otlp.py sends logs with its module _logs, where the SDK has them",
    "typer": "cli uses typer.core, typer.main and its completion",
    "uvicorn": "programs/http_server.py derives from its protocol",
}
"""Dependencies of which more is used than is documented."""


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0]


def test_both_have_the_version_of_the_code() -> None:
    assert WHOLE["project"]["version"] == CORE["project"]["version"] == VERSION
    assert f"perdure-core[{','.join(sorted(INCLUDED))}]=={VERSION}" in WHOLE["project"]["dependencies"]
    assert WHOLE["project"]["requires-python"] == CORE["project"]["requires-python"]


def test_each_folder_is_in_one_of_them() -> None:
    said = re.search(r"^ELSEWHERE = (.*)$", (ROOT / "packages/core/hatch_build.py").read_text(), re.MULTILINE)
    assert said is not None
    added = {f"src/perdure/{name}" for name in ast.literal_eval(said[1])}
    built = WHOLE["tool"]["hatch"]["build"]["targets"]
    assert set(built["wheel"]["only-include"]) == set(built["sdist"]["only-include"]) == added
    contract = next(c for c in WHOLE["tool"]["importlinter"]["contracts"] if c["name"].startswith("perdure-core"))
    folders = {f"perdure.{d.name}" for d in (ROOT / "src/perdure").iterdir() if (d / "__init__.py").exists()}
    assert {m for m in folders if f"src/{m.replace('.', '/')}" not in added} == set(contract["source_modules"])
    assert {m for m in contract["forbidden_modules"] if m.startswith("perdure.")} == {
        a.removeprefix("src/").replace("/", ".") for a in added
    }


def test_an_extra_of_the_core_is_one_of_the_whole() -> None:
    extras, all_ = WHOLE["project"]["optional-dependencies"], CORE["project"]["optional-dependencies"]
    assert {name: found for name, found in extras.items() if name in all_} == {
        name: [f"perdure-core[{name}]"] for name in all_ if name not in INCLUDED
    }


def bounds() -> dict[str, str]:
    declared = [
        requirement
        for project in (WHOLE["project"], CORE["project"])
        for requirements in (project["dependencies"], *project["optional-dependencies"].values())
        for requirement in requirements
    ]
    return {name_of(requirement): requirement for requirement in declared}


def test_what_is_touched_inside_is_bounded() -> None:
    assert [name for name in TOUCHED if "<" not in bounds()[name]] == []


@pytest.mark.keep
def test_private_modules_are_imported_of_what_is_touched_only() -> None:
    """What is private changes in any release. asyncpg is not bounded: where its inside has changed, store/arrays.py leaves arrays to the driver."""
    found = {
        node.module.split("._")[0]
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and "._" in node.module and not node.level
    }
    assert {module.replace(".", "-") for module in found if not module.startswith("perdure")} <= TOUCHED.keys()


def test_an_extra_is_installed_under_the_name_of_the_package_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("objects") == "pip install 'perdure[objects]'"
    monkeypatch.setattr("perdure.core.packages.find_spec", lambda name: None)
    assert install_command("objects") == "pip install 'perdure-core[objects]'"
