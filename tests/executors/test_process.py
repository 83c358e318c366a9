"""Commands as attempts of a worker: what they get, what they give, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.core.calls import encode_offer
from perdure.core.retry import End
from perdure.errors import InvalidInput
from perdure.executors import registry
from perdure.executors.command_output import STDOUT_BYTES_MAX
from perdure.executors.process import ProcessExecutor
from perdure.executors.process.executor import BASE_ENV, ProcessOptions
from tests.fakes.waiting import turns, until
from tests.sdk.test_builtin_tasks import RUN, Bench

OWN = {"PERDURE_JOB", "PERDURE_RUN_ID", "PERDURE_TASK_ID", "PERDURE_ATTEMPT", "PERDURE_RESULT_FILE"}


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    def make(**options: Any) -> Bench:
        return Bench(ProcessExecutor(ProcessOptions(state_dir=str(tmp_path / "state"), **options)))

    return make


@pytest.mark.usefixtures("interpreter")
async def test_a_command_gives_its_output_and_what_it_wrote_is_kept_line_by_line(bench: Any) -> None:
    async with bench() as b:
        code = "import sys; print('one'); print('zwö'); print('hm', file=sys.stderr)"
        got = await b.value("perdure.run", command=[sys.executable, "-X", "utf8", "-c", code])
        assert got == {"exit_code": 0, "stdout": "one\nzwö\n"}
        assert b.lines("stdout") == ["one", "zwö"] and b.lines("stderr") == ["hm"]


@pytest.mark.parametrize(
    ("out", "expected"),
    [('{"a": [1]}', {"a": [1]}), ("7\n", 7), ("7 8", None), ("", None), ("[1]\n[2]\n", [2]), ("text\n3", 3)],
)
async def test_output_that_is_json_or_ends_with_it_is_parsed(bench: Any, out: str, expected: object) -> None:
    async with bench() as b:
        got = await b.value("perdure.run", command=["printf", "%s", out])
        assert got["stdout"] == out and got.get("json") == expected and ("json" in got) == (expected is not None)


async def test_a_command_gets_a_clean_environment(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the worker's keys and databases, nor anything that nobody named."""
    secrets = {
        "PERDURE_API_KEY": "k",
        "PERDURE_DSN": "d",
        "DATABASE_URL": "d",
        "AWS_SECRET_ACCESS_KEY": "a",
        "PASSED": "p",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TZ", "UTC")
    async with bench() as b:
        got = dict(
            line.split("=", 1) for line in (await b.value("perdure.run", command=["env"]))["stdout"].splitlines()
        )
        assert not secrets.keys() & got.keys()
        assert got.keys() <= {*BASE_ENV, *OWN, "HOME", "PWD"} and {"PATH", "TZ"} <= got.keys()
        got = (await b.value("perdure.run", command=["env"], env={"PATH": None, "HOME": None, "A": 1}))["stdout"]
        assert "A=1\n" in got and "PATH=" not in got and "HOME=" not in got
    async with bench(secrets="PASSED, UNKNOWN") as b:
        assert "PASSED=" not in (await b.value("perdure.run", command=["env"]))["stdout"]
        assert "PASSED=p\n" in (await b.value("perdure.run", command=["env"], secrets=["PASSED"]))["stdout"]
        for name in ("UNKNOWN", "AWS_SECRET_ACCESS_KEY", "PERDURE_API_KEY"):
            report = await b.report("perdure.run", command=["env"], secrets=[name])
            assert report.end is End.FINAL_ERROR and name in report.failure.message


async def test_a_secret_that_a_command_prints_is_masked(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t-t0ken")
    script = 'printf \'s3cr3t\'; sleep 0.6; printf -- "-t0ken\\n"; echo err $TOKEN >&2; echo "{\\"t\\":\\"$TOKEN\\"}"'
    async with bench(secrets="TOKEN") as b:
        got = await b.value("perdure.run", command=script, secrets=["TOKEN"])
        assert got["json"] == {"t": "***"} and "s3cr3t-t0ken" not in json.dumps(got)
        assert b.lines("stdout")[0] == "***" and b.lines("stderr") == ["err ***"]
        report = await b.report("perdure.run", command="echo $TOKEN >&2; exit 1", secrets=["TOKEN"])
        assert "***" in report.failure.message and "s3cr3t" not in report.failure.message


@pytest.mark.parametrize("name", ["PERDURE_API_KEY", "PERDURE_DSN", "DATABASE_URL", "A=b"])
def test_variables_of_perdure_are_not_passed_on_request_either(bench: Any, name: str) -> None:
    with pytest.raises(InvalidInput, match="secrets"):
        ProcessExecutor(ProcessOptions(secrets=name))


async def test_text_is_for_the_shell_and_a_list_is_not(bench: Any) -> None:
    async with bench() as b:
        assert (await b.value("perdure.run", command="echo $A | tr a b", env={"A": "aa"}))["stdout"] == "bb\n"
        assert (await b.value("perdure.run", command=["echo", "$A | tr a b", 7]))["stdout"] == "$A | tr a b 7\n"


async def test_a_command_gets_input_environment_and_directory(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_WORKER", "w")
    async with bench(secrets="FROM_WORKER") as b:
        assert (await b.value("perdure.run", command=["cat"], stdin="text"))["stdout"] == "text"
        assert (await b.value("perdure.run", command=["cat"], stdin={"a": 1}))["json"] == {"a": 1}
        assert (await b.value("perdure.run", command=["cat"]))["stdout"] == ""
        got = await b.value(
            "perdure.run", command="echo $FROM_WORKER $N; pwd", env={"N": 3}, secrets=["FROM_WORKER"], cwd=str(tmp_path)
        )
        assert got["stdout"] == f"w 3\n{tmp_path}\n"
        got = await b.value("perdure.run", command="echo -$FROM_WORKER-")
        assert got["stdout"] == "--\n"
        big = "x" * 200_000
        got = await b.value("perdure.run", command=["true"], stdin=big)  # it is not read
        assert got["exit_code"] == 0


async def test_another_exit_code_is_an_error_with_what_it_complained_about(bench: Any) -> None:
    async with bench() as b:
        report = await b.report("perdure.run", command="echo out; echo broken >&2; exit 3")
        assert report.end is End.ERROR and report.failure is not None
        assert report.failure.type == "ExitCode"
        assert report.failure.message.endswith("exited with code 3\nbroken")
        report = await b.report("perdure.run", command="kill -9 $$")
        assert report.failure is not None and "was ended by SIGKILL" in report.failure.message


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"command": []}, "there is no command"),
        ({"command": ""}, "there is no command"),
        ({"command": ["no-such-program-here"]}, "cannot run 'no-such-program-here'"),
        ({"command": ["true"], "cwd": "/no/such/place"}, "no directory '/no/such/place'"),
        ({"command": ["a\x00b"]}, "a zero character"),
        ({"command": ["true", {}]}, "is a dict"),
        ({"command": ["true"], "env": {"A=B": "1"}}, "cannot be the name of a variable"),
        ({"command": ["true"], "extra": 1}, "takes no 'extra'"),
        ({"command": ["true"], "limits": {"cpu": 1}}, "limits has no 'cpu'"),
        ({"command": ["true"], "limits": {"cpu_s": "1; reboot"}}, "a whole number"),
        ({"command": ["true"], "exit_codes": {"256": "fail"}}, "no exit code"),
        ({"command": ["true"], "exit_codes": {"3": "maybe"}}, "it can be"),
        ({"command": ["echo", "x" * 200_000]}, "ARGUMENT_BYTES_MAX"),
    ],
)
async def test_a_command_that_can_never_run_is_final_and_says_why(bench: Any, call: dict[str, Any], said: str) -> None:
    async with bench() as b:
        report = await b.report("perdure.run", **call)
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert said in report.failure.message


async def test_of_much_output_the_end_is_kept_and_the_result_fits(bench: Any) -> None:
    async with bench() as b:
        got = await b.value("perdure.run", command="yes line | head -n 200000; printf end")
        assert got["stdout"].endswith("line\nend") and len(got["stdout"]) == STDOUT_BYTES_MAX
        got = await b.value("perdure.run", command="head -c 1000000 /dev/zero")
        assert 0 < len(json.dumps(got["stdout"])) <= 2 * STDOUT_BYTES_MAX
        items = list(range(15_000))
        got = await b.value("perdure.run", command=["cat"], stdin=items)
        assert got["json"] == items  # more than is kept as text


async def test_cancelling_ends_everything_the_command_started(bench: Any, tmp_path: Path) -> None:
    async with bench() as b:
        file = tmp_path / "pids"
        script = f"sleep 100 & echo $! > {file}.new; mv {file}.new {file}; sleep 100"
        seq = b.begin("perdure.run", command=script)
        await until(file.exists)
        b.worker.cancel(RUN, seq, 1)
        assert (await b.end(seq)).end is End.CANCELLED
        pid = int(file.read_text())
        await until(lambda: not _is_alive(pid))


@pytest.mark.usefixtures("interpreter")
async def test_who_does_not_go_when_asked_is_made_to(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    code = f"""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open({str(file)!r}, "w") as f:
    f.write(str(os.getpid()))
signal.pause()
"""
    async with bench(grace_s=0.2) as b:
        seq = b.begin("perdure.run", command=[sys.executable, "-c", code])
        await until(lambda: file.exists() and bool(file.read_text()))
        pid = int(file.read_text())
        b.worker.cancel(RUN, seq, 1)
        assert (await b.end(seq)).end is End.CANCELLED
        await until(lambda: not _is_alive(pid))


async def test_an_attempt_that_is_cancelled_as_it_begins_leaves_no_process(bench: Any, tmp_path: Path) -> None:
    marks = [tmp_path / str(i) for i in range(20)]
    async with bench() as b:
        seqs = [b.begin("perdure.run", command=f"echo $$ > {mark}; exec sleep 100") for mark in marks]
        for i, seq in enumerate(seqs):
            await turns(i % 5)
            b.worker.cancel(RUN, seq, 1)
        await until(lambda: b.worker.slots_free == b.worker.slots)
        pids = [int(text) for mark in marks if mark.exists() and (text := mark.read_text())]
        await until(lambda: not any(map(_is_alive, pids)))


async def test_what_a_command_leaves_behind_ends_with_its_attempt(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with bench() as b:
        began = asyncio.get_running_loop().time()
        got = await b.value("perdure.run", command=f"sleep 100 & echo $! > {file}; echo done")
        assert got["stdout"] == "done\n"
        assert asyncio.get_running_loop().time() - began < 10
        await until(lambda: not _is_alive(int(file.read_text())))


async def test_a_result_file_is_the_value_whatever_is_printed(bench: Any) -> None:
    async with bench() as b:
        got = await b.value("perdure.run", command="echo 1; echo '{\"n\": 2}' > $PERDURE_RESULT_FILE")
        assert got["json"] == {"n": 2} and got["stdout"] == "1\n"
        report = await b.report("perdure.run", command="echo {oops > $PERDURE_RESULT_FILE")
        assert report.failure.message == "the result file is not JSON"
        report = await b.report("perdure.run", command="truncate -s 17000000 $PERDURE_RESULT_FILE")
        assert report.end is End.FINAL_ERROR and "JOB_RESULT_BYTES_MAX" in report.failure.message


async def test_a_last_line_that_is_almost_json_ends_the_attempt(bench: Any) -> None:
    async with bench() as b:
        got = await b.value("perdure.run", command=["printf", r'"\377"\n'])
        assert "json" not in got


async def test_a_result_file_that_points_elsewhere_is_not_read(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "other").write_text('"of another"')
    async with bench() as b:
        got = await b.value("perdure.run", command=f"ln -s {tmp_path}/other $PERDURE_RESULT_FILE; echo 1")
        assert got["json"] == 1


async def test_input_is_on_stdin_in_a_variable_and_in_a_file(bench: Any) -> None:
    async with bench() as b:
        got = await b.value(
            "perdure.run", command='cat; echo; echo "$PERDURE_INPUT"; cat $PERDURE_INPUT_FILE', input={"a": "$(id)"}
        )
        assert got["stdout"].splitlines() == ['{"a":"$(id)"}'] * 3
        got = await b.value(
            "perdure.run",
            command="wc -c; env | grep -c ^PERDURE_INPUT=",
            input="x" * 40_000,
            exit_codes={"1": "success"},
        )
        assert got["stdout"].split() == ["40002", "0"]


async def test_exit_codes_mean_what_the_task_says(bench: Any) -> None:
    async with bench() as b:
        codes = {"3": "success", "4": "fail", "5": "retry"}
        got = await b.value("perdure.run", command="echo 1; exit 3", exit_codes=codes)
        assert got["exit_code"] == 3 and got["json"] == 1
        assert (await b.report("perdure.run", command="exit 4", exit_codes=codes)).end is End.FINAL_ERROR
        assert (await b.report("perdure.run", command="exit 5", exit_codes=codes)).end is End.ERROR


async def test_limits_hold(bench: Any) -> None:
    async with bench() as b:
        shown = await b.value(
            "perdure.run", command="ulimit -n; ulimit -f", limits={"open_files": 33, "file_bytes": 5120}
        )
        assert shown["stdout"].split() == ["33", "10"]
        report = await b.report("perdure.run", command="while :; do :; done", limits={"cpu_s": 1})
        assert report.end is End.ERROR and ("SIGXCPU" in report.failure.message or "SIGKILL" in report.failure.message)
        report = await b.report("perdure.run", command="head -c 100000 /dev/zero > big", limits={"file_bytes": 1024})
        assert report.end is End.ERROR


async def test_each_attempt_has_a_directory_of_its_own(bench: Any) -> None:
    async with bench() as b:
        first = await b.value("perdure.run", command="pwd; echo $HOME; touch mine; ls")
        second = await b.value("perdure.run", command="pwd; ls")
        assert first["stdout"].split()[0] == first["stdout"].split()[1] != second["stdout"].split()[0]
        assert first["stdout"].split()[2] == "mine" and len(second["stdout"].split()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run commands as another user")
async def test_commands_run_as_another_user_where_the_worker_says_so(bench: Any, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    async with bench(user="nobody") as b:
        got = await b.value(
            "perdure.run", command="id -un; id -G; touch x; cat; echo 7 > $PERDURE_RESULT_FILE", input=1
        )
        assert got["stdout"].split()[0] == "nobody" and len(got["stdout"].split()) == 3 and got["json"] == 7
        report = await b.report("perdure.run", command=f"cat {tmp_path}/state/default/*/*/job")
        assert report.end is End.ERROR
    with pytest.raises(InvalidInput, match="no such user"):
        ProcessExecutor(ProcessOptions(user="nobody-of-this-name"))


INJECTIONS = [
    "; touch HIT",
    "$(touch HIT)",
    "`touch HIT`",
    "| touch HIT",
    "&& touch HIT",
    "\n touch HIT",
    "' ; touch HIT '",
    '" ; touch HIT "',
    "--help",
    "-rf",
    "../../etc/passwd",
    "${IFS}touch${IFS}HIT",
    "%s%n",
]


@pytest.mark.parametrize("text", INJECTIONS)
async def test_values_are_never_commands(bench: Any, text: str) -> None:
    async with bench() as b:
        got = await b.value("perdure.run", command=["printf", "%s", text], env={"V": text})
        assert got["stdout"] == text
        got = await b.value("perdure.run", command='printf %s "$V"; ls', env={"V": text}, stdin=text, input=None)
        assert got["stdout"] == text
        report = await b.report("perdure.run", command=["true"], cwd=f"/tmp/{text}/x")
        assert report.end is End.FINAL_ERROR


@pytest.mark.parametrize("name", ["LD_PRELOAD", "BASH_ENV", "ENV", "PYTHONPATH"])
async def test_a_variable_reaches_the_command_and_not_the_worker_or_its_shim(
    bench: Any, name: str, tmp_path: Path
) -> None:
    """The shim is a plain `sh -c`, which reads no file; a library that does not exist is only complained about."""
    trap = tmp_path / "trap.sh"
    trap.write_text(f"touch {tmp_path}/HIT")
    async with bench() as b:
        got = await b.value("perdure.run", command=["env"], env={name: str(trap)})
        assert f"{name}={trap}" in got["stdout"]
        assert not (tmp_path / "HIT").exists()


async def test_offers_are_taken_too(bench: Any) -> None:
    async with bench() as b:
        b.assign("perdure.run", encode_offer({"command": "echo 1"}), 99)
        assert json.loads((await b.end(99)).value)["json"] == 1


def test_options_come_from_flags_and_environment() -> None:
    env = {"PERDURE_EXECUTOR_PROCESS_GRACE_S": "1.5", "PERDURE_EXECUTOR_PROCESS_SECRETS": "A,B"}
    (made,) = registry.load(["process"], registry.parse_options(["process.grace_s=2"]), env)
    assert isinstance(made, ProcessExecutor) and made.options.grace_s == 2 and made.options.secrets == "A,B"
    for given, said in (
        (["process.graces=1"], "did you mean 'grace_s'"),
        (["process.grace_s=soon"], "is wrong"),
        (["other.a=1"], "add --executor other"),
        (["process"], "NAME.KEY=VALUE"),
    ):
        with pytest.raises(InvalidInput, match=said):
            registry.load(["process"], registry.parse_options(given), {})
    with pytest.raises(InvalidInput, match="did you mean 'process'"):
        registry.load(["proces"], {}, {})


async def test_closing_the_worker_ends_its_commands(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with bench() as b:
        b.begin("perdure.run", command=f"echo $$ > {file}; exec sleep 100")
        await until(lambda: file.exists() and bool(file.read_text()))
    await until(lambda: not _is_alive(int(file.read_text())))


def _is_alive(pid: int) -> bool:
    """A process that ended and waits to be reaped is not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
