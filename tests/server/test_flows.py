"""Declarative workflows over REST: documents, versions, which one is current, pictures, and what a start checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from perdure.flows.compile import version_of
from tests.server.rest_live import Live, live

DOUBLES = """
# Doubles every number, then adds them up.
flow: doubles
description: Doubles numbers.
input:
  numbers: {type: array, items: {type: integer}}
  note: {type: string, default: ""}
tasks:
  double:
    python: rest_double
    foreach: input.numbers
    with: {x: "${item}"}
  enough:
    depends_on: double
    choice:
      - {when: "size(double) > 2", then: many}
      - {else: few}
  many: {value: "${size(double)}"}
  few: {value: 0}
output: {doubled: "${double}"}
"""
WAITS = """
flow: waits
tasks:
  ask: {approval: {title: Really?}}
  body:
    depends_on: ask
    tasks:
      inside: {python: rest_double, with: {x: 1}}
"""


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as found:
        yield found


async def deploy(api: Live, source: str, status: int = 201, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await api.post("/workflows/deploy", {"source": source, **more}, status)
    return answer


# -- documents -----------------------------------------------------------------------------------------------------


async def test_a_deployed_flow_runs(api: Live) -> None:
    found = await deploy(api, DOUBLES)
    assert found["name"] == "doubles" and found["kind"] == "dag" and found["description"] == "Doubles numbers."
    assert found["deployed"] == {
        "version": found["version"],
        "created": True,
        "activated": True,
        "changes": None,
        "warnings": [],
    }
    run = await api.ended("doubles", input={"numbers": [1, 2, 3]})
    assert run["status"] == "success" and run["version"] == found["version"]
    assert run["result"] == {"doubled": [2, 4, 6]}
    tasks = (await api.get(f"/runs/{run['id']}/tasks"))["items"]
    assert [t["node"] for t in tasks if t["status"] == "success"] == ["double[0]", "double[1]", "double[2]"]
    assert {t["name"] for t in tasks if t["status"] == "success"} == {"rest_double"}


async def test_the_same_document_is_the_same_version_as_text_or_as_json(api: Live) -> None:
    first = await deploy(api, DOUBLES)
    again = await deploy(api, DOUBLES.replace("# Doubles every", "# doubles each"), 200)
    assert again["version"] == first["version"] and not again["deployed"]["created"]
    kept = await api.get(f"/workflows/doubles/versions/{first['version']}")
    assert kept["source"] == DOUBLES, "the text that made the version, comments included"
    assert kept["current"] and kept["kind"] == "dag" and version_of(kept["document"]) == first["version"]
    third = await api.post("/workflows/deploy", {"document": kept["document"]}, 200)
    assert third["version"] == first["version"]


async def test_what_is_wrong_is_told_with_its_place(api: Live) -> None:
    wrong = DOUBLES.replace("foreach:", "forech:").replace("depends_on: double", "depends_on: doubl")
    for path in ("/workflows/deploy", "/workflows/validate"):
        problem = await api.post(path, {"source": wrong, "file": "doubles.yaml"}, 422)
        assert problem["code"] == "invalid_flow" and problem["type"].endswith("/errors#invalid_flow")
        told = {p["line"]: p for p in problem["problems"]}
        assert "forech" in told[11]["message"] and "foreach" in told[11]["hint"] and told[11]["file"] == "doubles.yaml"
        assert told[11]["text"].strip().startswith("forech:") and told[11]["text"][told[11]["caret"] :].startswith(
            "forech"
        )
        assert "doubl" in told[14]["message"]
        assert "doubles.yaml:11:" in problem["detail"]
    assert (await api.get("/workflows/doubles", 404))["code"] == "not_registered", "nothing was written"


async def test_a_document_as_json_has_paths_for_places(api: Live) -> None:
    problem = await api.post(
        "/workflows/validate", {"document": {"flow": "x", "tasks": {"a": {"depend_on": "b"}}}}, 422
    )
    assert problem["problems"][0]["line"] == 0 and problem["problems"][0]["path"] == ["tasks", "a", "depend_on"]


@pytest.mark.parametrize(
    "body",
    [
        {"source": DOUBLES, "document": {}},
        {"source": ""},
        {"document": None},
        {"source": "tasks: {a: {value: 1}}"},
        {"source": "flow: x\ntasks: [unclosed"},
        {"source": DOUBLES, "version": "1"},
        {"name": "x"},
        {"name": "x", "version": "flow-0123"},
        [],
    ],
)
async def test_what_is_no_flow_is_refused(api: Live, body: Any) -> None:
    problem = await api.post("/workflows/deploy", body, 422)
    assert problem["code"] in ("invalid_input", "invalid_flow") and problem["detail"]


async def test_a_name_may_come_with_the_request(api: Live) -> None:
    found = await api.post("/workflows/deploy", {"source": "tasks: {a: {value: 1}}", "name": "named"})
    assert found["name"] == "named"
    assert (await api.ended("named"))["status"] == "success"


async def test_code_can_still_be_registered(api: Live) -> None:
    found = await api.post("/workflows", {"name": "elsewhere", "version": "7"})
    assert found["kind"] == "code" and found["deployed"] is None
    kept = await api.get("/workflows/elsewhere/versions/7")
    assert kept["document"] is None and kept["source"] is None and kept["kind"] == "code"
    assert (await api.get("/workflows/elsewhere/graph"))["nodes"] == []


async def test_validating_says_what_would_change_and_writes_nothing(api: Live) -> None:
    fresh = await api.post("/workflows/validate", {"source": DOUBLES}, 200)
    assert fresh["changes"] is None and fresh["current"] is None and not fresh["is_known"] and fresh["nodes"] == 4
    await api.get("/workflows/doubles", 404)
    first = await deploy(api, DOUBLES)
    changed = DOUBLES.replace("  few: {value: 0}", "  few: {value: 1}\n  last: {depends_on: few, value: 2}")
    changed = changed.replace("output: {doubled", "output: {twice")
    told = await api.post("/workflows/validate", {"source": changed}, 200)
    assert told["changes"] == {"added": ["last"], "removed": [], "changed": ["few"], "other": ["output"]}
    assert told["current"] == first["version"] != told["version"] and not told["is_known"]
    assert (await api.get("/workflows/doubles"))["version"] == first["version"]


async def test_validating_draws_the_draft_as_it_would_be_drawn_once_deployed(api: Live) -> None:
    draft = (await api.post("/workflows/validate", {"source": DOUBLES}, 200))["graph"]
    assert len(draft["nodes"]) == 4 and draft["links"] and draft["name"] == "doubles"
    await deploy(api, DOUBLES)
    assert draft == await api.get("/workflows/doubles/graph")


async def test_a_graph_is_drawn_as_a_mermaid_flowchart(api: Live) -> None:
    await deploy(api, DOUBLES)
    answer = await api.http.get("/workflows/doubles/graph", params={"format": "mermaid"})
    assert answer.headers["content-type"] == "text/vnd.mermaid; charset=utf-8"
    assert answer.text.startswith('---\ntitle: "doubles"\n---\nflowchart TD\n') and "class" not in answer.text
    run = await api.ended("doubles", input={"numbers": [1, 2]})
    shown = await api.http.get(f"/runs/{run['id']}/graph", params={"format": "mermaid"})
    assert "classDef success" in shown.text


# -- which one is current ------------------------------------------------------------------------------------------


async def test_a_version_can_wait_and_an_earlier_one_can_come_back(api: Live) -> None:
    one = (await deploy(api, "flow: v\ntasks: {a: {value: 1}}"))["version"]
    waiting = await deploy(api, "flow: v\ntasks: {a: {value: 2}}", activate=False)
    assert waiting["version"] == one and not waiting["deployed"]["activated"]
    two = waiting["deployed"]["version"]
    assert (await api.ended("v"))["result"] == {"a": 1}
    assert (await api.ended("v", version=two))["result"] == {"a": 2}
    assert (await api.post("/workflows/v/current", {"version": two}, 200))["version"] == two
    assert (await api.ended("v"))["result"] == {"a": 2}
    await api.post("/workflows/v/current", {"version": one}, 200)
    assert (await api.ended("v"))["result"] == {"a": 1}
    assert [v["current"] for v in (await api.get("/workflows/v/versions"))["items"]] == [False, True]
    acts = [a["action"] for a in (await api.get("/audit"))["items"] if a["target"] == "v"]
    assert acts == ["version.set_current", "version.set_current", "workflow.deploy", "workflow.deploy"]


async def test_a_version_that_is_not_there_is_not_found(api: Live) -> None:
    await deploy(api, "flow: v\ntasks: {a: {value: 1}}")
    for path in ("/workflows/v/versions/flow-nope", "/workflows/nope/versions/1", "/workflows/nope/graph"):
        assert (await api.get(path, 404))["code"] == "not_registered"
    assert (await api.get("/workflows/v/graph", 404, version="flow-nope"))["code"] == "not_registered"
    assert (await api.post("/workflows/v/current", {"version": "flow-nope"}, 404))["code"] == "not_registered"
    assert (await api.post("/workflows/nope/current", {"version": "1"}, 404))["code"] == "not_registered"


# -- starting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input.numbers is missing"),
        ({"input": {"numbers": ["x"]}}, "input.numbers[0] must be integer"),
        ({"kwargs": {"numbers": 5}}, "input.numbers must be array"),
        ({"input": 5}, "input must be object"),
        ({"args": [[1]]}, "input must be object, not array"),
    ],
)
async def test_input_that_does_not_fit_starts_nothing(api: Live, body: dict[str, Any], said: str) -> None:
    await deploy(api, DOUBLES)
    problem = await api.post("/workflows/doubles/runs", body, 422)
    assert problem["code"] == "invalid_input" and said in problem["detail"]
    assert "doubles takes numbers, note (optional)" in problem["detail"] or "by name" in problem["detail"]
    assert not (await api.get("/runs", workflow="doubles"))["items"]


# -- pictures ------------------------------------------------------------------------------------------------------


async def test_a_flow_as_nodes_and_links(api: Live) -> None:
    await deploy(api, DOUBLES)
    graph = await api.get("/workflows/doubles/graph")
    assert [n["key"] for n in graph["nodes"]] == ["double", "enough", "many", "few"]
    assert graph["nodes"][0]["badges"] == ["for each input.numbers"] and graph["nodes"][0]["detail"] == "rest_double"
    assert {(e["source"], e["target"], e["label"]) for e in graph["links"]} == {
        ("double", "enough", ""),
        ("enough", "many", "size(double) > 2"),
        ("enough", "few", "else"),
    }
    assert all(n["status"] is None for n in graph["nodes"])


async def test_a_run_shows_how_far_its_nodes_are(api: Live) -> None:
    await deploy(api, DOUBLES)
    run = await api.ended("doubles", input={"numbers": [1]})
    graph = await api.get(f"/runs/{run['id']}/graph")
    assert {n["key"]: n["status"] for n in graph["nodes"]} == {
        "double": "success",
        "enough": "success",
        "many": "skipped",
        "few": "success",
    }
    assert graph["version"] == run["version"]


async def test_a_run_that_waits_shows_for_what(api: Live) -> None:
    await deploy(api, WAITS)
    run = await api.start("waits")
    graph: dict[str, Any] = {}
    for _ in range(500):
        graph = await api.get(f"/runs/{run['id']}/graph")
        if graph["nodes"][0]["status"] == "waiting":
            break
    assert [n["status"] for n in graph["nodes"]] == ["waiting", "pending"]
    assert [n["path"] for n in graph["nodes"][1]["inner"]["nodes"]] == ["body.inside"]
    await api.post(f"/runs/{run['id']}/promises/ask", True, 202)
    await api.get(f"/runs/{run['id']}/result", wait=60)
    graph = await api.get(f"/runs/{run['id']}/graph")
    assert [n["status"] for n in graph["nodes"]] == ["success", "success"]


async def test_a_failed_run_shows_where(api: Live) -> None:
    await deploy(
        api,
        "flow: f\ntasks:\n  bad: {python: rest_break, with: {why: so}, retry: 1}\n  after: {depends_on: bad, value: 1}",
    )
    run = await api.ended("f")
    assert run["status"] == "failed"
    graph = await api.get(f"/runs/{run['id']}/graph")
    assert {n["key"]: n["status"] for n in graph["nodes"]} == {"bad": "failed", "after": "skipped"}


async def test_a_run_of_code_has_no_graph(api: Live) -> None:
    run = await api.ended("rest_sum", input={"x": 1})
    graph = await api.get(f"/runs/{run['id']}/graph")
    assert graph["kind"] == "code" and graph["nodes"] == []


async def test_pictures_are_safe_to_open(api: Live) -> None:
    await deploy(api, DOUBLES)
    run = await api.ended("doubles", input={"numbers": [1]})
    for path in ("/workflows/doubles/graph", f"/runs/{run['id']}/graph"):
        answer = await api.http.get(path, params={"format": "svg"})
        assert answer.headers["content-type"].startswith("image/svg+xml")
        policy = answer.headers.get_list("content-security-policy")
        assert len(policy) == 1 and "default-src 'none'" in policy[0] and "sandbox" in policy[0]
        assert "script-src" not in policy[0] and answer.headers["x-content-type-options"] == "nosniff"
        assert ElementTree.fromstring(answer.text).tag.endswith("svg")
    await api.get("/workflows/doubles/graph", 422, format="png")


async def test_the_schema_knows_the_tasks_of_the_namespace(api: Live) -> None:
    arguments = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    await api.server.api.ports.definitions.save_task_types(1, {"rest_schematic": msgspec.json.encode(arguments)})
    schema = await api.get("/schema/flow.json")
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "rest_schematic" in str(schema)
    await api.post("/namespaces", {"name": "elsewhere"})
    other = await api.http.get("/schema/flow.json", headers={"Perdure-Namespace": "elsewhere"})
    assert other.status_code == 200 and "rest_schematic" not in other.text
