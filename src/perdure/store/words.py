"""Words of the schema and the enums of core: a status is a word in the database and a number in memory."""

from __future__ import annotations

from typing import Final

from perdure.core.lifecycle import RunStatus, TaskStatus

_RUN: Final = {status.word: status for status in RunStatus}
_TASK: Final = {status.word: status for status in TaskStatus}


def run_status(word: str) -> RunStatus:
    return _RUN[word]


def task_status(word: str) -> TaskStatus:
    return _TASK[word]
