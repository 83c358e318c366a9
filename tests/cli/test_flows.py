"""Flows on the command line: without a server as far as possible, and through one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.live import Cli, perdure
from tests.cli.processes import started

GREETINGS = """
flow: cli_flow
input:
  names: {type: array, items: {type: string}}
tasks:
  hello:
    python: cli_hello
    foreach: input.names
    with: {name: "${item}"}
  after: {depends_on: hello, value: "${size(hello)}"}
output: ${hello}
"""
WRONG = GREETINGS.replace("depends_on: hello", "depends_on: helo").replace("foreach", "for_each")
NOWHERE = {"PERDURE_URL": "http://127.0.0.1:9"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flow(here: Path, name: str, text: str = GREETINGS) -> str:
    (here / f"{name}.yaml").write_text(text.replace("cli_flow", name))
    return f"{name}.yaml"


# -- without a server ----------------------------------------------------------------------------------------------


def test_validate_says_what_a_flow_is(here: Path) -> None:
    done = perdure("validate", flow(here, "good"), **NOWHERE)
    assert done.code == 0 and done.err == ""
    assert done.lines[0][:3] == ["good.yaml", "good", "dag"] and done.lines[0][3].startswith("flow-")


def test_validate_shows_mistakes_as_compilers_do(here: Path) -> None:
    done = perdure("validate", flow(here, "bad", WRONG), flow(here, "good"), **NOWHERE)
    assert done.code == 1
    assert "bad.yaml:8:5: error: unknown key 'for_each'" in done.err and "did you mean 'foreach'?" in done.err
    assert "bad.yaml:10:23: error:" in done.err, "all mistakes, not the first alone"
    line, caret = done.err.splitlines()[1:3]
    assert line[caret.index("^") :].startswith("for_each")
    assert [cells[0] for cells in done.lines] == ["good.yaml"]


def test_validate_for_programs(here: Path) -> None:
    done = perdure("validate", flow(here, "bad", WRONG), "-o", "json", **NOWHERE)
    (item,) = json.loads(done.out)
    assert done.code == 1 and not item["valid"] and item["version"] is None
    assert (item["problems"][0]["line"], item["problems"][0]["column"]) == (8, 5)


def test_validate_names_the_secrets_that_a_flow_needs(here: Path) -> None:
    text = "tasks:\n  a: {http: {url: 'https://a.b/${ secret.A }', headers: {x: '${ secret.B } ${ secret.A }'}}}\n"
    done = perdure("validate", flow(here, "good", text), "-o", "json", **NOWHERE)
    (item,) = json.loads(done.out)
    assert item["secrets"] == ["A", "B"]


def test_validate_looks_through_a_directory(here: Path) -> None:
    (here / "deep" / "node_modules").mkdir(parents=True)
    flow(here / "deep", "one")
    flow(here / "deep" / "node_modules", "not_ours", WRONG)
    (here / "compose.yaml").write_text("services: {db: {image: postgres}}")
    (here / "two.json").write_text('{"tasks": {"a": {"value": 1}}}')
    done = perdure("validate", **NOWHERE)
    assert done.code == 0
    assert [cells[:2] for cells in done.lines] == [["two.json", "two"], ["deep/one.yaml", "one"]]
    (here / "broken.yaml").write_text("flow: x\ntasks: {a: [}\n")
    assert "broken.yaml:2:" in perdure("validate", ".", **NOWHERE).err


def test_validate_where_there_is_nothing(here: Path) -> None:
    assert perdure("validate", **NOWHERE).code == 1
    missing = perdure("validate", "nowhere.yaml", **NOWHERE)
    assert missing.code == 2 and "nowhere.yaml" in missing.err


def test_a_warning_is_no_error_unless_it_is_asked_to_be(here: Path) -> None:
    name = flow(here, "warned", GREETINGS + 'state: {note: "${ input.names }"}\n')
    done = perdure("validate", name, **NOWHERE)
    assert done.code == 0 and "warning:" in done.err
    assert perdure("validate", name, "--strict", **NOWHERE).code == 1


def test_graph_draws_a_file(here: Path) -> None:
    name = flow(here, "drawn")
    text = perdure("flow", "graph", name, **NOWHERE).out
    assert "│ hello " in text and "▼" in text and "for each input.names" in text
    assert perdure("flow", "graph", name, "--ascii", **NOWHERE).out.isascii()
    assert perdure("flow", "graph", name, NO_UNICODE="1", **NOWHERE).out.isascii()
    data = json.loads(perdure("flow", "graph", name, "-o", "json", **NOWHERE).out)
    assert [n["key"] for n in data["nodes"]] == ["hello", "after"] and data["name"] == "drawn"


def test_graph_writes_a_picture(here: Path) -> None:
    name = flow(here, "drawn")
    done = perdure("flow", "graph", name, "--svg", "drawn.svg", **NOWHERE)
    assert done.code == 0 and "wrote drawn.svg" in done.err
    assert ElementTree.fromstring((here / "drawn.svg").read_text()).tag.endswith("svg")
    assert perdure("flow", "graph", name, "--svg", "-", **NOWHERE).out.startswith("<svg ")
    assert perdure("flow", "graph", name, "--svg", "no/such/place.svg", **NOWHERE).code == 2


def test_graph_prints_a_mermaid_flowchart(here: Path) -> None:
    name = flow(here, "drawn")
    text = perdure("flow", "graph", name, "--format", "mermaid", **NOWHERE).out
    assert text.splitlines()[:4] == ["---", 'title: "drawn"', "---", "flowchart TD"]
    assert 'n0["hello' in text and "n0 --> n1" in text
    assert perdure("flow", "graph", name, "--format", "mermaid", "--svg", "-", **NOWHERE).code == 2


def test_graph_of_a_file_with_mistakes_shows_them(here: Path) -> None:
    done = perdure("flow", "graph", flow(here, "bad", WRONG), **NOWHERE)
    assert done.code == 1 and "bad.yaml:8:5" in done.err and not done.out


def test_the_schema_without_a_server() -> None:
    done = perdure("flow", "schema", "--local")
    assert done.code == 0 and json.loads(done.out)["$schema"]
    alone = perdure("flow", "schema", **NOWHERE)
    assert alone.code == 0 and alone.out == done.out and "no server answers" in alone.err


# -- with one ------------------------------------------------------------------------------------------------------


def test_a_file_can_be_run(cli: Cli, here: Path) -> None:
    name = flow(here, "run_file")
    out = json.loads(cli.ok("run", name, 'names=["Ada"]', "--watch", "--fields", "result,workflow"))
    assert out == {"result": ["Hello, Ada!"], "workflow": "run_file"}
    again = cli("run", "run_file", "-i", '{"names": ["Grace", "Ada"]}', "--watch", "--fields", "result")
    assert json.loads(again.out)["result"] == ["Hello, Grace!", "Hello, Ada!"]


def test_a_file_with_mistakes_is_not_run(cli: Cli, here: Path) -> None:
    done = cli("run", flow(here, "bad_run", WRONG))
    assert done.code == 1 and "bad_run.yaml:8:5" in done.err
    assert cli("run", "bad_run").code == 4


def test_input_that_does_not_fit_is_wrong_usage(cli: Cli, here: Path) -> None:
    done = cli("run", flow(here, "strict"), "names=5")
    assert done.code == 2 and "input.names must be array, not integer" in done.err
    assert "strict takes names" in done.err


def test_deploy_tells_what_became_of_it(cli: Cli, here: Path) -> None:
    name = flow(here, "dep")
    created = cli("deploy", name)
    flow_name, version, outcome = created.lines[0]
    assert (flow_name, outcome) == ("dep", "created") and "perdure run dep" in created.err
    assert cli("deploy", name).lines[0] == ["dep", version, "unchanged"]
    changed = GREETINGS.replace("  after:", "  more: {value: 1}\n  after:").replace("size(hello)", "size(hello) + 1")
    dry = cli("deploy", flow(here, "dep", changed), "--dry-run")
    assert dry.lines[0][2:] == ["would be deployed", "+more ~after"]
    assert json.loads(cli.ok("workflows", "-t", "dep", "-o", "json"))[0]["version"] == version
    later = cli("deploy", name, "--no-activate")
    assert later.lines[0][2] == "created"
    assert json.loads(cli.ok("workflows", "-t", "dep", "-o", "json"))[0]["version"] == version
    assert cli("deploy", name).lines[0][2:] == ["activated", "+more ~after"]


def test_deploy_on_a_terminal(cli: Cli, here: Path) -> None:
    out = cli.ok("deploy", flow(here, "dep_tty"), tty=True, NO_COLOR="1")
    assert out.startswith("created dep_tty  flow-") and "perdure run dep_tty" in out and cli.url in out


def test_deploy_refuses_all_when_one_is_wrong(cli: Cli, here: Path) -> None:
    done = cli("deploy", flow(here, "dep_good"), flow(here, "dep_bad", WRONG))
    assert done.code == 1 and "dep_bad.yaml:8:5" in done.err
    assert cli("flow", "graph", "dep_good").code == 4, "nothing was deployed"
    assert cli("deploy", flow(here, "a"), flow(here, "b"), "--name", "x").code == 2


def test_a_flow_without_a_name_is_called_like_its_file(cli: Cli, here: Path) -> None:
    (here / "unnamed.yaml").write_text("tasks: {a: {value: 1}}")
    assert cli("deploy", "unnamed.yaml").lines[0][0] == "unnamed"
    assert cli("deploy", "unnamed.yaml", "--name", "otherwise").lines[0][0] == "otherwise"


def test_versions_go_back_and_forth(cli: Cli, here: Path) -> None:
    versions = []
    for n in (1, 2):
        (here / "act.yaml").write_text(f"tasks: {{a: {{value: {n}}}}}")
        versions.append(cli("deploy", "act.yaml").lines[0][1])
    newest = cli("versions", "act").lines
    assert [line[:2] for line in newest] == [[versions[1], "100%"], [versions[0], ""]]
    assert [line[:2] for line in cli("versions", "rollback", "act").lines][1] == [versions[0], "100%"]
    assert json.loads(cli.ok("run", "act", "--watch", "--fields", "result"))["result"] == {"a": 1}
    assert cli("versions", "rollback", "act").code != 0, "there is none before"
    prefix = versions[1].removeprefix("flow-")[:10]
    ramped = cli("versions", "set-current", "act", prefix, "--ramp", "25%").lines
    assert [line[:2] for line in ramped] == [[versions[1], "25%"], [versions[0], "75%"]]
    assert cli("versions", "set-current", "act", prefix).lines[0][:2] == [versions[1], "100%"]
    unknown = cli("versions", "set-current", "act", "flow-nope")
    assert unknown.code == 4 and versions[1] in unknown.err
    assert cli("versions", "set-current", "no_such_flow", "1").code == 4


def test_graph_of_a_run_shows_how_far_it_is(cli: Cli, here: Path) -> None:
    cli.ok("run", flow(here, "seen"), 'names=["Ada", "Grace"]', "--watch", "-o", "json")
    assert "✓ hello" in cli.ok("flow", "graph", "--run", "@last")
    assert "✓ hello" in cli.ok("flow", "graph", "seen", "--run", "@last")
    assert "✓" not in cli.ok("flow", "graph", "seen")
    data = json.loads(cli.ok("flow", "graph", "--run", "@last", "-o", "json"))
    assert [n["status"] for n in data["nodes"]] == ["success", "success"]
    assert "class n0,n1 success" in cli.ok("flow", "graph", "--run", "@last", "--format", "mermaid")
    assert cli("flow", "graph", "another", "--run", "@last").code == 2
    assert cli("flow", "graph").code == 2
    assert "has no graph" in cli.ok("flow", "graph", "cli_greet", tty=True)


def test_show_names_nodes(cli: Cli, here: Path) -> None:
    names = json.dumps([f"n{i}" for i in range(8)])
    cli.ok("run", flow(here, "shown"), f"names={names}", "--watch", "-o", "json")
    plain = cli.ok("show", "@last")
    assert "task\t3\thello[3]\tsuccess" in plain
    people = cli.ok("show", "@last", tty=True, NO_COLOR="1")
    assert "hello × 8" in people


def test_the_schema_knows_the_tasks_of_workers(cli: Cli) -> None:
    assert "cli_hello" in cli.ok("flow", "schema")
    assert "cli_hello" not in cli.ok("flow", "schema", "--local")


def test_nothing_is_left_in_the_directory(cli: Cli, here: Path) -> None:
    cli.ok("run", flow(here, "clean"), "names=[]", "--watch", "-o", "json")
    assert [p for p in os.listdir(here) if not p.startswith("perdure")] == ["clean.yaml"]


# -- dev -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("processes")
def test_dev_deploys_flows_and_shows_mistakes_without_stopping(dsn: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "deep.yaml").write_text("tasks: {a: {value: deep}}")
    (tmp_path / "compose.yaml").write_text("services: {db: {image: postgres}}")
    file = tmp_path / "day.yaml"
    file.write_text("flow: day\ntasks: {a: {value: 1}}\n")
    with started("dev", "--dsn", dsn, cwd=tmp_path) as dev:
        assert "day of day.yaml" in dev.until("flow ")
        assert "deep of flows/deep.yaml" in dev.until("flow ")
        url = re.search(r"http://[^\s?]+", dev.until("http://"))  # without the token: commands find that by themselves
        assert url is not None

        def result(name: str) -> object:
            done = perdure("run", name, "--watch", "--fields", "result", PERDURE_URL=url[0])
            assert done.code == 0, done.err
            return json.loads(done.out)["result"]

        assert (result("day"), result("deep")) == ({"a": 1}, {"a": "deep"})
        file.write_text("flow: day\ntasks: {a: {valu: 2}}\n")
        assert "day.yaml:2:13: unknown key 'valu'" in dev.until("trouble")
        dev.until("day stays as it was")
        assert result("day") == {"a": 1}
        file.write_text("flow: day\ntasks: {a: {value: 2}}\n")
        assert "day of day.yaml, flow-" in dev.until("flow ")
        assert result("day") == {"a": 2}
        file.unlink()
        dev.until("day.yaml is gone")
        assert not [line for line in dev.seen if "compose" in line], "what is no flow is passed over"
        assert not (tmp_path / "hello.py").exists(), "a directory with flows is not empty"
        assert dev.stop() == 0


@pytest.mark.usefixtures("processes")
def test_an_empty_directory_gets_a_flow_beside_the_code(dsn: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with started("dev", "--dsn", dsn, cwd=tmp_path) as dev:
        assert "perdure run greetings" in dev.until("hello.yaml")
        url = re.search(r"http://[^/]+", dev.until("http://"))
        assert url is not None
        done = perdure("run", "greetings", 'names=["Ada"]', "--watch", "--fields", "result", PERDURE_URL=url[0])
        assert json.loads(done.out) == {"result": "Hello, Ada!"}
        assert dev.stop() == 0
    assert perdure("validate", str(tmp_path)).code == 0
