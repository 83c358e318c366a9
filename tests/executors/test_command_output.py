"""What is left of a command: its result, and the end of its output without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.core.limits import JOB_RESULT_BYTES_MAX, PAYLOAD_BYTES_MAX
from perdure.core.payloads import MARK, decode_tree
from perdure.executors.command_output import MaskedText, Written, as_text, outcome, value_of, without_secrets
from perdure.executors.container.output import _OutputStream
from perdure.executors.port import JobFailed, JobSucceeded
from perdure.executors.process.output import tail
from perdure.payloads.content import UnsentPayload

SECRETS = (b"open-sesame", b"sesame-street")


@pytest.mark.parametrize("shift", range(-2, 30))
def test_the_end_of_a_file_shows_no_part_of_a_secret(tmp_path: Path, shift: int) -> None:
    file = tmp_path / "stdout"
    file.write_bytes(b"x" * 100 + b"open-sesame" + b"sesame-street" + b"y" * 20)
    got, is_whole = tail(file, SECRETS, 20 + shift)
    assert not is_whole
    assert got.endswith(b"y" * (20 + min(shift, 0)))
    assert set(got) <= set(b"xy*"), got


def test_the_end_of_an_output_full_of_secrets_shows_no_part_of_one() -> None:
    secret = b"s" * 499 + b"!"
    stream = _OutputStream(MaskedText((secret,), lambda _: None), 1_000)
    for _ in range(50):
        stream.take(secret[:300])
        stream.take(secret[300:])
    got, is_whole = stream.last((secret,))
    assert set(got) == {ord("*")} and not is_whole


def test_what_precedes_the_cut_is_not_shown() -> None:
    assert without_secrets(b"open-sesame, open-sesame", 5, SECRETS) == b"***, ***"
    assert without_secrets(b"before|after", 7, SECRETS) == b"after"
    assert without_secrets(b"open-sesame-street!", 3, SECRETS) == b"***!"
    assert without_secrets(b"", 0, ()) == b""


def succeeded(result: bytes, stdout: bytes = b"") -> Any:
    written = Written(stdout=stdout, is_whole=True, stderr=b"", result=result)
    return outcome(None, 0, written)


def test_a_large_result_waits_in_a_file_and_not_in_memory() -> None:
    text = msgspec.json.encode({"rows": ["é" * 100] * 10_000})
    state = succeeded(text, b"done\n")
    assert isinstance(state, JobSucceeded)
    assert isinstance(state.value, UnsentPayload) and len(state.value) < 1_000
    found = decode_tree(state.value)
    assert (found["exit_code"], found["stdout"]) == (0, "done\n"), "what is small is readable"
    (content,) = state.value.contents
    assert b"".join(content.chunks()) == text
    assert found["json"].reference.sha256 == content.sha256
    path: Path = content.path  # type: ignore[attr-defined]
    assert path.exists()
    del state, found, content
    assert not path.exists()


def test_a_small_result_is_inline() -> None:
    state = succeeded(b' {"n": 1}\n')
    assert msgspec.json.decode(state.value) == {"exit_code": 0, "stdout": "", "json": {"n": 1}}
    just = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 100) + b'"'
    assert not succeeded(just).value.startswith(MARK)


def test_a_result_over_the_limit_is_refused_with_its_name() -> None:
    state = succeeded(b" " * (JOB_RESULT_BYTES_MAX + 1))
    assert isinstance(state, JobFailed) and state.is_final
    assert state.failure.code == "payload_too_large" and "JOB_RESULT_BYTES_MAX" in state.failure.message


@pytest.mark.parametrize("text", [b'"\xff"', b"[1,", b"1e999", b"[" * 100_000])
def test_what_is_no_json_is_no_result(text: bytes) -> None:
    state = succeeded(text)
    assert isinstance(state, JobFailed) and state.failure.message == "the result file is not JSON"
    plain = outcome(None, 0, Written(stdout=text, is_whole=True, stderr=b"", result=None))
    assert isinstance(plain, JobSucceeded) and b'"json"' not in plain.value


def test_json_is_kept_as_it_was_written() -> None:
    assert bytes(as_text(b' {"a":  1e100, "a": 2}\n')) == b'{"a":  1e100, "a": 2}'
    assert bytes(value_of(b"log\n[1, 2]\n", True, as_text)) == b"[1, 2]"
