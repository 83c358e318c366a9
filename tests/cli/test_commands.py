"""The command line as a whole: nouns and verbs, plurals, pointers from other words, and options that mean the same everywhere."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from perdure.cli.commands import COMMANDS, NOUNS, PAIRS, canonical, load
from perdure.cli.help import flags_of, is_argument
from perdure.cli.pointers import COMMAND_POINTERS, VERB_SYNONYMS
from tests.cli.live import perdure
from tests.fakes.failures import Failures

NO_DATA = {"mcp", "dev", "init", "server", "worker", "job", "completion", "migrate", "login", "logout"}
"""Commands that run a process or print no data."""
JSON_ONLY = {"doctor", "explain", "verify", "bench", "bench costs", "bench scale", "import"} | {
    f"keys {verb}" for verb in ("list", "retire", "rewrap", "rotate")
}
"""Commands on the database with a report of their own: `--json`, without `-o`."""
LINES_MAX = 50


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    nested: dict[str, Any] = getattr(command, "commands", {})
    if not nested or command.invoke_without_command:
        yield path, command
    for name, one in nested.items():
        if not one.hidden:
            yield from leaves(one, f"{path} {name}")


@cache
def all_leaves() -> dict[str, Any]:
    """Every command that does something, by its words."""
    return dict(leaf for name, entry in COMMANDS.items() for leaf in leaves(load(entry.module)[name], name))


def flags(command: Any) -> set[str]:
    return {flag for p in command.params if not is_argument(p) for flag in p.opts}


def test_a_short_flag_stands_for_one_option_in_all_commands() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in all_leaves().values():
        for param in command.params:
            if not is_argument(param):
                long = {flag for flag in param.opts if flag.startswith("--")}
                for flag in set(param.opts) - long:
                    meanings[flag] |= long
    assert {flag: found for flag, found in meanings.items() if len(found) > 1} == {}


def test_commands_that_print_data_share_their_output_options() -> None:
    with Failures() as failures:
        for path in sorted(set(all_leaves()) - NO_DATA):
            wanted = {"--json"} if path in JSON_ONLY else {"--json", "-o", "--output", "--fields"}
            with failures.of(f"perdure {path}"):
                missing = sorted(wanted - flags(all_leaves()[path]))
                assert not missing, f"has no {', '.join(missing)}"


def test_a_credential_and_a_database_have_one_spelling() -> None:
    with Failures() as failures:
        for path, command in all_leaves().items():
            for param in command.params:
                with failures.of(f"perdure {path}: {name_of(param)}"):
                    check_spelling(param)
            with failures.of(f"perdure {path}"):
                assert "--id" not in flags(command), "has --id"


def check_spelling(param: Any) -> None:
    variables = [param.envvar] if isinstance(param.envvar, str) else list(param.envvar or [])
    if "PERDURE_API_KEY" in variables:
        assert param.opts == ["--api-key"], f"the credential is spelled {param.opts}"
    if "PERDURE_DSN" in variables:
        assert "--dsn" in param.opts, f"the database is spelled {param.opts}"


def test_options_and_arguments_have_a_help_text() -> None:
    with Failures() as failures:
        for path, command in all_leaves().items():
            for param in command.params:
                if not getattr(param, "hidden", False):
                    with failures.of(f"perdure {path}: {name_of(param)}"):
                        assert param.help, f"its help text is {param.help!r}"


def name_of(param: Any) -> str:
    return str(param.name if is_argument(param) else flags_of(param))


def test_the_first_page_fits_on_a_screen() -> None:
    lines = perdure("--help", COLUMNS="80").out.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 80
    assert {name for pair in PAIRS for name in pair} <= set(COMMANDS)


def test_nouns_are_the_groups_that_can_list() -> None:
    groups = {name for name, entry in COMMANDS.items() if "list" in getattr(load(entry.module)[name], "commands", {})}
    assert groups - {"versions", "bulk", "keys", "notify", "retention"} == NOUNS, (
        "versions are those of one workflow; the others have no plural"
    )


def test_who_can_pause_can_resume() -> None:
    paths = set(all_leaves())
    pausing = {path.removesuffix(" pause") for path in paths if path.endswith(" pause")}
    assert pausing == {path.removesuffix(" resume") for path in paths if path.endswith(" resume")}
    assert not any("unpause" in path for path in paths)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("schedules", "schedule list"),
        ("schedules list", "schedule list"),
        ("schedules pause nightly", "schedule pause nightly"),
        ("schedules -w etl", "schedule list -w etl"),
        ("schedules --help", "schedule --help"),
        ("api-keys", "api-key list"),
        ("runs", "list"),
        ("runs -s failed", "list -s failed"),
        ("runs show abc", "show abc"),
        ("runs list -s failed", "list -s failed"),
        ("workers list -o json", "workers -o json"),
        ("worker list", "workers"),
        ("worker shop.py", "worker shop.py"),
        ("list", "list"),
        ("status", "status"),
    ],
)
def test_plurals_are_accepted_and_list_by_themselves(words: str, meant: str) -> None:
    assert " ".join(canonical(words.split())) == meant


@pytest.mark.parametrize("noun", sorted(NOUNS))
def test_a_plural_reaches_the_server(noun: str) -> None:
    done = perdure(f"{noun}s", PERDURE_URL="http://127.0.0.1:9")
    assert done.code == 5 and "no Perdure server answers" in done.err
    assert perdure(f"{noun}s", "--help").out.startswith(f"Usage: perdure {noun} ")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("start", "perdure run WORKFLOW"),
        ("ps", "perdure list"),
        ("ls", "perdure list"),
        ("status", "perdure show RUN"),
        ("get", "perdure show RUN"),
        ("describe", "perdure show RUN"),
        ("inspect", "perdure show RUN"),
        ("tail", "perdure logs RUN --follow"),
        ("stop", "perdure cancel RUN"),
        ("kill", "perdure cancel RUN"),
        ("stop", "perdure terminate RUN"),
        ("remove", "perdure delete RUN"),
        ("unpause", "perdure resume RUN"),
        ("unpause", "perdure queue resume NAME"),
        ("key", "perdure api-key"),
        ("dead", "perdure dead-letter list"),
        ("graph", "perdure flow graph"),
    ],
)
def test_a_word_of_another_tool_points_to_the_command(word: str, meant: str) -> None:
    done = perdure(word, "something")
    assert done.code == 2
    assert done.err.startswith(f"perdure: unknown command `perdure {word}`. ") and meant in done.err
    assert done.out == ""


def test_pointers_name_commands_that_exist() -> None:
    assert set(COMMAND_POINTERS).isdisjoint(COMMANDS)
    for text in COMMAND_POINTERS.values():
        for words in re.findall(r"`perdure ([a-z][a-z -]*[a-z])", text):
            first, *rest = words.split()
            assert first in COMMANDS, words
            nested = getattr(load(COMMANDS[first].module)[first], "commands", None)
            assert nested is None or not rest or rest[0] in nested, words


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("schedule unpause nightly", "perdure schedule resume"),
        ("schedule add nightly", "perdure schedule create"),
        ("queue ls", "perdure queue list"),
        ("api-key delete x", "perdure api-key revoke"),
        ("workflow describe x", "perdure workflow show"),
    ],
)
def test_another_verb_points_to_the_one_of_the_noun(words: str, meant: str) -> None:
    done = perdure(*words.split())
    assert done.code == 2 and f"Use `{meant}`" in done.err
    assert words.split()[1] in VERB_SYNONYMS


def test_a_misspelled_verb_is_guessed() -> None:
    done = perdure("schedule", "craete", "x")
    assert done.code == 2 and "Did you mean `perdure schedule create`?" in done.err
    assert perdure("schedule", "zzz").err.endswith("`perdure schedule --help` lists the commands.\n")


def test_the_events_of_a_run_are_its_history() -> None:
    done = perdure("events", "0192a6f0")
    assert done.code == 2 and "`perdure history RUN`" in done.err
