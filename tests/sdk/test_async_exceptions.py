"""Exceptions that are raised in another thread, and taken back. What they do to code is in test_execution.py and test_worker_turns.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("interpreter")

TRACED = """
import sys, threading
from perdure.sdk.worker.async_exceptions import take_back

take_back()

def traced():
    sys.settrace(lambda *_: None)
    (lambda: None)()
    print("traced")

thread = threading.Thread(target=traced)
thread.start()
thread.join()
"""


def test_code_can_be_traced_after_an_exception_was_taken_back() -> None:
    """On Python 3.11 a traced function did not get past its first line."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "traced\n"), done.stderr
