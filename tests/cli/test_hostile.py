"""Text of others never steers the terminal: names, keys, errors, results, logs, and what a stranger answers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from perdure.core.names import UNSAFE
from tests.cli.live import Cli, Done, perdure
from tests.cli.test_http import RUN, Make, fake

__all__ = ["fake"]

HOSTILE = "\x1b[2J\x1b]0;pwned\x07\u202egnp.exe\u2066\r\x9b31m\x00[red]x[/red]"


OURS = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r(?=\x1b\[2K)")
"""How a live view hides the cursor and draws itself again."""


def harmless(done: Done) -> str:
    said = OURS.sub("", done.out + done.err)
    found = UNSAFE.sub(lambda m: "" if m[0] in "\n\t" else f"<{ord(m[0]):x}>", said)
    assert not UNSAFE.search(said.replace("\n", "").replace("\t", "")), found
    return said


@pytest.mark.parametrize("tty", [False, True])
def test_errors_results_and_inputs_of_runs(cli: Cli, tty: bool) -> None:
    hostile = HOSTILE.replace("\x00", "")
    shown = {"tty": tty, "NO_COLOR": "1"}
    failed = cli("run", "cli_failing", f"reason={hostile}", "--watch", **shown)
    assert failed.code == 1 and "\\u001b[2J" in harmless(failed)
    run = json.loads(cli("list", "-w", "cli_failing", "-o", "json", "--limit", "1").out)[0]["id"]
    for words in (
        ("list",),
        ("show", run),
        ("watch", run),
        ("history", run),
        ("logs", run),
        ("dead-letter", "list"),
        ("show", run, "-o", "yaml"),
        ("show", run, "-o", "json"),
        ("history", run, "-o", "json"),
        ("workflows",),
        ("workers",),
        ("queues",),
        ("why", run),
    ):
        harmless(cli(*words, **shown))
    echoed = cli("run", "cli_echo", f"value={hostile}", "--watch", **shown)
    assert echoed.code == 0
    harmless(echoed)


def test_json_and_yaml_still_say_the_same(cli: Cli) -> None:
    hostile = HOSTILE.replace("\x00", "")
    run = json.loads(cli("run", "cli_echo", f"value={hostile}", "--watch", "-o", "json").out)
    for form, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        done = cli("show", run["id"], "-o", form)
        harmless(done)
        assert hostile in texts_of(parse(done.out)), form


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts_of(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one)]
    return [str(value)]


@pytest.mark.parametrize("tty", [False, True])
def test_what_a_server_says_about_an_error(fake: Make, tty: bool) -> None:
    server = fake(lambda *_: (422, {"code": "invalid_input", "detail": HOSTILE, "status": 422}))
    for words in (("list",), ("show", "abcdef"), ("cancel", "abcdef"), ("workflows",)):
        done = perdure(*words, tty=tty, NO_COLOR="1", PERDURE_URL=server.url)
        assert done.code == 2 and "\\u001b[2J" in harmless(done)
    stranger = fake(lambda *_: (500, f"<html>{HOSTILE}</html>"))
    harmless(perdure("list", tty=tty, NO_COLOR="1", PERDURE_URL=stranger.url))


@pytest.mark.parametrize("tty", [False, True])
def test_names_and_keys_of_a_server_that_lets_anything_in(fake: Make, tty: bool) -> None:
    run = {**RUN, "workflow": HOSTILE, "key": HOSTILE, "version": HOSTILE, "status": "failed", "finished_at": None}
    server = fake(lambda *_: (200, {"items": [run], "next": None}))
    done = perdure("list", tty=tty, NO_COLOR="1", PERDURE_URL=server.url)
    assert done.code == 0 and "\\u001b[2J" in harmless(done)
    assert len(done.out.splitlines()) <= 4, "nobody forges a line"


def test_names_with_control_characters_are_refused(cli: Cli) -> None:
    for words in (
        ("run", "cli_greet", "name=x", "--key", "a\x1bb"),
        ("signal", "@last", "a\nb"),
        ("event", "send", "a\u202eb"),
        ("queue", "pause", "a\tb"),
    ):
        done = cli(*words)
        assert done.code != 0, words
        harmless(done)
