"""CI runs the recipes of the justfile, so that a machine and a person check the same things."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.failures import Failures

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
DOCUMENTS = sorted([*GITHUB.rglob("*.yml"), ROOT / ".pre-commit-config.yaml"])
RECIPE = re.compile(r"^([a-z][a-z0-9-]*)((?: +[a-z*+][^:\n]*)?):(?!=)(.*)$", re.M)


def recipes() -> dict[str, str]:
    """Name -> what it depends on."""
    return {name: after for name, _, after in RECIPE.findall((ROOT / "justfile").read_text())}


def steps() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for file in WORKFLOWS:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            found += [(file.name, step) for step in job["steps"]]
    return found


def test_the_files_of_github_are_yaml() -> None:
    with Failures() as failures:
        for file in DOCUMENTS:
            with failures.of(file.relative_to(ROOT)):
                assert yaml.safe_load(file.read_text())


def test_every_step_uses_an_action_or_runs_a_recipe_that_exists() -> None:
    known = recipes()
    for file, step in steps():
        if "uses" in step:
            assert re.search(r"@(v\d+|release/v\d+)$", step["uses"]), f"{file}: {step['uses']} is not pinned to a major"
            continue
        program, recipe, *_ = step["run"].split()
        assert program == "just", f"{file}: {step['run']}"
        assert recipe in known, f"{file}: the justfile has no {recipe}"


def test_the_hosted_workflow_runs_all_of_check() -> None:
    known = recipes()

    def leaves(recipe: str) -> set[str]:
        return set().union(*map(leaves, known[recipe].split())) if known[recipe].strip() else {recipe}

    hosted = {step["run"].split()[1] for file, step in steps() if file == "ci.yml" and "run" in step}
    # Every test on each Python, and not only those that `coverage` has left.
    assert leaves("check") - {"test-rest"} | {"test"} <= hosted


def test_the_ci_script_calls_recipes_and_repeats_none() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    called = re.findall(r"^just (.+)$", script, re.M)
    # A second word would be an argument of the first recipe.
    assert called == ["setup", "sync", "check"] and set(called) <= recipes().keys()
    assert not re.search(r"\b(pytest|ruff|mypy|pyright|lint-imports)\b(?!')", script.split("\nset ")[1])


def test_every_supported_python_and_postgresql_is_in_the_matrix() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    pairs = jobs["test"]["strategy"]["matrix"]["include"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = {c.rsplit(" ", 1)[1] for c in classifiers if re.search(r":: 3\.\d+$", c)}
    assert {pair["python"] for pair in pairs} == pythons
    assert {pair["postgres"] for pair in pairs} == {"14", "15", "16", "17", "18"}


def test_just_reads_the_justfile() -> None:
    """The pattern above finds what just itself finds."""
    done = subprocess.run(["just", "--summary"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == recipes().keys()
