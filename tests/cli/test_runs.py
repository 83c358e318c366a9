"""The commands about runs, against a server with a worker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import yaml

from tests.cli.live import Cli, clean_environment
from tests.fakes.waiting import until_sync

pytestmark = pytest.mark.keep  # one pass through the command line

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def start(cli: Cli, *words: str) -> str:
    """The id of a new run."""
    return cli.ok("run", *words).split("\t")[0].strip()


def ended(cli: Cli, run: str) -> dict[str, object]:
    cli("watch", run)
    found: dict[str, object] = json.loads(cli.ok("show", run, "-o", "json"))
    return found


# -- run -----------------------------------------------------------------------------------------------------------


def test_run_prints_id_status_and_link_in_a_pipe(cli: Cli) -> None:
    done = cli("run", "cli_greet", "name=Ada")
    run, status, url = done.lines[0]
    assert UUID.fullmatch(run) and status in ("pending", "running", "success")
    assert url == f"{cli.url}/runs/{run}"
    assert "perdure watch @last" in done.err


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["nmae=Ada"], "cli_greet has no argument 'nmae'; did you mean 'name'?"),
        ([], "the argument 'name' of cli_greet is missing"),
        (["-a", "Ada", "-a", "1", "-a", "2", "-a", "3", "-a", "4", "-a", "5"], "arguments by position"),
    ],
)
def test_wrong_arguments_of_a_python_workflow_are_refused_at_the_start(cli: Cli, words: list[str], wrong: str) -> None:
    done = cli("run", "cli_greet", *words)
    assert done.code == 2 and wrong in done.err, done


def test_run_on_a_terminal_shows_what_to_do_next(cli: Cli) -> None:
    out = cli.ok("run", "cli_greet", "name=Ada", tty=True, NO_COLOR="1")
    assert out.splitlines()[0].startswith("started cli_greet")
    assert f"{cli.url}/runs/" in out and "perdure watch @last" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["value=3"], 3),
        (["value=text"], "text"),
        (['value="3"'], "3"),
        (["value=true"], True),
        (['value={"a": [1]}'], {"a": [1]}),
        (["-a", "positional"], "positional"),
        (["--arg", "[1, 2]"], [1, 2]),
        (["--input", '{"value": {"b": 1}}'], {"b": 1}),
        (["--input", "5"], 5),
    ],
)
def test_arguments_arrive_as_they_were_meant(cli: Cli, words: list[str], value: object) -> None:
    out = cli.ok("run", "cli_echo", *words, "--watch", "--fields", "result")
    assert json.loads(out) == {"result": value}


def test_input_from_stdin_and_from_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"value": "from a file"}')
    assert "from a file" in cli.ok("run", "cli_echo", "-i", f"@{file}", "--watch", "-o", "json")
    assert "from stdin" in cli.ok(
        "run", "cli_echo", "-i", "-", "--watch", "-o", "json", stdin='{"value": "from stdin"}'
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cli_echo", "--input", "{broken"], "line 1, column 2"),
        (["cli_echo", "--input", "1", "a=2"], "cannot be combined"),
        (["cli_echo", "value"], "not NAME=VALUE"),
        (["cli_echo", "a=1", "a=2"], "given twice"),
        (["cli_echo", "--attr", "x"], "--attr: 'x' is not NAME=VALUE"),
        (["cli_echo", "--input", "@/no/such/file"], "cannot read"),
        (["cli_echo", "--on-conflict", "explode"], "--on-conflict"),
        (["cli_echo", "value=1", "--timeout", "soon"], "soon"),
        ([], "WORKFLOW"),
    ],
)
def test_wrong_usage_ends_with_2(cli: Cli, words: list[str], said: str) -> None:
    done = cli("run", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_an_unknown_workflow_is_guessed(cli: Cli) -> None:
    done = cli("run", "cli_gret")
    assert done.code == 4
    assert "unknown workflow 'cli_gret'" in done.err
    assert "Did you mean cli_greet?" in done.err
    assert "Registered:" in cli("run", "zzzzzz").err


def test_an_id_is_used_once(cli: Cli) -> None:
    first = start(cli, "cli_greet", "name=Ada", "--key", "greet-ada")
    taken = cli("run", "cli_greet", "name=Ada", "--key", "greet-ada")
    assert taken.code == 1 and "greet-ada" in taken.err
    assert start(cli, "cli_greet", "name=Ada", "--key", "greet-ada", "--on-conflict", "attach") == first
    assert cli.ok("show", "key:greet-ada", "--fields", "id") == json.dumps({"id": first}) + "\n"


# -- watch and exit codes ------------------------------------------------------------------------------------------


def test_watch_ends_as_the_run_did(cli: Cli) -> None:
    assert cli("run", "cli_greet", "name=Ada", "--watch").code == 0
    assert cli("run", "cli_failing", "--watch").code == 1
    run = start(cli, "cli_forever")
    cli.ok("cancel", run, "--reason", "enough")
    assert cli("watch", run).code == 3
    assert cli("watch", "key:nobody").code == 4
    assert cli("watch", run, PERDURE_URL="http://127.0.0.1:9").code == 5


def test_watch_in_a_pipe_prints_one_line_per_change(cli: Cli) -> None:
    done = cli("run", "cli_greet", "name=Ada", "times=2", "--watch")
    kinds = [line[:2] for line in done.lines]
    assert kinds[-1] == ["run", "success"]
    assert ["task", "success"] in kinds
    assert len(kinds) == len({tuple(line) for line in done.lines})


def test_watch_draws_on_a_terminal(cli: Cli) -> None:
    done = cli("run", "cli_fan", "count=8", "--watch", tty=True, NO_COLOR="1")
    assert done.code == 0
    assert "cli_hello × 8" in done.out and "8 success" in done.out
    assert "result" in done.out


def test_watch_shows_a_failure_and_what_to_do(cli: Cli) -> None:
    done = cli("run", "cli_failing", "reason=tests", "--watch", tty=True)
    assert done.code == 1
    assert "it broke: tests" in done.out and "perdure retry" in done.out


def test_watch_sees_what_happens_while_it_watches(cli: Cli) -> None:
    run = start(cli, "cli_waiting")
    later = threading.Timer(0.5, lambda: (cli("signal", run, "go", "now"), cli("resolve", run, "approval", "true")))
    later.start()
    began = time.monotonic()
    assert cli("watch", run).code == 0
    assert time.monotonic() - began < 10
    later.join()


# -- show ----------------------------------------------------------------------------------------------------------


def test_show_a_success(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada", "--attr", "team=blue")
    found = ended(cli, run)
    assert (
        found["status"] == "success" and found["result"] == ["Hello, Ada!"] and found["attributes"] == {"team": "blue"}
    )
    out = cli.ok("show", run, tty=True, NO_COLOR="1")
    for part in ("✓ cli_greet", "success", run, "team=blue", '["Hello, Ada!"]', "✓ cli_hello", f"{cli.url}/runs/{run}"):
        assert part in out
    plain = dict(line[:2] for line in cli("show", run).lines if line[0] != "task")
    assert (plain["id"], plain["status"], plain["result"]) == (run, "success", '["Hello, Ada!"]')


def test_show_a_failure_with_its_traceback(cli: Cli) -> None:
    run = start(cli, "cli_failing", "reason=tests")
    ended(cli, run)
    out = cli.ok("show", run, tty=True, NO_COLOR="1")
    assert "✗ cli_failing" in out and "it broke: tests" in out
    assert "Traceback" in out and "flows.py" in out
    assert f"perdure retry {run}" in out


def test_show_what_a_run_waits_for(cli: Cli) -> None:
    run = start(cli, "cli_waiting")
    deadline = time.monotonic() + 10
    while "waiting" not in (out := cli.ok("show", run, tty=True)):
        assert time.monotonic() < deadline, out
    assert f"perdure watch {run}" in out
    cli.ok("cancel", run)


def test_output_as_yaml_and_projected(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada")
    ended(cli, run)
    assert yaml.safe_load(cli.ok("show", run, "-o", "yaml"))["id"] == run
    assert json.loads(cli.ok("show", run, "--fields", "status,tasks.success")) == {
        "status": "success",
        "tasks.success": 1,
    }
    assert yaml.safe_load(cli.ok("show", run, "-o", "yaml", "--fields", "status")) == {"status": "success"}
    unknown = cli("show", run, "--fields", "colour")
    assert unknown.code == 2 and "unknown field 'colour'; available: id, workflow" in unknown.err
    assert cli("show", run, "--fields", "id", "-o", "table").code == 2


def test_runs_by_prefix_and_by_last(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada")
    assert json.loads(cli.ok("show", run[:23], "--fields", "id")) == {"id": run}
    assert json.loads(cli.ok("show", "@last", "--fields", "id")) == {"id": run}
    other = Cli(cli.url, cli.state / "elsewhere")
    newer = start(other, "cli_greet", "name=Grace")
    assert json.loads(cli.ok("show", "@last", "--fields", "id")) == {"id": run}, "what this user started"
    forgetful = Cli(cli.url, cli.state / "nothing")
    assert json.loads(forgetful.ok("show", "@last", "--fields", "id")) == {"id": newer}, "the server's latest"


def test_last_of_another_database_is_forgotten(cli: Cli) -> None:
    newest = start(cli, "cli_greet", "name=Ada")
    (cli.state / "perdure" / "last.json").write_text(json.dumps({cli.url: "01a1dd0e-b16f-7000-91c4-5ab16e404444"}))
    assert json.loads(cli.ok("show", "@last", "--fields", "id")) == {"id": newest}


# -- list ----------------------------------------------------------------------------------------------------------


def test_list_takes_a_query_and_a_saved_view(cli: Cli) -> None:
    ended(cli, start(cli, "cli_greet", "name=Ada", "--attr", "order=zeta"))
    run = json.loads(cli.ok("show", "@last", "-o", "json"))["id"]
    assert cli.ok("list", "--query", "attr.order = zeta").split("\t")[0] == run
    wrong = cli("list", "--query", "stauts = failed")
    assert wrong.code == 2 and "did you mean 'status'?" in wrong.err
    cli.ok("view", "save", "zeta", "attr.order = zeta")
    assert cli("views").lines[0][:2] == ["zeta", "attr.order = zeta"]
    assert cli.ok("list", "--view", "zeta", "--query", "status = success").split("\t")[0] == run
    cli.ok("view", "delete", "zeta")
    assert cli("list", "--view", "zeta").code == 4


def test_list_filters(cli: Cli) -> None:
    good = start(cli, "cli_greet", "name=Ada", "--attr", "batch=one")
    bad = start(cli, "cli_failing", "--attr", "batch=one")
    ended(cli, good), ended(cli, bad)
    listed = [line[0] for line in cli("list").lines]
    assert listed.index(bad) < listed.index(good), "newest first"
    assert [line[0] for line in cli("list", "--attr", "batch=one").lines] == [bad, good]
    assert [line[0] for line in cli("list", "--attr", "batch=one", "--status", "failed").lines] == [bad]
    assert [line[0] for line in cli("list", "--attr", "batch=one", "-w", "cli_greet", "--since", "1h").lines] == [good]
    assert cli("list", "--attr", "batch=one", "--until", "1h").out == ""
    assert len(cli("list", "--limit", "1").lines) == 1
    assert len(cli("list", "--all").lines) >= 2
    assert {r["id"] for r in json.loads(cli.ok("list", "-t", "cli_failing", "-o", "json"))} >= {bad}


def test_list_on_a_terminal_and_in_a_pipe(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada", "--key", "for-the-table")
    ended(cli, run)
    table = cli.ok("list", tty=True)
    assert "workflow" in table.splitlines()[0] and "✓ success" in table and "for-the-table" in table
    line = next(line for line in cli("list").lines if line[0] == run)
    assert line[1:4] == ["success", "cli_greet", "for-the-table"] and line[4].endswith("Z")
    assert "no runs match" in cli.ok("list", "-w", "nothing", tty=True)
    assert cli("list", "--since", "yesterday").code == 2
    assert "yesterday" in cli("list", "--since", "yesterday").err


# -- the rest ------------------------------------------------------------------------------------------------------


def test_logs(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada", "times=2")
    out = cli("logs", run, "-f").lines
    texts = [line[3] for line in out]
    assert texts.count("saying hello to Ada") == 2 and texts.count("Ada was greeted") == 2
    assert {line[1] for line in out} == {"cli_hello"}
    assert "warning" in {line[2] for line in out}
    assert len(cli("logs", run, "0").lines) == 2
    assert len(cli("logs", run, "cli_hello", "--attempt", "1").lines) == 4
    assert "saying hello" in cli.ok("logs", run, tty=True)
    assert len(json.loads(cli.ok("logs", run, "-o", "json"))) == 4
    assert cli("logs", run, "nothing").code == 4
    assert cli("logs", run, "--attempt", "1").code == 2


def test_history(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada")
    ended(cli, run)
    events = json.loads(cli.ok("history", run, "-o", "json"))
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "RunStarted"
    assert [e["seq"] for e in json.loads(cli.ok("history", run, "--after", "2", "-o", "json"))][0] == 3
    assert "RunStarted" in cli.ok("history", run, tty=True)


def test_signal_resolve_and_state(cli: Cli) -> None:
    run = start(cli, "cli_waiting")
    deadline = time.monotonic() + 10
    while cli("state", run, "progress").out != "50\n":
        assert time.monotonic() < deadline
    assert json.loads(cli.ok("state", run, "progress", "-o", "json")) == {"name": "progress", "value": 50}
    assert cli("state", run, "nothing").code == 4
    sent = cli("signal", run, "go", "onward")
    assert sent.code == 0 and run in sent.out and f"perdure show {run}" in sent.err
    cli.ok("resolve", run, "approval", "true")
    assert ended(cli, run)["result"] == "onward True"
    late = cli("resolve", run, "approval", "false")
    assert late.code == 1 and late.err.startswith("perdure: ")


def test_cancel_prints_its_link(cli: Cli) -> None:
    run = start(cli, "cli_forever")
    done = cli("cancel", run, "--reason", "enough", "-o", "json")
    assert json.loads(done.out)["id"] == run, "stdout stays parseable"
    assert f"{cli.url}/runs/{run}" in done.err and f"perdure watch {run}" in done.err
    assert ended(cli, run)["status"] == "cancelled"
    assert cli("cancel", run).code == 1


def test_retry(cli: Cli, repaired: Path) -> None:
    run = start(cli, "cli_repair")
    assert ended(cli, run)["status"] == "failed"
    repaired.touch()
    cli.ok("retry", run)
    assert cli("watch", run).code == 0
    assert ended(cli, run)["result"] == "repaired"
    assert cli("retry", run).code == 1


def test_resume_of_a_run_that_is_not_stuck(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada")
    ended(cli, run)
    done = cli("resume", run)
    assert done.code == 1 and "neither paused nor stuck" in done.err


def test_open_opens_the_browser_and_prints_the_link(cli: Cli) -> None:
    run = start(cli, "cli_greet", "name=Ada")
    page = f"{cli.url}/runs/{run}"
    with mock.patch("webbrowser.open", return_value=True) as browser:
        assert cli.ok("open", run, tty=True, DISPLAY=":0") == f"{page}\n"
        browser.assert_called_once_with(page)
        assert cli.ok("open", tty=True, DISPLAY=":0") == f"{cli.url}/\n"
        browser.reset_mock()
        assert cli.ok("open", run, "--print", tty=True, DISPLAY=":0") == f"{page}\n"
        assert cli.ok("open", run, DISPLAY=":0") == f"{page}\n", "a pipe wants the link"
        if sys.platform == "linux":
            assert cli.ok("open", run, tty=True, DISPLAY="", WAYLAND_DISPLAY="") == f"{page}\n"
        browser.assert_not_called()
    with mock.patch("webbrowser.open", return_value=False):
        assert "open the link yourself" in cli.ok("open", run, tty=True, DISPLAY=":0")


HEAVY = (
    "pydantic",
    "httpx2",
    "httpcore2",
    "anyio",
    "asyncio",
    "rich",
    "fastapi",
    "grpc",
    "google.protobuf",
    "asyncpg",
    "yaml",
    "psutil",
    "perdure.flows",
    "perdure.core.wait_reasons",
    "perdure.engine",
    "perdure.store",
    "perdure.sdk",
    "perdure.server",
)
"""Modules that `perdure list` has no use for. Each took a tenth of a second or more of the one second that it once needed."""


@pytest.mark.parametrize("words", [["list"], ["list", "-s", "running", "--limit", "5", "-o", "json"], ["workers"]])
def test_a_list_loads_nothing_heavy(cli: Cli, words: list[str]) -> None:
    program = (
        f"import sys\nsys.argv = ['perdure', *{words!r}]\nfrom perdure.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(*sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    environment = clean_environment() | {"PERDURE_URL": cli.url, "XDG_STATE_HOME": str(cli.state)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.strip() == ""


def test_workflows_workers_and_queues(cli: Cli) -> None:
    assert "cli_greet" in {line[0] for line in cli("workflows").lines}
    assert [line[0] for line in cli("workflows", "-t", "cli_gree").lines] == ["cli_greet"]
    workers = until_sync(lambda: json.loads(cli.ok("workers", "-o", "json")), "a connected worker is listed", 15)
    assert "cli_hello" in workers[0]["tasks"]
    assert "ready" in cli.ok("workers", tty=True)
    assert cli("worker", "list", "--fields", "name").code == 0
    assert cli("queues").code == 0
    assert "run.cancel" in {line[2] for line in cli("audit").lines} or cli("audit").code == 0


def test_a_workflow_is_shown_with_its_versions(cli: Cli) -> None:
    found = json.loads(cli.ok("workflow", "show", "cli_greet", "--json"))
    assert (found["name"], found["kind"]) == ("cli_greet", "code")
    shown = cli.ok("workflow", "show", "cli_greet", tty=True, NO_COLOR="1")
    assert "active runs" in shown and "perdure versions cli_greet" in shown
    assert [line[0] for line in cli("versions", "cli_greet").lines] == [found["version"]]
    unknown = cli("workflow", "show", "cli_gret")
    assert unknown.code == 4 and "cli_greet" in unknown.err


def test_a_command_in_the_place_of_a_workflow_is_pointed_out(cli: Cli) -> None:
    done = cli("run", "workers")
    assert done.code == 4 and "`perdure workers` is a command of its own" in done.err


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there(cli: Cli) -> None:
    done = cli("list", PERDURE_URL="http://127.0.0.1:9")
    assert (done.code, done.out) == (5, "")
    assert "perdure: no Perdure server answers at http://127.0.0.1:9" in done.err
    assert "perdure dev" in done.err and "PERDURE_URL" in done.err
    assert cli("list", "--url", "127.0.0.1:9").code == 5


def test_an_unknown_run(cli: Cli) -> None:
    for run in ("01a1dd0e-b16f-7000-91c4-5ab16e404444", "key:nobody"):
        done = cli("show", run)
        assert done.code == 4 and done.err.startswith("perdure: ") and "Traceback" not in done.err


def test_a_namespace_that_does_not_exist(cli: Cli) -> None:
    done = cli("list", "-n", "nowhere")
    assert done.code == 4 and "nowhere" in done.err


def test_colours_are_for_terminals(cli: Cli) -> None:
    start(cli, "cli_greet", "name=Ada")
    assert "\x1b[" in cli.ok("list", tty=True)
    assert "\x1b[" not in cli.ok("list", tty=True, NO_COLOR="1")
    assert "\x1b[" not in cli.ok("list")
