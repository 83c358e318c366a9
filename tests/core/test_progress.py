"""Progress among the details of heartbeats."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perdure.core.errors import InvalidInput
from perdure.core.limits import PROGRESS_TEXT_CHARS_MAX
from perdure.core.progress import MARK, TaskProgress, checked_progress, split_progress, with_progress
from perdure.sdk.worker.attempts import encode_details


def test_progress_and_details_are_told_apart() -> None:
    progress = TaskProgress(3, 10, "c.csv")
    assert split_progress(with_progress(progress, b"")) == (progress, b"")
    assert split_progress(with_progress(progress, b'{"at":1}')) == (progress, b'{"at":1}')
    assert split_progress(b'{"at":1}') == (None, b'{"at":1}')
    assert split_progress(b"") == (None, b"")


@pytest.mark.parametrize(
    "details", ["", "p", {"progress": {"done": 1, "total": 2, "text": ""}}, MARK.decode("latin-1") + "{}", 0, None]
)
def test_no_details_of_a_user_are_taken_for_progress(details: Any) -> None:
    data = encode_details(details)
    assert split_progress(data) == (None, data)


@pytest.mark.parametrize(
    "data",
    [
        MARK,
        MARK + b"{",
        MARK + b"{}",
        MARK + b"\xff\xfe",
        MARK + b'{"progress":{"done":"1"}}',
        MARK + b'{"progress":{"done":-1}}',
        MARK + b'{"progress":{"done":1,"total":1e999}}',
    ],
)
def test_what_cannot_be_read_is_left_as_it_is(data: bytes) -> None:
    """Workers of other languages may send anything."""
    assert split_progress(data) == (None, data)


def test_a_text_is_cut_and_has_one_line_also_when_another_worker_sent_it() -> None:
    long = "a\nb\x1b[2J" + "x" * 1000
    cut = checked_progress(1, None, long)
    assert len(cut.text) == PROGRESS_TEXT_CHARS_MAX
    assert cut.text.startswith("a b [2Jxx")
    assert split_progress(with_progress(TaskProgress(1, None, long), b""))[0] == cut


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "3", None])
def test_numbers_are_checked(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"progress\(done="):
        checked_progress(value, 1, "")
    if value is not None:
        with pytest.raises(InvalidInput, match=r"progress\(total="):
            checked_progress(1, value, "")
