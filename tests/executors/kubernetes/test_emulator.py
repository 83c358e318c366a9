"""The emulator answers as kube-apiserver does: the same requests to both give the same codes and reasons.

Without the real server, the emulator is held against the answers that were recorded from it (version 1.20.2).
"""

from __future__ import annotations

import copy
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.executors.cluster import TOKEN, Cluster, programs
from tests.executors.kubernetes.recorded_answers import ANSWERS, EMULATOR_ONLY

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
Answer = tuple[int, str]


class Ask(NamedTuple):
    name: str
    method: str
    path: str
    body: Any = None
    kind: str = "application/json"
    token: str = TOKEN


def job(name: str = "one", **spec: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "work", "image": "missing/one", "command": ["true"]}]}
    found = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": {"spec": pod}, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": found}


def edited(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    found = copy.deepcopy(job("never-made"))
    edit(found)
    return found


def in_pod(**fields: Any) -> dict[str, Any]:
    return edited(lambda j: j["spec"]["template"]["spec"].update(fields))


def in_container(**fields: Any) -> dict[str, Any]:
    return edited(lambda j: j["spec"]["template"]["spec"]["containers"][0].update(fields))


def in_meta(**fields: Any) -> dict[str, Any]:
    return edited(lambda j: j["metadata"].update(fields))


def in_spec(**fields: Any) -> dict[str, Any]:
    return edited(lambda j: j["spec"].update(fields))


def pod(name: str, **spec: Any) -> dict[str, Any]:
    found = {"containers": [{"name": "work", "image": "missing/one"}], "nodeSelector": {"no": "node"}, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": found}


def binding(name: str, node: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}}


def limits(requests: dict[str, Any], **most: Any) -> dict[str, Any]:
    return in_container(resources={"requests": requests, **({"limits": most} if most else {})})


REFUSED = {
    "no name": in_meta(name=None),
    "name of capitals": in_meta(name="One"),
    "name too long for a label": in_meta(name="x" * 64),
    "label key": in_meta(labels={"not a label!": "x"}),
    "label prefix": in_meta(labels={"Bad_Prefix/x": "x"}),
    "label value": in_meta(labels={"x": "not a value!"}),
    "label value too long": in_meta(labels={"x": "y" * 64}),
    "label is a number": in_meta(labels={"x": 1}),
    "annotation key": in_meta(annotations={"not a key!": "x"}),
    "annotations too long": in_meta(annotations={"x": "y" * 300_000}),
    "namespace of another": in_meta(namespace="other"),
    "version at creation": in_meta(resourceVersion="7"),
    "kind of another": edited(lambda j: j.update(kind="Pod", apiVersion="v1")),
    "unknown version": edited(lambda j: j.update(apiVersion="batch/v9")),
    "no spec": edited(lambda j: j.pop("spec")),
    "no template": edited(lambda j: j["spec"].pop("template")),
    "spec is a list": edited(lambda j: j.update(spec=[])),
    "parallelism is text": in_spec(parallelism="x"),
    "negative parallelism": in_spec(parallelism=-1),
    "negative completions": in_spec(completions=-1),
    "negative backoff": in_spec(backoffLimit=-1),
    "negative deadline": in_spec(activeDeadlineSeconds=-1),
    "negative ttl": in_spec(ttlSecondsAfterFinished=-1),
    "selector": in_spec(selector={"matchLabels": {"a": "b"}}),
    "template label": in_spec(template={**job()["spec"]["template"], "metadata": {"labels": {"!": "x"}}}),
    "no containers": in_pod(containers=[]),
    "containers missing": edited(lambda j: j["spec"]["template"]["spec"].pop("containers")),
    "two of one name": in_pod(containers=[{"name": "a", "image": "b"}, {"name": "a", "image": "b"}]),
    "restart always": in_pod(restartPolicy="Always"),
    "restart default": edited(lambda j: j["spec"]["template"]["spec"].pop("restartPolicy")),
    "restart unknown": in_pod(restartPolicy="Sometimes"),
    "node selector": in_pod(nodeSelector={"!": "x"}),
    "service account": in_pod(serviceAccountName="Not A Name"),
    "priority class": in_pod(priorityClassName="Not A Name"),
    "toleration operator": in_pod(tolerations=[{"key": "a", "operator": "Near"}]),
    "toleration effect": in_pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "Never"}]),
    "toleration without key": in_pod(tolerations=[{"operator": "Equal", "value": "x"}]),
    "toleration with value": in_pod(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
    "toleration seconds": in_pod(tolerations=[{"key": "a", "operator": "Exists", "tolerationSeconds": 3}]),
    "container without name": in_container(name=None),
    "container name": in_container(name="Not A Name"),
    "container without image": in_container(image=None),
    "pull policy": in_container(imagePullPolicy="Sometimes"),
    "message policy": in_container(terminationMessagePolicy="Sometimes"),
    "command is text": in_container(command="true"),
    "variable name": in_container(env=[{"name": "1 2", "value": "x"}]),
    "variable is a number": in_container(env=[{"name": "A", "value": 1}]),
    "variable without name": in_container(env=[{"value": "x"}]),
    "secret name": in_container(envFrom=[{"secretRef": {"name": "Not A Name"}}]),
    "secret without name": in_container(envFrom=[{"secretRef": {}}]),
    "quantity": limits({"cpu": "many"}),
    "negative quantity": limits({"cpu": "-1"}),
    "request above limit": limits({"memory": "2Gi"}, memory="1Gi"),
    "unknown resource": limits({"horses": "1"}),
    "body is a list": [],
}
STRICTER = {
    "image with spaces": in_container(image=" one "),
    "unknown field": in_spec(noSuchField=1),
    "unknown field of a container": in_container(comand=["true"]),
    "failure policy": in_spec(
        podFailurePolicy={"rules": [{"action": "Retry", "onExitCodes": {"operator": "In", "values": [1]}}]}
    ),
    "failure policy without condition": in_spec(podFailurePolicy={"rules": [{"action": "FailJob"}]}),
}
"""What the real server of 1.20 drops or accepts, and later ones refuse."""


def requests() -> list[Ask]:
    """In order: later ones depend on earlier ones."""
    refused = [Ask(name, "POST", JOBS, body) for name, body in REFUSED.items()]
    stricter = [
        Ask(name, "POST", JOBS, _named(body, f"dropped-{n}")) for n, (name, body) in enumerate(STRICTER.items())
    ]
    return [*refused, *stricter, *LIFE, *READS, *PROTOCOL]


def _named(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {**body, "metadata": {"name": name}}


LIFE = [
    Ask("create", "POST", JOBS, job()),
    Ask("create again", "POST", JOBS, job()),
    Ask("create another under its name", "POST", JOBS, job(parallelism=0)),
    Ask("invalid before conflict", "POST", JOBS, job(parallelism=-1)),
    Ask("get", "GET", f"{JOBS}/one"),
    Ask("get status", "GET", f"{JOBS}/one/status"),
    Ask("patch", "PATCH", f"{JOBS}/one", {"metadata": {"annotations": {"perdure/lost": "x"}}}, MERGE),
    Ask("patch to nothing new", "PATCH", f"{JOBS}/one", {}, MERGE),
    Ask(
        "patch template", "PATCH", f"{JOBS}/one", {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}, MERGE
    ),
    Ask("patch completions", "PATCH", f"{JOBS}/one", {"spec": {"completions": 2}}, MERGE),
    Ask("patch name", "PATCH", f"{JOBS}/one", {"metadata": {"name": "two"}}, MERGE),
    Ask("patch old version", "PATCH", f"{JOBS}/one", {"metadata": {"resourceVersion": "1"}}, MERGE),
    Ask("patch uid", "PATCH", f"{JOBS}/one", {"metadata": {"uid": "other"}}, MERGE),
    Ask("patch wrong type", "PATCH", f"{JOBS}/one", {"spec": {"parallelism": "x"}}, MERGE),
    Ask("patch label", "PATCH", f"{JOBS}/one", {"metadata": {"labels": {"!": "x"}}}, MERGE),
    Ask("patch as JSON", "PATCH", f"{JOBS}/one", {}, "application/json"),
    Ask("patch none", "PATCH", f"{JOBS}/none", {}, MERGE),
    Ask("delete with a policy unknown", "DELETE", f"{JOBS}/one", {"propagationPolicy": "Sideways"}),
    Ask("delete another uid", "DELETE", f"{JOBS}/one", {"preconditions": {"uid": "other"}}),
    Ask("delete another version", "DELETE", f"{JOBS}/one", {"preconditions": {"resourceVersion": "1"}}),
    Ask("delete", "DELETE", f"{JOBS}/one?propagationPolicy=Background"),
    Ask("delete again", "DELETE", f"{JOBS}/one?propagationPolicy=Background"),
    Ask("get deleted", "GET", f"{JOBS}/one"),
    Ask("create after deletion", "POST", JOBS, job()),
    Ask("delete in the foreground", "DELETE", f"{JOBS}/one", {"propagationPolicy": "Foreground"}),
]
READS = [
    Ask("list", "GET", JOBS),
    Ask("list of all namespaces", "GET", "/apis/batch/v1/jobs"),
    Ask("list of a namespace that is none", "GET", "/apis/batch/v1/namespaces/none/jobs"),
    Ask("select", "GET", f"{PODS}?labelSelector=a%3Db%2Cc+in+(d%2Ce)%2C!f"),
    Ask("selector unknown operator", "GET", f"{PODS}?labelSelector=a%3D%3D%3Db"),
    Ask("selector key", "GET", f"{PODS}?labelSelector=%21%21a"),
    Ask("selector value", "GET", f"{PODS}?labelSelector=a%3Db%20c"),
    Ask("selector end", "GET", f"{PODS}?labelSelector=a%3Db%2C"),
    Ask("limit", "GET", f"{PODS}?limit=1"),
    Ask("continue unknown", "GET", f"{PODS}?limit=1&continue=xyz"),
    Ask("list version text", "GET", f"{PODS}?resourceVersion=abc"),
    Ask("list any version", "GET", f"{PODS}?resourceVersion=0"),
    Ask("watch", "GET", f"{PODS}?watch=true&timeoutSeconds=1"),
    Ask("watch from long ago", "GET", f"{PODS}?watch=true&resourceVersion=1&timeoutSeconds=1"),
    Ask("watch version text", "GET", f"{PODS}?watch=true&resourceVersion=abc&timeoutSeconds=1"),
    Ask("pod", "POST", PODS, pod("alone")),
    Ask("pod again", "POST", PODS, pod("alone")),
    Ask("pod of no priority", "POST", PODS, pod("never-made", priorityClassName="none")),
    Ask("pod without image", "POST", PODS, pod("never-made", containers=[{"name": "work"}])),
    Ask("pod patch", "PATCH", f"{PODS}/alone", {"spec": {"nodeSelector": {"other": "node"}}}, MERGE),
    Ask("pod status type", "PATCH", f"{PODS}/alone/status", {"status": {"phase": 1}}, MERGE),
    Ask("pod status of none", "PATCH", f"{PODS}/none/status", {"status": {"phase": "Running"}}, MERGE),
    Ask("log of no container", "GET", f"{PODS}/alone/log?container=none"),
    Ask("log of none", "GET", f"{PODS}/none/log"),
    Ask("bind none", "POST", f"{PODS}/none/binding", binding("none", "local")),
    Ask("bind another", "POST", f"{PODS}/alone/binding", binding("other", "local")),
    Ask("bind to nothing", "POST", f"{PODS}/alone/binding", binding("alone", "")),
]
PROTOCOL = [
    Ask("no token", "GET", JOBS, token=""),
    Ask("wrong token", "GET", JOBS, token="wrong"),
    Ask("namespace unknown", "POST", "/apis/batch/v1/namespaces/none/jobs", job()),
    Ask("resource unknown", "GET", "/apis/batch/v1/namespaces/default/horses"),
    Ask("group unknown", "GET", "/apis/horses/v1/namespaces/default/jobs"),
    Ask("get none", "GET", f"{JOBS}/none"),
    Ask("delete none", "DELETE", f"{JOBS}/none"),
    Ask("post to a name", "POST", f"{JOBS}/one", job()),
    Ask("post of a form", "POST", JOBS, job(), "application/x-www-form-urlencoded"),
    Ask("body too long", "POST", JOBS, in_meta(annotations={"x": "y" * 4_000_000})),
]


def answer(cluster: Cluster, ask: Ask) -> Answer:
    """The code and the reason; of a watch, the first event that is an error."""
    data = json.dumps(ask.body).encode() if ask.body is not None else None
    headers = {"Content-Type": ask.kind, **({"Authorization": f"Bearer {ask.token}"} if ask.token else {})}
    url = f"https://127.0.0.1:{cluster.port}{ask.path}"
    request = urllib.request.Request(url, data, headers, method=ask.method)
    try:
        with urllib.request.urlopen(request, timeout=60, context=ssl._create_unverified_context()) as response:
            return response.status, _watched(response.read()) if "watch=true" in ask.path else ""
    except urllib.error.HTTPError as e:
        return e.code, _reason(e.read())


def _watched(data: bytes) -> str:
    events = [json.loads(line) for line in data.splitlines()]
    return next((e["object"]["reason"] for e in events if e["type"] == "ERROR"), "")


def _reason(data: bytes) -> str:
    try:
        return str(json.loads(data).get("reason", ""))
    except ValueError:
        return ""


@pytest.fixture(scope="module")
def answers(emulated: Cluster) -> dict[str, Answer]:
    return {ask.name: answer(emulated, ask) for ask in requests()}


def test_the_emulator_answers_as_recorded(answers: dict[str, Answer]) -> None:
    assert len(answers) == len(requests())
    assert answers == ANSWERS | EMULATOR_ONLY


@pytest.mark.skipif(programs() is None, reason="no Kubernetes: set PERDURE_KUBERNETES to its binaries")
def test_the_record_is_what_the_real_server_answers(live: Cluster) -> None:
    assert {ask.name: answer(live, ask) for ask in requests()} == ANSWERS
