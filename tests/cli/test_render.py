"""Values as people read them, and fan-outs as one line."""

from __future__ import annotations

import pytest

from perdure.cli.render import Output, duration, flat, pretty, project
from perdure.cli.run_tree import TreeGroup, grouped, user_frames
from perdure.cli.runs import run_columns
from perdure.cli.stored_values import readable
from perdure.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0004, "0ms"),
        (0.25, "250ms"),
        (3.44, "3.4s"),
        (61, "1m01s"),
        (3_599, "59m59s"),
        (3_600, "1h00m"),
        (86_399, "23h59m"),
        (90_000, "1d01h"),
        (10_000_000, "115d17h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_columns_hold_one_line_without_tabs() -> None:
    assert flat("a\tb\nc") == "a b c"
    assert flat(None) == "" and flat(True) == "true" and flat({"a": [1]}) == '{"a": [1]}'


def test_long_values_are_cut_for_people() -> None:
    assert pretty({"a": 1}) == '{"a": 1}'
    assert "more characters" in pretty(["x" * 10_000])


ABOUT = {"sha256": "ab" * 32, "size": 1_258_291, "media_type": "application/json", "href": "/api/v1/payloads/x"}


def test_stored_values_are_lines_and_data_that_looks_like_one_is_data() -> None:
    line = f"stored value, 1.2 MiB, application/json; perdure payload get {'ab' * 32}"
    assert pretty({"$payload": ABOUT}) == flat({"$payload": ABOUT}) == line
    assert flat({"a": [{"$payload": ABOUT}]}) == f'{{"a": ["{line}"]}}'
    for data in ({"$payload": 0}, {"$payload": {"size": 3}}, {"$payload": ABOUT, "more": 1}):
        assert readable(data) == data
    assert readable({"$payload": {**ABOUT, "is_blob": True, "name": "a\x1b.bin", "size": 7}}, short=True) == (
        "blob a\\u001b.bin, 7 bytes, application/json, sha256 abababab…"
    )


def test_projection() -> None:
    item = {"id": 1, "error": {"message": "m"}, "none": None}
    assert project(item, ["id", "error.message", "none.deep"]) == {"id": 1, "error.message": "m", "none.deep": None}
    with pytest.raises(InvalidInput, match="available: id, error, none"):
        project(item, ["colour"])


def task(seq: int, name: str, status: str = "success", **more: object) -> dict[str, object]:
    return {"seq": seq, "name": name, "status": status, **more}


def test_many_tasks_of_one_name_are_one_line() -> None:
    rows = grouped([task(9, "last"), task(0, "first"), *(task(n, "many") for n in range(1, 9))])
    assert [r.name if isinstance(r, TreeGroup) else r["name"] for r in rows] == ["first", "many", "last"]
    assert isinstance(rows[1], TreeGroup) and rows[1].counts == {"success": 8}


def test_few_tasks_stay_apart() -> None:
    assert len(grouped([task(n, "few") for n in range(3)])) == 3


def test_what_matters_in_a_fan_out_is_shown_by_itself() -> None:
    many = [task(n, "t", "running") for n in range(20)]
    group = TreeGroup("t", [*many, task(20, "t", "failed"), task(21, "t", "running", blocked="stack")])
    assert [t["seq"] for t in group.singled_out] == [20, 21]
    assert group.status == "running"
    assert [t["seq"] for t in TreeGroup("t", [task(0, "t"), task(1, "t", "running")]).singled_out] == [1]


def test_tracebacks_show_the_users_frames() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/perdure/sdk/worker/execution.py", line 1, in _run\n    value = await fn()\n            ^^^^\n'
        '  File "/home/me/flows.py", line 2, in charge\n    raise ValueError("no")\n'
        "ValueError: no\n"
    )
    assert user_frames(text) == (
        'Traceback (most recent call last):\n  File "/home/me/flows.py", line 2, in charge\n    raise ValueError("no")\nValueError: no'
    )
    ours = 'Traceback (most recent call last):\n  File "/x/perdure/sdk/workflow/loop.py", line 1, in x\n    y()\nKeyError: 1'
    assert user_frames(ours) == ours


@pytest.mark.parametrize("width", [40, 100, 150])
def test_ids_and_statuses_are_never_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run = {
        "id": "0198c7a2-0000-7000-8000-000000000001",
        "status": "running",
        "stuck": "NonDeterminism: " + "long " * 20,
        "workflow": "a_workflow_with_a_long_name_that_says_a_lot",
        "key": "order-of-a-customer-with-a-long-key-2026-11-15",
        "created_at": "2026-11-15T15:00:00.000000Z",
        "waiting": {"reason": "an approval 'approve-order-1' of team leads, asked 3 h ago, which is not answered yet"},
    }
    Output("table").rows([run], run_columns(waiting=True), empty="")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["run", "status"]
    assert run["id"] in rows[0] and "! stuck" in rows[0]
    if width >= 100:
        assert max(map(len, rows)) <= width
