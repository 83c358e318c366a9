"""The worker protocol as objects and bytes: what is sent is what arrives, in parts where it is large, and what cannot be read harms one run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.api import runs
from perdure.core.errors import Failure
from perdure.core.events import Recorded
from perdure.core.retry import End, TaskOptions
from perdure.core.secrets import SecretPlace
from perdure.core.work import Activation, Assignment, Beat, Decided, LogChunk, LogLine, Report, ServedCode
from perdure.wire import acts, protocol
from perdure.wire.parts import _SIZES, activation_parts, activation_size, decision_parts
from perdure.wire.pb import worker_pb2
from perdure.wire.protocol import Down, Hello, Up, Welcome

ROOT = Path(__file__).parents[2]
RUN = bytes(range(16))
CODE = ServedCode(version="1", hash="ab", pinned=True, build_id="b1", control=b"{}", parameters=b"[]")
START = runs.StartRequest(workflow="f", version="1", input=b"[]")
FAILURE = Failure("task_failed", "boom", "ValueError", "trace")


def test_everything_a_worker_says_arrives() -> None:
    up = Up(
        hello=Hello(RUN, "w", "h", 7, "x", 3, [("q", "t")], {"f": CODE}, [(RUN, 1, 2)], build_id="b1"),
        reports=[
            Report(RUN, 1, 2, End.SUCCESS, b"1", None, 5, 6, 4),
            Report(RUN, 2, 1, End.ERROR, b"", FAILURE, 5, 6, 4),
        ],
        reports_number=9,
        decisions=[(3, Decided(RUN, [cm.CompleteRun(b"1")], None, 2), False), (4, Decided(RUN, [], FAILURE), True)],
        beats=[Beat(RUN, 1, 2, b"{}", "stack")],
        logs=[LogChunk(RUN, -1, 0, 4, [LogLine(1, "stdout", "info", "hello")])],
        draining=True,
        alive=True,
    )
    assert protocol.decode_up(protocol.encode_up(up)) == up


def test_everything_a_server_says_arrives() -> None:
    secrets = (SecretPlace(("headers", "a", 0), ("A", "B")),)
    options = TaskOptions(timeout_us=1, heartbeat_us=2, at_most_once=True, never=("a.B",), on=("c.D",), secrets=secrets)
    down = Down(
        welcome=Welcome("s", 1, 2),
        tasks=[
            Assignment(RUN, 1, 2, 3, "t", b"[]", TaskOptions(), 0, "", "q"),
            Assignment(RUN, 2, 1, 3, "t", b"[]", options, 0, "00-1-2-01", "q"),
        ],
        activations=[(5, Activation(RUN, "f", [Recorded(1, 2, ev.TimerFired(0))], True), False)],
        cancels=[(RUN, 1, 2)],
        forgets=[RUN],
        acked=7,
        going_away=True,
        clock_us=8,
    )
    assert protocol.decode_down(protocol.encode_down(down)) == down


@given(st.lists(st.integers(0, 700_000), max_size=40))
def test_parts_put_together_are_the_whole_and_none_is_too_large(sizes: list[int]) -> None:
    events = [Recorded(i + 1, 1, ev.SignalReceived("s", bytes(n))) for i, n in enumerate(sizes)]
    parts = list(activation_parts(3, Activation(RUN, "f", events, True)))
    assert [r for _, a, _ in parts for r in a.events] == events
    assert [more for _, _, more in parts] == [True] * (len(parts) - 1) + [False]
    for _, a, _ in parts:
        assert activation_size(a) < protocol.MESSAGE_BYTES_MAX - protocol.PART_BYTES
    commands: list[cm.Command] = [cm.SetState("s", bytes(n)) for n in sizes]
    decided = list(decision_parts(3, Decided(RUN, commands)))
    assert [c for _, d, _ in decided for c in d.commands] == commands


def test_a_history_this_worker_cannot_read_is_told_apart_from_the_others() -> None:
    m = worker_pb2.ToWorker()
    newer = b"\x01" + msgspec.msgpack.encode([[1, 2, [250, "from the future"]]])
    m.activations.add(run_id=RUN, workflow="f", number=4, replay=True, events=newer)
    m.activations.add(run_id=RUN, workflow="f", number=5, replay=True, events=b"\x09")
    m.activations.add(
        run_id=RUN,
        workflow="f",
        number=6,
        events=b"\x01" + msgspec.msgpack.encode([Recorded(1, 2, ev.TimerFired(0))]),
    )
    down = protocol.decode_down(m.SerializeToString())
    assert [(number, run_id) for number, run_id, _ in down.unreadable] == [(4, RUN), (5, RUN)]
    assert [number for number, _, _ in down.activations] == [6]


def test_a_decision_this_server_cannot_read_is_told_apart_from_all_else_that_its_worker_says() -> None:
    m = worker_pb2.FromWorker(reports_number=3)
    m.decisions.add(run_id=RUN, number=4, commands=b"\x01" + msgspec.msgpack.encode([[250, "from the future"]]))
    m.decisions.add(run_id=RUN, number=5, commands=b"\x09")
    m.decisions.add(run_id=RUN, number=6, commands=b"\x01" + msgspec.msgpack.encode([cm.CompleteRun(b"1")]))
    m.reports.add(run_id=RUN, seq=1, attempt=1, end=worker_pb2.END_SUCCESS)
    m.reports.add(run_id=RUN, seq=2, attempt=1, end=250)  # type: ignore[arg-type]
    up = protocol.decode_up(m.SerializeToString())
    codes = [(number, d.commands, d.stuck and d.stuck.code) for number, d, _ in up.decisions]
    assert codes == [(4, [], "unreadable_decision"), (5, [], "unreadable_decision"), (6, [cm.CompleteRun(b"1")], None)]
    assert [(r.end, r.failure is None) for r in up.reports] == [(End.SUCCESS, True), (End.ERROR, False)]


def fields_of_a_later_version(data: bytes) -> bytes:
    """The same message with fields 1000 (a number) and 1001 (bytes), as a newer peer might send it."""
    return data + b"\xc0\x3e\x07" + b"\xca\x3e\x03new"


def test_fields_of_a_later_version_are_ignored() -> None:
    up = Up(
        hello=Hello(RUN, "w", "h", 7, "x", 3, [], {"f": CODE}, [], build_id="b1"), beats=[Beat(RUN, 1, 2)], alive=True
    )
    down = Down(welcome=Welcome("s", 1, 2), cancels=[(RUN, 1, 2)], acked=7)
    assert protocol.decode_up(fields_of_a_later_version(protocol.encode_up(up))) == up
    assert protocol.decode_down(fields_of_a_later_version(protocol.encode_down(down))) == down
    inner = worker_pb2.FromWorker.FromString(protocol.encode_up(up))
    inner.hello.MergeFromString(fields_of_a_later_version(b""))
    inner.beats[0].MergeFromString(fields_of_a_later_version(b""))
    assert protocol.decode_up(inner.SerializeToString()) == up
    call, reply = acts.Call(1, "run.start", b"x"), acts.Reply(1, b"x")
    assert acts.decode_calls(fields_of_a_later_version(acts.encode_calls([call]))) == ([call], [])
    assert acts.decode_replies(fields_of_a_later_version(acts.encode_replies([reply]))) == [reply]
    assert acts.decode_call(fields_of_a_later_version(acts.encode_call(runs.START, START))) == (
        "run.start",
        acts.encode(START),
    )


def test_a_request_and_a_reply_of_a_later_version_are_read_without_its_fields() -> None:
    newer = msgspec.msgpack.encode(msgspec.to_builtins(START, builtin_types=(bytes,)) | {"of_a_later_version": [1, {}]})
    assert acts.decode_request(runs.START, newer) == START
    reply = msgspec.msgpack.encode({"run_id": RUN, "of_a_later_version": "x"})
    assert acts.decode_reply(runs.START, reply).run_id == RUN


def test_a_failed_attempt_always_has_a_reason() -> None:
    m = worker_pb2.FromWorker()
    m.reports.add(run_id=RUN, seq=1, attempt=1, end=worker_pb2.END_ERROR)
    (report,) = protocol.decode_up(m.SerializeToString()).reports
    assert report.failure is not None


@pytest.mark.usefixtures("interpreter")
def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    assert uv is not None, "the compiler stands in an environment of its own, which uv makes"
    compiler = [uv, "run", "--frozen", "--isolated", "--only-group", "generate", "python"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    }
    subprocess.run(
        [*compiler, "proto/generate.py", str(tmp_path)], cwd=ROOT, env=environment, check=True, capture_output=True
    )
    made = {p.name: p.read_text() for p in tmp_path.iterdir() if p.suffix in (".py", ".pyi")}
    kept = ROOT / "src" / "perdure" / "wire" / "pb"
    assert made == {p.name: p.read_text() for p in kept.iterdir() if p.suffix in (".py", ".pyi")}


def test_every_record_has_a_size() -> None:
    without = [kind.__name__ for kind in (*ev.EVENT_TYPES, *cm.COMMAND_TYPES) if kind not in _SIZES]
    assert not without, f"no size: {without}"
