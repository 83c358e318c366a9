"""The library, an existing Django application before and after: its own tests, its migrations, and the difference that the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.django_project import AFTER, BEFORE, manage

pytestmark = pytest.mark.usefixtures("processes")


@pytest.mark.parametrize("project", [BEFORE, AFTER], ids=lambda p: p.name)
def test_the_tests_of_the_example_pass(project: Path, dsn: str) -> None:
    out = manage(project, dsn, "test", "--noinput", "-v", "2")
    assert "\nOK" in out, out
    assert manage(project, dsn, "check", "--fail-level", "WARNING")
    assert "No changes detected" in manage(project, dsn, "makemigrations", "--check", "--dry-run")
