"""Everything the documentation says about flows is tried: documents compile, runnable ones run, expressions have the values shown.

On top of what tests/docs/pages.py reads, the line above a block may hold

    <!-- run: {"input": {...}, "resolve": {...}, "signal": {...}} -->   deployed and run with the tasks of the page; the next block is what comes out
    <!-- file: broken.yaml -->                                         a file whose name begins so has to be refused

Blocks that say `tests/docs/test_flow_docs.py` in their `no-run` remark run here: Python with the files of the page beside it, commands
against a server and a worker that has the page's Python files. As a program, this file plays the runnable flows of one page.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.core import events as ev
from perdure.core import expressions, limits
from perdure.core.expressions import FUNCTION_NAMES, ExprError, template
from perdure.flows import compile as compile_
from perdure.flows import source
from perdure.flows.compile import Compiled, compile_flow, dag, graph, kinds, nodes, options, prepost, verbs, waits
from perdure.flows.decide.decider import Decider
from perdure.flows.decide.progress import node_statuses
from perdure.flows.problems import FlowError
from perdure.flows.source import document, read
from tests.cli.live import perdure
from tests.cli.processes import server, started
from tests.docs.pages import DOCS, ROOT, Block, all_pages, blocks_of, matches, name_of
from tests.docs.test_snippets import PYTEST_INI, environment, run_python
from tests.fakes.failures import Failures
from tests.fakes.waiting import until_sync

EXAMPLES = ROOT / "examples" / "flows"
REFERENCE = DOCS / "reference" / "flows.md"
EXPRESSIONS = DOCS / "reference" / "expressions.md"
HERE = "tests/docs/test_flow_docs.py"
BODIES = {"tasks", "graph", "start"}
PLAY_S_MAX = 60
LOOK_S_MAX = 15
_RUN = re.compile(r"^<!-- run: (\{.*\}) -->$")
_CODE = re.compile(r"^`+ ?(.*?) ?`+$")
_PICTURE = re.compile(r"[✓✗●] \S+  (?:success  in|failed  in|running  for|cancelled  in) ")


# -- reading -----------------------------------------------------------------------------------------------------------


def is_flow(block: Block) -> bool:
    """A document with a body; what cannot be read counts, so that it is noticed."""
    if block.language not in ("yaml", "json"):
        return False
    try:
        value = read(block.text).value
    except FlowError:
        return True
    return isinstance(value, dict) and bool(BODIES & set(value))


def flows_of(page: Path) -> list[Block]:
    return [b for b in blocks_of(page) if is_flow(b)]


def asked_of(page: Path, block: Block) -> dict[str, Any] | None:
    """How a block is to be run."""
    found = _RUN.match(page.read_text().splitlines()[block.line - 3])
    return None if found is None else json.loads(found[1])


def runnable(page: Path) -> list[tuple[Block, dict[str, Any], Block]]:
    """Flows that run, how, and the blocks that say what comes out."""
    blocks = blocks_of(page)
    pairs = zip(blocks, blocks[1:], strict=False)
    return [(b, asked, after) for b, after in pairs if is_flow(b) and (asked := asked_of(page, b)) is not None]


def compiled(block: Block, file: str = "page.yaml") -> Compiled:
    return compile_flow(read(block.text, name=file), name="page")


FLOW_PAGES = [p for p in all_pages() if flows_of(p)]


# -- documents ---------------------------------------------------------------------------------------------------------


def test_flows_on_all_pages_compile() -> None:
    with Failures() as failures:
        for page in FLOW_PAGES:
            for block in flows_of(page):
                with failures.of(f"{name_of(page)}, line {block.line}"):
                    check_flow(block)


def check_flow(block: Block) -> None:
    if block.remark == "file" and Path(block.remark_text).name.startswith("broken"):
        with pytest.raises(FlowError):
            compiled(block)
        return
    try:
        warnings = compiled(block).warnings
    except FlowError as error:
        raise AssertionError(f"\n{error}") from None
    said = [w.message for w in warnings]
    assert not said, said


def test_the_pages_about_flows_have_flows_to_try() -> None:
    how_to = [DOCS / "how-to" / f"{name}.md" for name in ("write-a-flow", "mix-flows-and-python", "deploy-flows")]
    assert {REFERENCE, ROOT / "README.md", *how_to} <= set(FLOW_PAGES)
    assert len(runnable(REFERENCE)) >= 20


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("page", [p for p in FLOW_PAGES if runnable(p)], ids=name_of)
def test_runnable_flows_give_what_the_page_shows(page: Path, dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.test_flow_docs", str(page)],
        cwd=ROOT,
        env=environment(dsn),
        capture_output=True,
        text=True,
        timeout=PLAY_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{name_of(page)}:\n{done.stdout}\n{done.stderr}"
    ends = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"end"')]
    expected = runnable(page)
    assert len(ends) == len(expected)
    for (block, _, after), end in zip(expected, ends, strict=True):
        where = f"{name_of(page)}, line {block.line}"
        if after.language == "json":
            assert end == {"end": "success", "result": json.loads(after.text)}, where
        else:
            assert after.language == "text", f"{where}: what comes out is shown as json, or as text if it fails"
            assert matches(after.text, f"{end['end']}: {end['result']}"), f"{where}: {end}"


def modules_of(page: Path) -> list[str]:
    """Programs of their own are left out: test_snippets.py runs them."""
    found = [b for b in blocks_of(page) if b.language == "python" and b.remark != "no-run"]
    return [b.text for b in found if "asyncio.run(" not in b.text]


async def play(page: Path) -> None:
    """Run the runnable flows of a page, one after the other, with the tasks its Python defines."""
    from perdure import Perdure, Promise, Signal, flow
    from perdure.errors import InvalidInput, RunFailed

    for text in modules_of(page):
        exec(compile(text, str(page), "exec"), {"__name__": "page"})
    async with Perdure(services={}, executors=["process"]) as client:
        for number, (block, asked, _) in enumerate(runnable(page)):
            name = f"page_{number}"
            await client.deploy(
                re.sub(r"^flow: .*$", f"flow: {name}", block.text, count=1, flags=re.MULTILINE), name=name
            )
            try:
                handle = await flow(name).start(**asked.get("input", {}))
            except InvalidInput as error:
                print(f"\n{json.dumps({'end': f'refused {error.code}', 'result': str(error)})}", flush=True)
                continue
            for key, value in asked.get("signal", {}).items():
                await Signal(key, Any).send(handle.id, value)
            for key, value in asked.get("resolve", {}).items():
                await Promise(key, Any).resolve(handle.id, value)
            try:
                end = {"end": "success", "result": await handle.result("3m")}
            except RunFailed as error:
                end = {"end": f"failed {error.failure.code}", "result": error.failure.message}
            print(f"\n{json.dumps(end)}", flush=True)  # what tasks print may stand before it


# -- expressions -------------------------------------------------------------------------------------------------------


def scope_of(page: Path) -> dict[str, Any]:
    (block,) = [b for b in blocks_of(page) if b.language == "json" and "input" in json.loads(b.text)]
    found: dict[str, Any] = json.loads(block.text)
    return found


def cells_of(line: str) -> list[str]:
    return [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def examples_of(page: Path) -> list[tuple[str, str]]:
    """Rows of tables whose last columns are called `example` and `gives`."""
    found: list[tuple[str, str]] = []
    in_table = False
    for line in page.read_text().splitlines():
        cells = cells_of(line) if line.startswith("|") else []
        if cells[-2:] == ["example", "gives"]:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and not set(line) <= set("|-"):
            codes = [_CODE.match(c) for c in cells[-2:]]
            assert codes[0] is not None and codes[1] is not None, line
            found.append((codes[0][1], codes[1][1]))
    return found


def test_expressions_have_the_values_shown() -> None:
    scope = scope_of(EXPRESSIONS)
    with Failures() as failures:
        for example, gives in examples_of(EXPRESSIONS):
            with failures.of(f"{example} gives {gives}"):
                check_expression(example, gives, scope)


def check_expression(example: str, gives: str, scope: dict[str, Any]) -> None:
    value = (
        json.loads(example) if example.startswith(('{"', "{'")) and ":" in example and "${" not in example else example
    )
    try:
        found = (expressions.from_json(value) if isinstance(value, dict) else expressions.parse(value)).evaluate(
            scope.__getitem__
        )
    except ExprError as error:
        assert gives.startswith("error: ") and matches(gives.removeprefix("error: "), error.message), error.message
        return
    assert json.dumps(found) == json.dumps(json.loads(gives))


def test_every_function_and_operator_has_an_example() -> None:
    examples = " ".join(example for example, _ in examples_of(EXPRESSIONS))
    missing = [f for f in sorted(FUNCTION_NAMES) if not re.search(rf"\b{f}\(", examples)]
    assert not missing, f"docs/reference/expressions.md has no example of {missing}"
    words = ["and", "or", "not", "in", "exists", "contains", "eq", "ne", "gt", "lt", "ge", "le"]
    for operator in [*words, "&&", "||", "!", "==", "!=", ">", "<", ">=", "<=", "??", "+", "-", "*", "/", "%", "?"]:
        assert operator in examples, operator
    as_json = " ".join(example for example, _ in examples_of(EXPRESSIONS) if example.startswith("{"))
    missing = [w for w in words if f'"{w}"' not in as_json]
    assert not missing, f"docs/reference/expressions.md has no JSON example of {missing}"


# -- the reference names everything ------------------------------------------------------------------------------------


KEYS = {
    *compile_.DOCUMENT_KEYS,
    *dag.DAG_KEYS,
    *dag.CASE_KEYS,
    *dag.RUN_IF,
    *dag.ON_FAILURE,
    *dag.RESERVED,
    *graph.NODE_KEYS,
    *graph.EDGE_KEYS,
    *kinds.KIND_KEYS,
    *kinds.KINDS,
    *kinds.STRATEGIES,
    *kinds.MODES,
    *nodes.ON_ERROR,
    *options.RETRY_KEYS,
    *prepost.PREP_KEYS,
    *prepost.POST_KEYS,
    *verbs.HTTP_KEYS,
    *verbs.RUN_KEYS,
    *verbs.JOB_KEYS,
    *waits.WAIT_KEYS,
    *verbs.APPROVAL_KEYS,
}
BOUNDED = (limits, compile_, nodes, options, verbs, source, document, template, expressions)
TOLD_ELSEWHERE = {"ATTEMPTS_MAX", "INTEGER_MAX", "NAME_CHARS_MAX", "PAYLOAD_BYTES_MAX", "PROBLEMS_MAX"}
"""On the page about limits, in a sentence, or of no interest."""


def rows_of(page: Path) -> dict[str, str]:
    """The first two cells of every row of every table."""
    rows = [cells_of(line) for line in page.read_text().splitlines() if line.startswith("| ")]
    return {cells[0].split("`")[1]: cells[1] for cells in rows if cells[0].startswith("`")}


def test_the_reference_names_every_key() -> None:
    page = REFERENCE.read_text()
    missing = sorted(k for k in KEYS if not re.search(rf"`[^`\n]*(?<!\w){re.escape(k)}(?!\w)[^`\n]*`", page))
    assert not missing, f"docs/reference/flows.md says nothing about {missing}"


def test_the_limits_in_the_reference_are_the_real_ones() -> None:
    bounds = {n: v for module in BOUNDED for n, v in vars(module).items() if n.isupper() and n.endswith("_MAX")}
    told = {n: v for page in (REFERENCE, EXPRESSIONS) for n, v in rows_of(page).items() if n.endswith("_MAX")}
    assert len(told) >= 20
    for name, value in told.items():
        assert value == f"{int(bounds[name]):,}", f"{name} is {bounds[name]:,}"
    own = {n for module in BOUNDED[1:] for n in vars(module) if n.isupper() and n.endswith("_MAX") and n[0] != "_"}
    missing = own - told.keys() - TOLD_ELSEWHERE
    assert not missing, f"docs/reference/flows.md says nothing about {missing}"


BEFORE = {
    "all succeeded": ("a: {value: 1}\nb: {value: 1}", "depends_on: [a, b]"),
    "one succeeded, one was skipped by a choice": ("a: {value: 1}\nb: {value: 1, when: false}", "depends_on: [a, b]"),
    "all were skipped by a choice": (
        "c: {choice: [{when: false, then: a}, {else: x}]}\na: {value: 1}\nx: {value: 1}",
        "depends_on: [a]",
    ),
    "one failed": ("a: {value: 1}\nb: {value: '${ 1 / 0 }'}", "depends_on: [a, b]"),
    "one was skipped because of a failure": (
        "a: {value: '${ 1 / 0 }'}\nb: {depends_on: a, value: 1}",
        "depends_on: [b]",
    ),
    "a way to it was not taken, nothing failed": (
        "c: {choice: [{when: false, then: it}, {else: a}]}\na: {value: 1}",
        "",
    ),
}
"""What the rows of the table about run_if say, as tasks before `it` and how `it` hangs on them."""


def run_if_cases() -> list[tuple[str, str, str]]:
    """Situation, run_if, and what the page says becomes of the node."""
    lines = REFERENCE.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("| | `all_success` |"))
    words = [w.strip("`") for w in cells_of(lines[begin])[1:]]
    rows = [cells_of(line) for line in lines[begin + 2 : begin + 2 + len(BEFORE)]]
    return [(row[0], word, said) for row in rows for word, said in zip(words, row[1:], strict=True)]


def test_the_table_about_run_if_is_right() -> None:
    with Failures() as failures:
        for situation, run_if, said in run_if_cases():
            with failures.of(f"{situation}, {run_if}: {said}"):
                check_run_if(situation, run_if, said)


def check_run_if(situation: str, run_if: str, said: str) -> None:
    before, hangs = BEFORE[situation]
    it = f"it: {{{hangs}{', ' if hangs else ''}run_if: {run_if}, value: 1}}\nafter: {{depends_on: it, run_if: any_failed, value: 1}}"
    text = "tasks:\n" + "".join(f"  {line}\n" for line in f"{before}\n{it}".splitlines())
    decider = Decider(compile_flow(read(text), name="page").flow, bytes(16))
    decider.activate([ev.Recorded(1, 0, ev.RunStarted("page", "flow-0", b"{}"))], replay=True)
    statuses = node_statuses(decider)
    assert statuses["it"] == ("success" if said == "runs" else "skipped")
    tainted = statuses["after"] == "success"
    assert tainted == (said == "skipped, tainted")


# -- how-to pages ------------------------------------------------------------------------------------------------------


def ours(page: Path, language: str) -> list[Block]:
    return [b for b in blocks_of(page) if b.language == language and HERE in b.remark_text]


def write(directory: Path, block: Block) -> None:
    path = directory / block.remark_text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text + "\n")


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("page", [p for p in all_pages() if ours(p, "python")], ids=name_of)
def test_python_of_a_page_runs_with_its_flows(page: Path, dsn: str, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.remark == "file":
            write(tmp_path, block)
    run_python(page, ours(page, "python"), tmp_path, dsn)
    if any(tmp_path.glob("test_*.py")):
        (tmp_path / "pytest.ini").write_text(PYTEST_INI)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env=environment(dsn),
            capture_output=True,
            text=True,
            timeout=PLAY_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{name_of(page)}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("page", [p for p in all_pages() if ours(p, "console")], ids=name_of)
def test_commands_of_a_page_print_what_it_shows(
    page: Path, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written when the page comes to them, so that a later version of one replaces an earlier one."""
    monkeypatch.chdir(tmp_path)
    modules = [b for b in blocks_of(page) if b.remark == "file" and b.language == "python"]
    for block in modules:
        write(tmp_path, block)
    names = [b.remark_text for b in modules]
    with server(dsn, tmp_path, "--auth", "open") as one, contextlib.ExitStack() as stack:
        if names:
            worker = stack.enter_context(
                started("worker", *names, "--server", one.grpc, "--executor", "process", cwd=tmp_path)
            )
            worker.until("connected")
        for block in blocks_of(page):
            if block.remark == "file" and block.language in ("yaml", "json"):
                write(tmp_path, block)
            elif block.language == "console" and HERE in block.remark_text:
                run_commands(page, block, one.http, tmp_path / "state")


def run_commands(page: Path, block: Block, url: str, state: Path) -> None:
    for part in ("\n" + block.text).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        words = shlex.split(command, comments=True)
        assert words[0] == "perdure", command
        tried = Tried(words, expected, url, state)
        try:
            # Only a command that reads a run is repeated: the run may not be there yet.
            reads = words[1] in ("graph", "show", "list", "history")
            until_sync(tried.again, within_s=LOOK_S_MAX if reads else 0)
        except AssertionError:
            pytest.fail(f"{name_of(page)}, line {block.line}: `{command}` {tried.end}")


class Tried:
    """A command of a page that is executed until it prints what the page shows."""

    def __init__(self, words: list[str], expected: str, url: str, state: Path) -> None:
        self._words, self._expected, self._url, self._state = words, expected, url, state
        self.end = ""

    def again(self) -> bool:
        environment = {"NO_COLOR": "1", "COLUMNS": "110", "PERDURE_URL": self._url, "XDG_STATE_HOME": str(self._state)}
        done = perdure(*self._words[1:], tty=True, **environment)
        printed = tidy(done.out if done.out.strip() else done.err, watched=any("watch" in word for word in self._words))
        self.end = f"ended with {done.code} and prints\n{printed}\n{done.err}"
        return matches(self._expected, printed) if self._expected.strip() else done.code == 0


def tidy(text: str, *, watched: bool) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    pictures = [m.start() for m in _PICTURE.finditer(plain)]
    return plain[pictures[-1] :] if watched and pictures else plain


# -- examples ----------------------------------------------------------------------------------------------------------


def test_every_example_compiles_and_is_told_about() -> None:
    files = sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*.json")])
    assert len(files) >= 4
    about = (EXAMPLES / "README.md").read_text()
    for file in files:
        made = compile_flow(read(file.read_text(), name=file.name), name=file.stem)
        assert made.flow.name == file.stem and not made.warnings, made.warnings
        assert f"`{file.name}`" in about


@pytest.mark.usefixtures("interpreter")
def test_the_examples_run_and_give_what_they_say(dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "run.py")],
        cwd=ROOT,
        env=environment(dsn),
        capture_output=True,
        text=True,
        timeout=PLAY_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    shown = {b.text for b in blocks_of(EXAMPLES / "README.md") if b.language == "text"}
    assert any(matches(text, done.stdout) for text in shown), done.stdout


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1])))
