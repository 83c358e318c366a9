"""CI runs the recipes of the justfile, so that a machine and a person check the same things."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.failures import Failures
from tools.checks import gate, long, parts

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


def test_hosted_workflows_run_check_and_long() -> None:
    hosted = {(file, step["run"].split()[1]) for file, step in steps() if "run" in step}
    assert {("ci.yml", "check"), ("long.yml", "long"), ("long.yml", "report-red")} <= hosted


def test_long_workflow_runs_each_night_and_on_tags() -> None:
    document = yaml.safe_load((GITHUB / "workflows" / "long.yml").read_text())
    triggers = document[True]  # YAML reads `on` as true
    assert triggers["schedule"][0]["cron"] and triggers["push"]["tags"] == ["v*"]
    report = document["jobs"]["report"]
    assert report["if"] == "failure()" and set(report["needs"]) == document["jobs"].keys() - {"report"}


def test_recipes_of_gate_and_long_exist() -> None:
    named = {*gate.FIRST, *gate.BESIDE, *long.FIRST, *parts.RECIPES}
    named |= {part for wanted in parts.TOUCHED.values() for part in wanted if "/" not in part}
    assert named <= recipes().keys()


def test_touched_paths_and_parts_exist() -> None:
    tests = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")]
    for prefix, wanted in parts.TOUCHED.items():
        folder, _, start = prefix.rpartition("/")
        assert any(path.name.startswith(start) for path in (ROOT / folder).iterdir()), prefix
        for part in wanted:
            assert part in parts.RECIPES or any(test.startswith(part) for test in tests), part


def test_the_ci_script_calls_recipes_and_repeats_none() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    called = re.findall(r"^just (.+)$", script, re.M)
    # A second word would be an argument of the first recipe.
    assert called == ["setup", "sync", "check"] and set(called) <= recipes().keys()
    assert not re.search(r"\b(pytest|ruff|mypy|pyright|lint-imports)\b(?!')", script.split("\nset ")[1])


def test_every_supported_python_and_postgresql_is_in_the_matrix() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows" / "long.yml").read_text())["jobs"]
    pairs = jobs["long"]["strategy"]["matrix"]["include"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = {c.rsplit(" ", 1)[1] for c in classifiers if re.search(r":: 3\.\d+$", c)}
    assert {pair["python"] for pair in pairs} == pythons
    assert {pair["postgres"] for pair in pairs} == {"14", "15", "16", "17", "18"}


def test_just_reads_the_justfile() -> None:
    """The pattern above finds what just itself finds."""
    done = subprocess.run(["just", "--summary"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == recipes().keys()
