"""How `perdure job` leaves its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.executors.objects.attempts import ObjectAttempts
from perdure.executors.objects.spec import read_work
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import Job
from tests.executors.agents import assignment
from tests.executors.fake_host import FakeHost

pytestmark = pytest.mark.usefixtures("interpreter")

ABORTS = "import atexit, os; atexit.register(os.abort)"
"""As threads of the store's client do now and then while the interpreter shuts down."""


@pytest.mark.parametrize(("command", "code"), [(["echo", "7"], 0), (["false"], 1)])
async def test_its_exit_code_does_not_depend_on_the_interpreter_s_shutdown(
    tmp_path: Path, command: list[str], code: int
) -> None:
    attempts = ObjectAttempts(ObjectStore(str(tmp_path)), FakeHost(), start_s=300.0, stale_s=60.0)
    a = assignment("objects", {"command": command})
    job = Job(name=a.job, assignment=a)
    await attempts.write_spec(job, read_work(job.spec, "objects"))
    program = f"{ABORTS}; from perdure.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "job", attempts.spec_url(job)], timeout=120)
    assert done.returncode == code
